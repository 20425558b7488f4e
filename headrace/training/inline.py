"""The trainer's core behind its port, on the event loop itself: for runs on virtual time.

Invariant: calls run one after another in the order made, each takes effect at its end, and its time is whatever the cost
model says; the loop's clock is the only one.

Consumes: calls of the port. Waits for: its turn, then the cost of the call. Unblocked by: the loop's clock. Produces: the
core's answers.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.errors import TrainerError
from headrace.records.arrays import IntArray
from headrace.records.batch import BatchPlan, BatchRow
from headrace.records.checkpoint import Manifest
from headrace.records.ids import Address
from headrace.records.update import CanaryScore, RowScore, UpdateResult
from headrace.training.core import TrainerCore

T = TypeVar("T")


class InlineTrainer:
    """Implements `ports.Trainer` by calling the core directly."""

    def __init__(self, core: TrainerCore, cost_s: Callable[[str, int], float]) -> None:
        """Wraps the core.

        Args:
            core: does the work.
            cost_s: seconds that a call takes, from its name (`score`, `update`, `canary`, `save`, `load`) and its number of
                sequences; a checkpoint counts as one.
        """
        self._core = core
        self._cost_s = cost_s
        self._turn = asyncio.Lock()

    async def score(self, rows: Sequence[BatchRow], version: int, timeout_s: float) -> list[RowScore]:
        return await self._call("score", len(rows), timeout_s, lambda: self._core.score(rows, version))

    async def update(self, plan: BatchPlan, timeout_s: float) -> UpdateResult:
        return await self._call("update", len(plan.rows), timeout_s, lambda: self._core.update(plan))

    async def canary(self, ids: Sequence[IntArray], timeout_s: float) -> CanaryScore:
        return await self._call("canary", len(ids), timeout_s, lambda: self._core.canary(ids))

    async def save(self, timeout_s: float) -> Manifest:
        return await self._call("save", 1, timeout_s, self._core.save)

    async def load(self, manifest: Manifest, timeout_s: float) -> None:
        await self._call("load", 1, timeout_s, lambda: self._core.load(manifest))

    async def replay(self, plan: BatchPlan, weights: Address, timeout_s: float) -> bool:
        return await self._call("update", len(plan.rows), timeout_s, lambda: self._core.replay(plan, weights))

    async def forget(self, blobs: Sequence[Address], timeout_s: float) -> None:
        await self._call("save", 0, timeout_s, lambda: self._core.forget(blobs))

    async def _call(self, method: str, size: int, timeout_s: float, run: Callable[[], T]) -> T:
        """The core's answer. Raises TrainerError LOST at the deadline: a caller cannot know how far a trainer came."""
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                await asyncio.sleep(self._cost_s(method, size))
        except TimeoutError:
            raise TrainerError(f"{method} of {size} sequences had no answer within {timeout_s} s") from None
        return run()
