"""What scoring found, kept until the weights move: the same weights need not score the same row twice.

Invariant: a row is known by its transcript and path, so a plan that leaves rows out or orders them otherwise finds them.

Dimensions: B rows, N tokens of all rows; `n` marks those of one row.
"""

import numpy as np
import numpy.typing as npt

from headrace.records.ids import Address
from headrace.training.metrics import TokenValues
from headrace.training.packing import PackedBatch


class ScoredRows:
    """Values of rows under the present weights. Nothing is known at first."""

    def __init__(self) -> None:
        self._values: dict[tuple[Address, int], TokenValues] = {}

    def remember(self, packed: PackedBatch, values: TokenValues) -> None:
        """Keeps these rows in place of those before."""
        bounds = packed.cu_seqlens.tolist()
        self._values = {
            (packed.transcripts[row], packed.paths[row]): values.slice(bounds[row], bounds[row + 1])
            for row in range(len(packed.transcripts))
        }

    def forget(self) -> None:
        """The weights have moved."""
        self._values = {}

    def of(self, packed: PackedBatch, row: int) -> TokenValues | None:
        """Values of the row's tokens; None when it was not scored under these weights."""
        return self._values.get((packed.transcripts[row], packed.paths[row]))

    def noise(self, packed: PackedBatch, values: TokenValues, rows_B: npt.NDArray[np.bool_]) -> float | None:
        """Largest difference between two computations of the same log-probs by the same weights; None without a second."""
        largest = None
        for row in np.flatnonzero(rows_B).tolist():
            known = self.of(packed, row)
            start, stop = packed.cu_seqlens[row : row + 2].tolist()
            mask_n = packed.action_mask_N[start:stop]
            if known is not None and mask_n.any():
                gap = float(np.abs(known.logprobs_N[mask_n] - values.logprobs_N[start:stop][mask_n]).max())
                largest = max(gap, largest or 0.0)
        return largest
