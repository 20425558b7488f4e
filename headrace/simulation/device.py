"""A device that generation and training take turns on.

Invariant: while a trainer holds the device, no attached engine produces a token.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable


class SharedDevice:
    """Shared placement of an engine and a trainer. Separate placement has none.

    Attributes:
        training_s: seconds that trainers held it.
        switch_s: seconds to change from generation to training, and again to change back.
    """

    def __init__(self, switch_s: float = 0.0) -> None:
        self.training_s = 0.0
        self.switch_s = switch_s
        self._lock = asyncio.Lock()
        self._engines: list[Callable[[bool], None]] = []

    def attach(self, on_hold: Callable[[bool], None]) -> None:
        """An engine learns that the device is taken (True) and given back (False)."""
        self._engines.append(on_hold)

    @contextlib.asynccontextmanager
    async def training(self) -> AsyncIterator[None]:
        """Holds the device; trainers wait for one another in order of arrival."""
        async with self._lock:
            loop = asyncio.get_running_loop()
            begin_s = loop.time()
            for on_hold in self._engines:
                on_hold(True)
            try:
                await asyncio.sleep(self.switch_s)
                yield
                await asyncio.sleep(self.switch_s)
            finally:
                self.training_s += loop.time() - begin_s
                for on_hold in self._engines:
                    on_hold(False)
