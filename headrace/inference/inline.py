"""The Inference port over an engine core that runs on the event loop itself, charging loop time for its work.

Invariant: what a run does is a function of the order of calls and of the cost model, never of how fast this machine is;
under a virtual-time loop it is bit-exact. One operation of the engine runs at a time, and weights change between steps.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from headrace.errors import InferenceError
from headrace.inference.core import EngineCore
from headrace.inference.stats import EngineStats
from headrace.inference.turns import Failure, Output, StepWork
from headrace.ports import TurnTiming
from headrace.records.arrays import Float32Bytes, IntArray, float32_bytes
from headrace.records.ids import Address, PolicyRef
from headrace.records.segment import GenerateRequest, TokenSegment
from headrace.records.update import Activation, Standstill

_Item = TokenSegment | TurnTiming | Failure | BaseException


class InlineInference:
    """An engine core as `ports.Inference`.

    `cost_s` gives the seconds that a step or a scoring takes; the core's clock should be the loop's. Its owner calls
    `close` at the end.
    """

    def __init__(self, core: EngineCore, cost_s: Callable[[StepWork], float]) -> None:
        self._core = core
        self._cost_s = cost_s
        self._is_free = asyncio.Lock()
        self._arrived: dict[str, asyncio.Queue[_Item]] = {}
        self._driver: asyncio.Task[None] | None = None

    async def generate(self, request: GenerateRequest, timeout_s: float) -> AsyncIterator[TokenSegment | TurnTiming]:
        deadline = asyncio.get_running_loop().time() + timeout_s
        self._core.submit(request)
        items: asyncio.Queue[_Item] = asyncio.Queue()
        self._arrived[request.request_id] = items
        self._drive()
        is_running = True
        try:
            while is_running:
                # The deadline is renewed for each item: it must not fire while the consumer holds one.
                async with asyncio.timeout_at(deadline):
                    item = await items.get()
                is_running = isinstance(item, TokenSegment)
                if isinstance(item, Failure):
                    raise InferenceError(item.message)
                if isinstance(item, BaseException):
                    raise item
                yield item
        except TimeoutError:
            raise InferenceError(f"{request.request_id}: not finished within {timeout_s} s") from None
        finally:
            del self._arrived[request.request_id]
            if is_running:
                self._core.abandon((request.request_id,))

    async def interrupt(self, request_ids: Sequence[str], timeout_s: float) -> None:
        self._core.interrupt(request_ids)
        self._drive()

    async def stage(self, policy: PolicyRef, weights: Address, timeout_s: float) -> None:
        async with self._between_steps(timeout_s):
            self._core.stage(policy, weights)

    async def activate(self, policy: PolicyRef, keep: frozenset[int], timeout_s: float) -> Activation:
        async with self._between_steps(timeout_s):
            return self._core.activate(policy, keep)

    async def score(self, ids: Sequence[IntArray], version: int, timeout_s: float) -> list[Float32Bytes]:
        async with self._between_steps(timeout_s):
            scores = self._core.score(ids, version)
            await asyncio.sleep(self._cost_s(self._core.last_work))
        return [float32_bytes(score) for score in scores]

    async def pause(self, timeout_s: float) -> Standstill:
        async with self._between_steps(timeout_s):
            return self._core.pause()

    async def resume(self, timeout_s: float) -> Standstill:
        async with self._between_steps(timeout_s):
            standstill = self._core.resume()
        self._drive()
        return standstill

    async def stats(self, timeout_s: float) -> EngineStats:
        """Where time went and what was done since the start."""
        return self._core.stats()

    async def close(self) -> None:
        """Stops; running requests fail as lost."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.cancel()
            await asyncio.gather(driver, return_exceptions=True)
        self._break(InferenceError("the engine was closed"))

    @contextlib.asynccontextmanager
    async def _between_steps(self, timeout_s: float) -> AsyncIterator[None]:
        """The engine between two steps, within the deadline."""
        try:
            async with asyncio.timeout(timeout_s), self._is_free:
                yield
        except TimeoutError:
            raise InferenceError(f"the engine did not get to it within {timeout_s} s") from None

    def _drive(self) -> None:
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._run(), name="inference: engine")
            self._driver.add_done_callback(self._on_end)

    async def _run(self) -> None:
        """Steps while there is work."""
        while not self._core.is_idle:
            async with self._is_free:
                outputs = self._core.step()
                cost_s = self._cost_s(self._core.last_work)
                await asyncio.sleep(cost_s)
            for output in outputs:
                self._hand_out(output, cost_s)

    def _hand_out(self, output: Output, cost_s: float) -> None:
        items = self._arrived.get(output.request_id)
        if items is None:
            return
        item = output.item
        if isinstance(item, TurnTiming):
            # The core stamps the end of a turn before its last step is charged, and cannot time what the model costs.
            item = msgspec.structs.replace(item, generate_s=item.generate_s + cost_s, compute=None)
        items.put_nowait(item)

    def _on_end(self, driver: "asyncio.Task[None]") -> None:
        if not driver.cancelled() and (error := driver.exception()) is not None:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        for items in self._arrived.values():
            items.put_nowait(error)
