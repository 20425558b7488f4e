"""The model's own forward pass over the slot cache, recorded once so that Python is not paid for again at every token.

Invariant: a recording gives bit for bit what the model gives; one that does not, on inputs of other values and other
sizes than it was made from, is thrown away and the model is called as it is. The arithmetic is that of `transformers` in
either case.

Dimensions: as in `cache`; V vocabulary.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.jit import optimized_execution  # pyright: ignore[reportPrivateImportUsage]
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from headrace.inference.cache import CacheShape, PassInputs, SlotCache

_TRIAL_SLOTS = 5
_TRIAL_LENGTH = 24


class _PassCache(Cache):
    """What the attention layers of one pass write to and read from."""

    def __init__(self, inputs: PassInputs) -> None:
        super().__init__(layers=[])
        self._inputs = inputs

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores [N, H, T, D] and returns what the pass attends to, [N, H, L, D]."""
        return self._update(0, key_states, layer_idx), self._update(1, value_states, layer_idx)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # rows differ; positions are given explicitly

    def _update(self, which: int, states: torch.Tensor, layer: int) -> torch.Tensor:
        inputs = self._inputs
        inputs.flat_E2MD[layer, which].index_copy_(0, inputs.write_M, states.reshape(-1, states.shape[3]))
        seen_SHLD = inputs.seen_E2SHLD[layer, which]
        # After the write: a copied row must hold the new positions too.
        return seen_SHLD if inputs.rows_N is None else seen_SHLD.index_select(0, inputs.rows_N)


class _Pass(torch.nn.Module):
    """Logits [N, V] of the last column, as a module that can be recorded."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        inputs = PassInputs(*tensors) if len(tensors) == 7 else PassInputs(*tensors, rows_N=None)
        output = self.model(
            input_ids=inputs.ids_NT,
            attention_mask=inputs.mask_N1TL,
            position_ids=inputs.positions_NT,
            cache=_PassCache(inputs),
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, 0]


class Forward:
    """Runs passes of one model, whose weights may be overwritten in place.

    Attributes:
        num_unrecorded: kinds of passes for which no faithful recording could be made.
    """

    def __init__(self, model: PreTrainedModel, shape: CacheShape, *, is_recorded: bool) -> None:
        self.num_unrecorded = 0
        self._pass = _Pass(model).eval()
        self._shape = shape
        self._is_recorded = is_recorded
        self._recordings: dict[tuple[bool, bool], Callable[..., torch.Tensor]] = {}

    def __call__(self, inputs: PassInputs) -> torch.Tensor:
        """Logits [N, V] after the last column."""
        # Model code branches on whether there is one new token, and the cache on whether rows are copied.
        kind = (inputs.ids_NT.shape[1] == 1, inputs.rows_N is not None)
        if kind not in self._recordings:
            self._recordings[kind] = self._record(*kind) if self._is_recorded else self._pass
        # The profiling executor would specialize on the first shapes and stall on every new one.
        with optimized_execution(False):
            return self._recordings[kind](*_tensors(inputs))

    def _record(self, is_single: bool, is_copied: bool) -> Callable[..., torch.Tensor]:
        """A recording of this kind of pass, or the model itself when there is none that is faithful."""
        made_from = self._trial(0, num_rows=3, width=1 if is_single else 5, is_copied=is_copied)
        others = [
            self._trial(1, num_rows=1, width=1 if is_single else 7, is_copied=is_copied),
            self._trial(2, num_rows=5, width=1 if is_single else 2, is_copied=is_copied),
        ]
        recording: Callable[..., torch.Tensor] | None = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the very things that the trials check
                recording = self._frozen(torch.jit.trace(self._pass, made_from, check_trace=False))
            with optimized_execution(False):
                if all(torch.equal(recording(*trial), self._pass(*trial)) for trial in others):
                    return recording
        except RuntimeError:
            pass  # what cannot be recorded is called as it is
        self.num_unrecorded += 1
        return self._pass

    def _frozen(self, recording: Any) -> Callable[..., torch.Tensor]:
        """The recording as one flat graph, without steps whose outcome is always the same."""
        # Weights are named, or two that are equal now would become one constant.
        return torch.jit.freeze(recording, preserved_attrs=list(self._pass.state_dict()), optimize_numerics=False)

    def _trial(self, seed: int, *, num_rows: int, width: int, is_copied: bool) -> tuple[torch.Tensor, ...]:
        """Inputs of a pass over a small cache of random contents."""
        shape, parameter = self._shape, next(self._pass.parameters())
        draws = torch.Generator().manual_seed(seed)
        cache = SlotCache(shape._replace(slots=_TRIAL_SLOTS, length=_TRIAL_LENGTH), parameter.dtype)
        attended = _TRIAL_LENGTH - 1 - 4 * seed
        first_N1 = torch.randint(0, attended - width + 1, (num_rows, 1), generator=draws)
        places_NT = first_N1 + torch.arange(width)
        is_hidden = torch.arange(attended) > places_NT[:, None, :, None]
        vocabulary = int(self._pass.model.config.vocab_size)
        inputs = cache.inputs(
            torch.randint(0, vocabulary, (num_rows, width), generator=draws),
            places_NT,
            places_NT,
            view=torch.randperm(_TRIAL_SLOTS, generator=draws)[:num_rows] if is_copied else slice(0, num_rows),
            mask_N1TL=torch.zeros(is_hidden.shape, dtype=parameter.dtype).masked_fill_(
                is_hidden, torch.finfo(parameter.dtype).min
            ),
        )
        inputs.flat_E2MD.copy_(torch.randn(inputs.flat_E2MD.shape, generator=draws))
        return _tensors(inputs)


def _tensors(inputs: PassInputs) -> tuple[torch.Tensor, ...]:
    return tuple(tensor for tensor in inputs if tensor is not None)
