"""The port of the trainer: parameters and optimizer of one policy."""

from collections.abc import Sequence
from typing import Protocol

from headrace.records.arrays import IntArray
from headrace.records.batch import BatchPlan, BatchRow
from headrace.records.checkpoint import Manifest
from headrace.records.ids import Address
from headrace.records.update import CanaryScore, RowScore, UpdateResult


class Trainer(Protocol):
    """Parameters and optimizer of one policy. Reads transcripts by address."""

    async def score(self, rows: Sequence[BatchRow], version: int, timeout_s: float) -> list[RowScore]:
        """The trainer's log-probs of the rows under its present weights, against the recorded behaviour."""
        ...

    async def update(self, plan: BatchPlan, timeout_s: float) -> UpdateResult:
        """One optimizer step; the new weights lie in the blob store under the returned address.

        Raises:
            TrainerError: REJECTED when the plan does not follow from the present version, or a value is not finite
                (the weights are then unchanged); LOST when the process died.
        """
        ...

    async def canary(self, ids: Sequence[IntArray], timeout_s: float) -> CanaryScore:
        """Log-probs of fixed sequences under the present weights, joined end to end."""
        ...

    async def save(self, timeout_s: float) -> Manifest:
        """Everything that the next updates depend on, as durable files; the manifest itself is one of them."""
        ...

    async def load(self, manifest: Manifest, timeout_s: float) -> None:
        """Goes on from a saved state.

        Raises:
            TrainerError: REJECTED when a file is missing, damaged or of another policy or algorithm; nothing has
                changed then.
        """
        ...

    async def replay(self, plan: BatchPlan, weights: Address, timeout_s: float) -> bool:
        """Computes a plan again; whether it gave exactly the recorded weights.

        Where arithmetic is not reproducible the recorded weights are loaded: a version stands for one content.

        Raises:
            TrainerError: REJECTED when the plan does not follow from the present version, or other weights were recorded
                and are not stored.
        """
        ...

    async def forget(self, blobs: Sequence[Address], timeout_s: float) -> None:
        """Removes files of its own that nothing names any more; unknown ones are ignored."""
        ...
