"""A broadcast for "something changed": waiters re-check their own predicate.

Invariant: the predicate is checked after every change and nothing is awaited between its truth and the return, so whoever
returns may act on it.
"""

import asyncio
from collections.abc import Callable


class Changed:
    """Wakes every waiter on `notify`."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        """Wakes all who wait now; each checks its predicate again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_until(self, predicate: Callable[[], bool]) -> None:
        """Returns once the predicate holds; at once if it already does."""
        while not predicate():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
