"""Keys and values of all slots in one tensor that is allocated once.

Invariant: a pass writes only where it was pointed to. Padding and slots that take no part write to a scratch position
that no pass attends to, so what is parked stays as it was.

Dimensions: E layers, S slots, N rows of a pass, T new tokens of a pass, L positions of a slot (the last is scratch), H
key-value heads, D head size.
"""

import math
import mmap
from typing import NamedTuple

import torch

_HUGE_PAGE_BYTES = 2 * 1024 * 1024


class CacheShape(NamedTuple):
    """Attributes:
    layers: E.
    slots: S.
    heads: H.
    length: L, the scratch position included.
    head_size: D.
    """

    layers: int
    slots: int
    heads: int
    length: int
    head_size: int


class PassInputs(NamedTuple):
    """Everything that one forward pass takes.

    Attributes:
        ids_NT: token ids.
        mask_N1TL: additive attention mask over the attended positions.
        positions_NT: position ids.
        write_M: where the new keys and values go, flat positions [N * H * T] in a layer's [S * H * L].
        flat_E2MD: the whole cache, its slots, heads and positions in one dimension; keys first, then values.
        seen_E2SHLD: the attended positions of the same memory, of the rows of the pass or of all slots.
        rows_N: the rows among all slots, which are then copied out; None when `seen_E2SHLD` holds just the rows.
    """

    ids_NT: torch.Tensor
    mask_N1TL: torch.Tensor
    positions_NT: torch.Tensor
    write_M: torch.Tensor
    flat_E2MD: torch.Tensor
    seen_E2SHLD: torch.Tensor
    rows_N: torch.Tensor | None


def _zeros(sizes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros, on huge pages where the system has them.

    A pass reads a stretch of every slot and head: on 4 KiB pages it spends up to half of the attention on page walks.
    """
    size_bytes = math.prod(sizes) * dtype.itemsize
    if not hasattr(mmap, "MADV_HUGEPAGE") or size_bytes < _HUGE_PAGE_BYTES:
        return torch.zeros(sizes, dtype=dtype)
    memory = mmap.mmap(-1, size_bytes + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without them
        return torch.zeros(sizes, dtype=dtype)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % _HUGE_PAGE_BYTES
    return whole[start : start + size_bytes].view(dtype).view(sizes)


class SlotCache:
    """The memory of all slots."""

    def __init__(self, shape: CacheShape, dtype: torch.dtype) -> None:
        self.shape = shape
        sizes = (shape.layers, 2, shape.slots, shape.heads, shape.length, shape.head_size)
        self._kv_E2SHLD = _zeros(sizes, dtype)
        self._flat_E2MD = self._kv_E2SHLD.view(shape.layers, 2, -1, shape.head_size)
        self._heads_H = torch.arange(shape.heads)

    @property
    def scratch(self) -> int:
        """The position that is written and never attended to."""
        return self.shape.length - 1

    @property
    def size_bytes(self) -> int:
        """Bytes of all keys and values."""
        return self._kv_E2SHLD.nbytes

    def inputs(
        self,
        ids_NT: torch.Tensor,
        places_NT: torch.Tensor,
        positions_NT: torch.Tensor,
        *,
        view: slice | torch.Tensor,
        mask_N1TL: torch.Tensor,
    ) -> PassInputs:
        """Inputs of a pass over the rows `view`, which writes at `places_NT` and sees as much as its mask is long."""
        rows_N = view if isinstance(view, torch.Tensor) else torch.arange(view.start, view.stop)
        heads_NH1 = (rows_N[:, None] * self.shape.heads + self._heads_H)[:, :, None]
        seen = slice(None) if isinstance(view, torch.Tensor) else view
        return PassInputs(
            ids_NT,
            mask_N1TL,
            positions_NT,
            (heads_NH1 * self.shape.length + places_NT[:, None, :]).reshape(-1),
            self._flat_E2MD,
            self._kv_E2SHLD[:, :, seen, :, : mask_N1TL.shape[3]],
            view if isinstance(view, torch.Tensor) else None,
        )

    def copy(self, source: int, target: int, count: int) -> None:
        """Makes the first `count` positions of a slot those of another."""
        self._kv_E2SHLD[:, :, target, :, :count] = self._kv_E2SHLD[:, :, source, :, :count]

    def clear(self, slot: int) -> None:
        """Zeroes a slot: a masked NaN would still poison whoever attends over it, for 0 * NaN is NaN."""
        self._kv_E2SHLD[:, :, slot].zero_()
