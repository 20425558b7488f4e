"""The policy model: loaded from a folder, asked only for the distributions that matter.

Invariant: what a row gets does not depend on the rows beside it, beyond rounding. Rows are padded on the right and attention
is causal, so no padding is ever attended to. Dropout stays off: the trainer's log-probs are those of the weights.

Dimensions: B rows, T input tokens of the widest row, H hidden size, V vocabulary, N selected positions.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from headrace.errors import ConfigError
from headrace.training.packing import PackedTokens


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """Rows side by side, with the positions that predict a trained token.

    Attributes:
        inputs_BT: token ids, each row up to the one before its last trained token.
        positions_N: b * T + t of each predicting position, rows in order.
        tokens_N: where in the packed arrays the predicted token stands.
        targets_N: the predicted token ids.
        temperature_N: sampling temperature of each.
    """

    inputs_BT: Tensor
    positions_N: Tensor
    tokens_N: npt.NDArray[np.int64]
    targets_N: Tensor
    temperature_N: Tensor


def micro_batches(packed: PackedTokens, rows: Sequence[int], budget_tokens: int) -> Iterator[MicroBatch]:
    """The rows in micro-batches of at most `budget_tokens` slots each; a longer row goes alone.

    Rows are sorted by length so that padding is small; those without a trained token are left out. What follows the last
    trained token of a row influences nothing and is not computed.
    """
    trained_N = np.flatnonzero(packed.action_mask_N)
    bounds = np.searchsorted(trained_N, packed.cu_seqlens)
    starts = packed.cu_seqlens.tolist()
    width_of = {row: int(trained_N[bounds[row + 1] - 1]) - starts[row] for row in rows if bounds[row] < bounds[row + 1]}
    pending: list[int] = []
    for row in sorted(width_of, key=lambda row: (width_of[row], row)):
        if pending and (len(pending) + 1) * width_of[row] > budget_tokens:
            yield _micro_batch(packed, pending, trained_N, bounds)
            pending = []
        pending.append(row)
    if pending:
        yield _micro_batch(packed, pending, trained_N, bounds)


def _micro_batch(
    packed: PackedTokens, rows: list[int], trained_N: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]
) -> MicroBatch:
    width = max(int(trained_N[bounds[row + 1] - 1]) - int(packed.cu_seqlens[row]) for row in rows)
    inputs_BT = np.zeros((len(rows), width), dtype=np.int64)
    positions: list[npt.NDArray[np.int64]] = []
    tokens: list[npt.NDArray[np.int64]] = []
    for index, row in enumerate(rows):
        start = int(packed.cu_seqlens[row])
        tokens_n = trained_N[bounds[row] : bounds[row + 1]]
        length = int(tokens_n[-1]) - start
        inputs_BT[index, :length] = packed.ids_N[start : start + length]
        positions.append(tokens_n - (start + 1 - index * width))
        tokens.append(tokens_n)
    tokens_N = np.concatenate(tokens)
    return MicroBatch(
        inputs_BT=torch.from_numpy(inputs_BT),
        positions_N=torch.from_numpy(np.concatenate(positions)),
        tokens_N=tokens_N,
        targets_N=torch.from_numpy(packed.ids_N[tokens_N].astype(np.int64)),
        temperature_N=torch.from_numpy(packed.temperature_N[tokens_N]),
    )


class Policy:
    """A causal language model in float32.

    Attributes:
        model: the module.
        vocabulary: number of token ids.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval()
        embedding = model.get_input_embeddings().weight
        assert isinstance(embedding, Tensor)
        self.vocabulary = int(embedding.shape[0])
        self._head = self._proven_head(model.get_output_embeddings())

    @classmethod
    def load(cls, folder: Path) -> "Policy":
        """The model of a folder with `config.json` and safetensors, in float32.

        Raises:
            ConfigError: when there is none, or the file lacks a weight that the model has.
        """
        was_shown = transformers_logging.is_progress_bar_enabled()
        transformers_logging.disable_progress_bar()
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder}: no policy could be loaded: {error}") from error
        finally:
            if was_shown:
                transformers_logging.enable_progress_bar()
        model, report = loaded
        if report["missing_keys"]:
            raise ConfigError(f"{folder}: the weights lack {sorted(report['missing_keys'])[:4]}")
        return cls(model)

    def logits(self, inputs_BT: Tensor, positions_N: Tensor) -> Tensor:
        """Raw logits [N, V] at the positions b * T + t.

        The output layer runs at those positions alone where it is proven to be all that follows the hidden states.
        """
        if self._head is None:
            logits_BTV = self.model(input_ids=inputs_BT, use_cache=False).logits
            return logits_BTV.flatten(0, 1)[positions_N]
        hidden_BTH = self.model.base_model(input_ids=inputs_BT, use_cache=False).last_hidden_state
        return self._head(hidden_BTH.flatten(0, 1)[positions_N])

    def log_distribution(self, micro: MicroBatch) -> Tensor:
        """Log-probabilities [N, V] of the distribution that was sampled from: of logits / temperature."""
        logits_NV = self.logits(micro.inputs_BT, micro.positions_N)
        if bool((micro.temperature_N != 1.0).any()):
            logits_NV = logits_NV / micro.temperature_N[:, None]
        return torch.log_softmax(logits_NV, dim=-1)

    def _proven_head(self, head: nn.Module | None) -> nn.Module | None:
        """The output layer, if it and the base model alone give the model's logits; some scale or cap them in between."""
        if head is None:
            return None
        inputs_BT = torch.arange(8)[None] % self.vocabulary
        with torch.inference_mode():
            whole_TV = self.model(input_ids=inputs_BT, use_cache=False).logits[0]
            hidden_TH = self.model.base_model(input_ids=inputs_BT, use_cache=False).last_hidden_state[0]
            return head if torch.allclose(head(hidden_TH), whole_TV, rtol=1e-5, atol=1e-5) else None
