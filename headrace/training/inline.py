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
from headrace.records.update import CanaryScore, RowScore, UpdateResult
from headrace.training.core import TrainerCore

T = TypeVar("T")


class InlineTrainer:
    """Implements `ports.Trainer` by calling the core directly."""

    def __init__(self, core: TrainerCore, cost_s: Callable[[str, int], float]) -> None:
        """Wraps the core.

        Args:
            core: does the work.
            cost_s: seconds that a call takes, from its name (`score`, `update`, `canary`) and its number of sequences.
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

    async def _call(self, method: str, size: int, timeout_s: float, run: Callable[[], T]) -> T:
        """The core's answer. Raises TrainerError LOST at the deadline: a caller cannot know how far a trainer came."""
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                await asyncio.sleep(self._cost_s(method, size))
        except TimeoutError:
            raise TrainerError(f"{method} of {size} sequences had no answer within {timeout_s} s") from None
        return run()
