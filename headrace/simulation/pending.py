"""Calls of a simulated worker that end at a known time, or all at once when the worker crashes.

Invariant: a call ends by its deadline, with the error that its port promises.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable

from headrace.errors import BoundaryError

_ROUNDING_S = 1e-9
"""A duration that was computed from two times of the loop may exceed its bound by rounding."""


class PendingCalls:
    """The calls that a worker is busy with."""

    def __init__(self) -> None:
        self._births = itertools.count()
        self._futures: dict[int, asyncio.Future[None]] = {}

    async def spend(self, duration_s: float, timeout_s: float, late: Callable[[], BoundaryError]) -> None:
        """Returns after the duration; zero returns at once.

        Raises:
            BoundaryError: `late()` at the deadline when the duration is longer, or the error of a crash.
        """
        if duration_s > 0.0:
            await self._until(min(duration_s, timeout_s))
        if duration_s > timeout_s + _ROUNDING_S:
            raise late()

    async def _until(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        birth = next(self._births)
        self._futures[birth] = future
        timer = loop.call_later(delay_s, _finish, future)
        try:
            await future
        finally:
            timer.cancel()
            del self._futures[birth]

    def fail_all(self, error: Callable[[], BoundaryError]) -> None:
        """Ends every pending call with an error of its own, oldest first."""
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error())


class Slots:
    """Servers that take work in order of arrival. With durations known on arrival, the end is known at once."""

    def __init__(self, num_slots: int | None) -> None:
        """None has no bound."""
        self._free_at_s = None if num_slots is None else [0.0] * num_slots

    def start_s(self, now_s: float) -> float:
        """When work that arrives now would start."""
        return now_s if self._free_at_s is None else max(now_s, self._free_at_s[0])

    def take(self, now_s: float, duration_s: float) -> float:
        """When work that arrives now ends; its server is taken until then."""
        end_s = self.start_s(now_s) + duration_s
        if self._free_at_s is not None:
            heapq.heapreplace(self._free_at_s, end_s)
        return end_s


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
