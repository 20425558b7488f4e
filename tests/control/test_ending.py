"""How a run ends when it is told to, or when a part of it fails: nothing of it happens after it says so."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, cast

import pytest
from control.simulated_runs import MODES, config, faultless

from headrace.control.context import Ports
from headrace.ports import Inference, TurnTiming
from headrace.records.events import Event
from headrace.records.run import RunEnded
from headrace.records.segment import GenerateRequest, TokenSegment
from headrace.runtime.simulated import Simulation, simulate

CALL = 24


class LeavingTakesTime:
    """An engine that answers each request that leaves it at a time of its own, as a real one does."""

    def __init__(self, inner: Inference, at_call: Callable[[], object]) -> None:
        self._inner, self._at_call = inner, at_call
        self._calls = self._left = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def generate(self, request: GenerateRequest, timeout_s: float) -> AsyncIterator[TokenSegment | TurnTiming]:
        self._calls += 1
        if self._calls == CALL:
            self._at_call()
        turn = cast("AsyncGenerator[TokenSegment | TurnTiming]", self._inner.generate(request, timeout_s))
        is_running = True
        try:
            async with contextlib.aclosing(turn) as parts:
                async for part in parts:
                    yield part
            is_running = False
        finally:
            if is_running:
                self._left += 1
                await asyncio.sleep(0.01 * self._left)


def fail() -> None:
    raise RuntimeError("a defect")


@pytest.mark.parametrize(
    ("held_out", "is_told", "error", "reason"),
    [
        (0, True, asyncio.CancelledError, "stopped"),
        (30, True, asyncio.CancelledError, "stopped"),
        (0, False, RuntimeError, "failed: RuntimeError: a defect"),
        (30, False, RuntimeError, "failed: RuntimeError: a defect"),
    ],
)
def test_the_end_is_the_last_event_however_long_requests_take_to_leave_the_engine(
    held_out: int, is_told: bool, error: type[BaseException], reason: str
) -> None:
    """With held-out tasks it is a round of them that ends, without them groups."""

    def adapt(ports: Ports) -> Ports:
        main = cast("asyncio.Task[Any]", asyncio.current_task())
        at_call = main.cancel if is_told else fail
        return dataclasses.replace(ports, inference=LeavingTakesTime(ports.inference, at_call))

    events: list[Event] = []
    configured = config(MODES["one step asynchronous"], evaluation={"every_updates": 1})
    run = Simulation(configured, faultless(), num_held_out=held_out, adapt=adapt)
    with pytest.raises(error):
        simulate(run, (events.append,))
    assert events[-1].payload == RunEnded(reason, 0)
