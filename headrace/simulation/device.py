"""A device that generation and training take turns on, or cores that both want at the same time.

Invariant: while a trainer holds the device, attached engines produce tokens at the share of their rate that it leaves them:
none where they take turns. Either each of its calls takes the device, or the control plane takes it for a whole turn, in
which calls cost no switch of their own.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable


class SharedDevice:
    """Shared placement of an engine and a trainer. Separate placement has none.

    Attributes:
        training_s: seconds that trainers held it.
        switch_s: seconds to change from generation to training, and again to change back.
        left: share of its rate that generation keeps while a trainer computes.
    """

    def __init__(self, switch_s: float = 0.0, left: float = 0.0) -> None:
        self.training_s = 0.0
        self.switch_s = switch_s
        self.left = left
        self._lock = asyncio.Lock()
        self._engines: list[Callable[[float], None]] = []
        self._turn: contextlib.AsyncExitStack | None = None

    def attach(self, on_share: Callable[[float], None]) -> None:
        """An engine learns what share of its rate it has from now on."""
        self._engines.append(on_share)

    async def begin_turn(self) -> None:
        """Takes the device for several calls of a trainer; nothing when it is taken so already."""
        if self._turn is None:
            turn = contextlib.AsyncExitStack()
            await turn.enter_async_context(self._held())
            self._turn = turn

    async def end_turn(self) -> None:
        """Gives it back to generation."""
        turn, self._turn = self._turn, None
        if turn is not None:
            await turn.aclose()

    @contextlib.asynccontextmanager
    async def training(self) -> AsyncIterator[None]:
        """One call of a trainer; trainers wait for one another in order of arrival."""
        async with contextlib.nullcontext() if self._turn is not None else self._held():
            yield

    @contextlib.asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        async with self._lock:
            loop = asyncio.get_running_loop()
            begin_s = loop.time()
            for on_share in self._engines:
                on_share(self.left)
            try:
                await asyncio.sleep(self.switch_s)
                yield
                await asyncio.sleep(self.switch_s)
            finally:
                self.training_s += loop.time() - begin_s
                for on_share in self._engines:
                    on_share(1.0)
