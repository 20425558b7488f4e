"""Forward passes of the model over slots.

Invariant: a token attends to exactly the positions of its own slot up to its own; what else a pass computes for the sake
of its shape changes nothing. When deterministic, the shape of a pass that computes a token follows from its position
alone: all slots, a fixed width, an attended length that doubles with the position.

Dimensions: S slots, n slots of interest, N rows of the pass, T columns, L attended positions, V vocabulary.
"""

import numpy as np
import torch

from headrace.inference.cache import SlotCache
from headrace.inference.forward import Forward
from headrace.inference.options import EngineOptions
from headrace.inference.rows import Ints, Rows, input_tensors


class Passes:
    """Computes the passes of a model over some slots."""

    def __init__(self, options: EngineOptions, rows: Rows, cache: SlotCache, dtype: torch.dtype) -> None:
        self._options = options
        self._rows = rows
        self._cache = cache
        self._dtype = dtype
        self._masked = torch.finfo(dtype).min
        self._positions_L = torch.arange(options.context)

    def bucket(self, length: int) -> int:
        """Attended length for a sequence of this many positions."""
        size, context = self._options.cache_bucket, self._options.context
        if self._options.deterministic:
            while size < length:
                size *= 2
        else:
            size *= -(-length // size)
        return min(size, context)

    def decode(self, forward: Forward, slots_n: Ints, attended: int) -> torch.Tensor:
        """Logits [n, V] after one more id of each slot, which is cached by this; `slots_n` is rising."""
        return self._run(forward, slots_n, np.ones(len(slots_n), dtype=np.int64), width=1, attended=attended)

    def prefill(self, forward: Forward, slots_n: Ints, counts_n: Ints, attended: int) -> torch.Tensor:
        """Logits [n, V] after `counts_n` more ids of each slot, which are cached by this."""
        width = self._options.prefill_chunk if self._options.deterministic else int(counts_n.max())
        return self._run(forward, slots_n, counts_n, width=width, attended=attended)

    def _run(self, forward: Forward, slots_n: Ints, counts_n: Ints, *, width: int, attended: int) -> torch.Tensor:
        rows_N, own_n, view = self._span(slots_n, width)
        starts_n1 = self._rows.cached_S[slots_n][:, None]
        # Padding lies on the left, so that every row's last id is in the last column.
        columns_nT = np.arange(width) - (width - counts_n)[:, None]
        places_NT = np.full((len(rows_N), width), self._cache.scratch, dtype=np.int64)
        places_NT[own_n] = np.where(columns_nT >= 0, starts_n1 + columns_nT, self._cache.scratch)
        is_padding_NT = places_NT == self._cache.scratch
        tokens_NT = self._rows.ids_SC[rows_N[:, None], np.where(is_padding_NT, 0, places_NT)]
        tokens, places, positions = input_tensors(tokens_NT, places_NT, is_padding_NT)
        inputs = self._cache.inputs(tokens, places, positions, view=view, mask_N1TL=self._mask(places, attended))
        logits_NV = forward(inputs)
        self._rows.cached_S[slots_n] += counts_n
        # As many rows as slots of interest may still be in another order.
        return logits_NV if np.array_equal(own_n, np.arange(len(rows_N))) else logits_NV[torch.from_numpy(own_n)]

    def _span(self, slots_n: Ints, width: int) -> tuple[Ints, Ints, slice | torch.Tensor]:
        """Slots of the pass, where the ones of interest stand among them, and how the cache is seen."""
        if self._options.deterministic:
            slots = self._options.slots
            return np.arange(slots), slots_n, slice(0, slots)
        low, high = int(slots_n[0]), int(slots_n[-1]) + 1
        # A gap costs one row of arithmetic, an index a copy of every row's keys and values: about the same.
        if width == 1 and (slots_n[1:] > slots_n[:-1]).all() and high - low <= 2 * len(slots_n):
            return np.arange(low, high), slots_n - low, slice(low, high)
        return slots_n, np.arange(len(slots_n)), torch.from_numpy(slots_n)

    def _mask(self, places_NT: torch.Tensor, attended: int) -> torch.Tensor:
        """Additive mask [N, 1, T, L]: 0 up to a token's own place."""
        is_hidden = self._positions_L[:attended] > places_NT[:, None, :, None]
        return torch.zeros(is_hidden.shape, dtype=self._dtype).masked_fill_(is_hidden, self._masked)
