"""The policy model: loaded from a folder, asked only for the distributions that matter.

Invariant: what a row gets does not depend on the rows beside it, beyond rounding. Padded rows are filled up on the right and
attention is causal, so no padding is ever attended to; packed rows attend within themselves. Dropout stays off: the
trainer's log-probs are those of the weights.

Dimensions: B rows, T input tokens of the widest row (padded) or of all rows (packed, B = 1), H hidden size, V vocabulary,
N selected positions.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from headrace.errors import ConfigError
from headrace.training.packed_attention import use_packed_attention
from headrace.training.packing import PackedTokens

Layout = Literal["padded", "packed"]
Precision = Literal["float32", "bfloat16"]


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """Rows side by side or end to end, with the positions that predict a trained token.

    Attributes:
        inputs_BT: token ids, each row up to the one before its last trained token.
        positions_N: b * T + t of each predicting position, rows in order.
        tokens_N: where in the packed arrays the predicted token stands.
        targets_N: the predicted token ids.
        temperature_N: sampling temperature of each.
        rows_N: row within the micro-batch of each, from 0.
        cu_seqlens: boundaries of packed rows, int32; None for padded ones.
    """

    inputs_BT: Tensor
    positions_N: Tensor
    tokens_N: npt.NDArray[np.int64]
    targets_N: Tensor
    temperature_N: Tensor
    rows_N: Tensor
    cu_seqlens: Tensor | None = None

    def position_ids(self) -> Tensor | None:
        """Positions [1, T] that start anew with each packed row; None lets the model count padded ones."""
        if self.cu_seqlens is None:
            return None
        lengths = self.cu_seqlens.diff()
        starts_T = torch.repeat_interleave(self.cu_seqlens[:-1], lengths)
        return (torch.arange(int(self.cu_seqlens[-1])) - starts_T)[None]


def micro_batches(
    packed: PackedTokens, rows: Sequence[int], budget_tokens: int, layout: Layout = "padded"
) -> Iterator[MicroBatch]:
    """The rows in micro-batches of at most `budget_tokens` slots each; a longer row goes alone.

    Rows are sorted by length so that padding is small; those without a trained token are left out. What follows the last
    trained token of a row influences nothing and is not computed.
    """
    trained_N = np.flatnonzero(packed.action_mask_N)
    bounds = np.searchsorted(trained_N, packed.cu_seqlens)
    starts = packed.cu_seqlens.tolist()
    width_of = {row: int(trained_N[bounds[row + 1] - 1]) - starts[row] for row in rows if bounds[row] < bounds[row + 1]}
    make = _padded if layout == "padded" else _end_to_end
    pending: list[int] = []
    total = 0
    for row in sorted(width_of, key=lambda row: (width_of[row], row)):
        slots = (len(pending) + 1) * width_of[row] if layout == "padded" else total + width_of[row]
        if pending and slots > budget_tokens:
            yield make(packed, pending, trained_N, bounds)
            pending, total = [], 0
        pending.append(row)
        total += width_of[row]
    if pending:
        yield make(packed, pending, trained_N, bounds)


def _padded(
    packed: PackedTokens, rows: list[int], trained_N: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]
) -> MicroBatch:
    width = max(int(trained_N[bounds[row + 1] - 1]) - int(packed.cu_seqlens[row]) for row in rows)
    inputs_BT = np.zeros((len(rows), width), dtype=np.int64)
    offsets = [index * width for index in range(len(rows))]
    for index, row in enumerate(rows):
        start = int(packed.cu_seqlens[row])
        length = int(trained_N[bounds[row + 1] - 1]) - start
        inputs_BT[index, :length] = packed.ids_N[start : start + length]
    return _micro_batch(packed, [trained_N[bounds[row] : bounds[row + 1]] for row in rows], inputs_BT, rows, offsets)


def _end_to_end(
    packed: PackedTokens, rows: list[int], trained_N: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]
) -> MicroBatch:
    tokens = [trained_N[bounds[row] : bounds[row + 1]] for row in rows]
    starts = [int(packed.cu_seqlens[row]) for row in rows]
    lengths = [int(tokens_n[-1]) - start for tokens_n, start in zip(tokens, starts, strict=True)]
    inputs_T = np.concatenate(
        [packed.ids_N[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    )
    cu_seqlens = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    micro = _micro_batch(packed, tokens, inputs_T.astype(np.int64)[None], rows, cu_seqlens[:-1].tolist())
    return dataclasses.replace(micro, cu_seqlens=torch.from_numpy(cu_seqlens))


def _micro_batch(  # noqa: PLR0917 - a private constructor
    packed: PackedTokens,
    tokens: list[npt.NDArray[np.int64]],
    inputs_BT: npt.NDArray[np.int64],
    rows: list[int],
    offsets: list[int],
) -> MicroBatch:
    """The micro-batch of rows whose first token stands at the flat offsets."""
    positions = [
        tokens_n - 1 - int(packed.cu_seqlens[row]) + offset
        for tokens_n, row, offset in zip(tokens, rows, offsets, strict=True)
    ]
    tokens_N = np.concatenate(tokens)
    return MicroBatch(
        inputs_BT=torch.from_numpy(inputs_BT),
        positions_N=torch.from_numpy(np.concatenate(positions)),
        tokens_N=tokens_N,
        targets_N=torch.from_numpy(packed.ids_N[tokens_N].astype(np.int64)),
        temperature_N=torch.from_numpy(packed.temperature_N[tokens_N]),
        rows_N=torch.from_numpy(np.repeat(np.arange(len(rows)), [len(tokens_n) for tokens_n in tokens])),
    )


class Policy:
    """A causal language model in float32.

    Attributes:
        model: the module.
        vocabulary: number of token ids.
        width: size of a hidden state.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval()
        embedding = model.get_input_embeddings().weight
        assert isinstance(embedding, Tensor)
        self.vocabulary, self.width = (int(size) for size in embedding.shape)
        self._autocast = False
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

    def use(self, layout: Layout, precision: Precision) -> None:
        """Computes micro-batches in this layout and precision from here on. Raises ConfigError when the model cannot."""
        if layout == "packed":
            use_packed_attention(self.model)
        self._autocast = precision == "bfloat16"

    def logits(self, inputs_BT: Tensor, positions_N: Tensor) -> Tensor:
        """Raw logits [N, V] of padded rows at the positions b * T + t, in float32.

        The output layer runs at those positions alone where it is proven to be all that follows the hidden states.
        """
        return self._logits(inputs_BT, positions_N, {})

    def log_distribution(self, micro: MicroBatch) -> Tensor:
        """Log-probabilities [N, V] of the distribution that was sampled from: of logits / temperature."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
            logits_NV = self._logits(micro.inputs_BT, micro.positions_N, _boundaries(micro))
        logits_NV = logits_NV.float()
        if bool((micro.temperature_N != 1.0).any()):
            logits_NV = logits_NV / micro.temperature_N[:, None]
        return torch.log_softmax(logits_NV, dim=-1)

    def hidden(self, micro: MicroBatch) -> Tensor:
        """Hidden states [N, H] at the predicting positions."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
            hidden_BTH = self._body(micro.inputs_BT, _boundaries(micro))
        return hidden_BTH.flatten(0, 1)[micro.positions_N].float()

    def _logits(self, inputs_BT: Tensor, positions_N: Tensor, boundaries: dict[str, Tensor]) -> Tensor:
        if self._head is None:
            logits_BTV = self.model(input_ids=inputs_BT, use_cache=False, **boundaries).logits
            return logits_BTV.flatten(0, 1)[positions_N]
        return self._head(self._body(inputs_BT, boundaries).flatten(0, 1)[positions_N])

    def _body(self, inputs_BT: Tensor, boundaries: dict[str, Tensor]) -> Tensor:
        return self.model.base_model(input_ids=inputs_BT, use_cache=False, **boundaries).last_hidden_state

    def _proven_head(self, head: nn.Module | None) -> nn.Module | None:
        """The output layer, if it and the base model alone give the model's logits; some scale or cap them in between."""
        if head is None:
            return None
        inputs_BT = torch.arange(8)[None] % self.vocabulary
        with torch.inference_mode():
            whole_TV = self.model(input_ids=inputs_BT, use_cache=False).logits[0]
            hidden_TH = self.model.base_model(input_ids=inputs_BT, use_cache=False).last_hidden_state[0]
            return head if torch.allclose(head(hidden_TH), whole_TV, rtol=1e-5, atol=1e-5) else None


def _boundaries(micro: MicroBatch) -> dict[str, Tensor]:
    """What tells the model where packed rows begin."""
    positions = micro.position_ids()
    if positions is None or micro.cu_seqlens is None:
        return {}
    return {"position_ids": positions, "cu_seq_lens_q": micro.cu_seqlens, "cu_seq_lens_k": micro.cu_seqlens}
