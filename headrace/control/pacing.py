"""Holds tool calls back as the rate limit of the service behind them asks, in the order in which they asked.

* consumes: calls that want to begin.
* waits for: those before it, then for the time at which the service is free.
* unblocked by: its turn; or the end of its time, or its cancellation, and then the next in line loses nothing.
* produces: how long each waited.
"""

import asyncio

from headrace.scheduling.pacing import Pace


class ServiceTurns:
    """The queue before one service.

    Args:
        calls_per_s: its limit; None lets every call begin at once.
    """

    def __init__(self, calls_per_s: float | None = None) -> None:
        self._pace = None if calls_per_s is None else Pace(calls_per_s)
        self._queue = asyncio.Lock()
        self._free_s = 0.0

    @property
    def is_limited(self) -> bool:
        """Whether a call may have to wait."""
        return self._pace is not None

    async def turn(self, timeout_s: float | None) -> float | None:
        """Seconds until the call may begin, once they are over; None at the end of its time, and no turn is used up."""
        if self._pace is None:
            return 0.0
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        try:
            async with asyncio.timeout(timeout_s), self._queue:
                due_s = self._pace.due_s(self._free_s, asked_s)
                if due_s > loop.time():
                    await asyncio.sleep(due_s - loop.time())
                self._free_s = self._pace.next_free_s(due_s)
        except TimeoutError:
            return None
        return loop.time() - asked_s
