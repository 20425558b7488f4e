"""Keys and values of all slots in tensors that are allocated once.

Invariant: a pass writes only where it was pointed to. Padding and slots that take no part write to a scratch position
that no pass attends to, so what is parked stays as it was.

Dimensions: S slots, N rows of a pass, T new tokens of a pass, L positions of a slot (the last is scratch), H key-value
heads, D head size.
"""

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class Placement:
    """Where the present pass writes and what it attends to; shared by all layers.

    Attributes:
        write_M: flat positions [N * H * T] in a layer's [S * H * L] positions.
        rows: the rows that it sees: a slice (no copy), or an index (a copy).
        attended: number of leading positions that it sees.
    """

    def __init__(self) -> None:
        self.write_M = torch.zeros(0, dtype=torch.long)
        self.rows: slice | torch.Tensor = slice(0, 0)
        self.attended = 0


class SlotLayer(CacheLayerMixin):
    """One layer's keys and values [S, H, L, D]."""

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype, placement: Placement) -> None:
        super().__init__()
        self.keys_SHLD, self.values_SHLD = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
        self.keys, self.values = self.keys_SHLD, self.values_SHLD
        self._flat_keys, self._flat_values = self.keys_SHLD.view(-1, shape[3]), self.values_SHLD.view(-1, shape[3])
        self._placement = placement
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores [N, H, T, D] and returns what the pass attends to, [N, H, attended, D]."""
        place, size = self._placement, key_states.shape[3]
        self._flat_keys.index_copy_(0, place.write_M, key_states.reshape(-1, size))
        self._flat_values.index_copy_(0, place.write_M, value_states.reshape(-1, size))
        return self.keys_SHLD[place.rows, :, : place.attended], self.values_SHLD[place.rows, :, : place.attended]

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing is left to do: the tensors exist from the start."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._placement.attended, 0

    def get_seq_length(self) -> int:
        return 0  # slots differ; positions are given explicitly

    def get_max_length(self) -> int:
        return self.keys_SHLD.shape[2] - 1


class SlotCache(Cache):
    """The cache of every layer, as `transformers` models take it."""

    def __init__(self, num_layers: int, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
        self._placement = Placement()
        self._slot_layers = [SlotLayer(shape, dtype, self._placement) for _ in range(num_layers)]
        super().__init__(layers=list(self._slot_layers))
        self._num_heads, self._length = shape[1], shape[2]
        self._heads_H = torch.arange(self._num_heads)

    @property
    def scratch(self) -> int:
        """The position that is written and never attended to."""
        return self._length - 1

    @property
    def size_bytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(layer.keys_SHLD.nbytes + layer.values_SHLD.nbytes for layer in self._slot_layers)

    def point(self, rows: slice | torch.Tensor, rows_N: torch.Tensor, places_NT: torch.Tensor, attended: int) -> None:
        """Sets what the next pass writes (row `rows_N[n]` at `places_NT[n]`) and sees (`rows`, `attended` positions)."""
        heads_NH1 = (rows_N[:, None] * self._num_heads + self._heads_H)[:, :, None]
        self._placement.write_M = (heads_NH1 * self._length + places_NT[:, None, :]).reshape(-1)
        self._placement.rows, self._placement.attended = rows, attended

    def copy(self, source: int, target: int, count: int) -> None:
        """Makes the first `count` positions of a slot those of another."""
        for layer in self._slot_layers:
            layer.keys_SHLD[target, :, :count] = layer.keys_SHLD[source, :, :count]
            layer.values_SHLD[target, :, :count] = layer.values_SHLD[source, :, :count]

    def clear(self, slot: int) -> None:
        """Zeroes a slot: a masked NaN would still poison whoever attends over it, for 0 * NaN is NaN."""
        for layer in self._slot_layers:
            layer.keys_SHLD[slot].zero_()
            layer.values_SHLD[slot].zero_()
