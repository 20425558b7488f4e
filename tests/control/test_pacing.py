"""The rate limit of the service behind the tools: fair, bounded by the episode's own time, and seen in the log."""

import asyncio
import dataclasses
import itertools
from collections.abc import Coroutine
from typing import Any, cast

import msgspec
import pytest
from control.simulated_runs import config, faultless, payloads, run, with_budget, with_faults

from headrace.control.context import Ports
from headrace.control.pacing import ServiceTurns
from headrace.ports import Environment
from headrace.records.action import ActionIntended
from headrace.records.execution import Receipt
from headrace.records.trajectory import SideRecord, TranscriptSealed
from headrace.reporting.report import report_run
from headrace.runtime.simulated import SimulatedDisk, Simulation, simulate
from headrace.simulation.faults import Fault, FaultKind
from headrace.simulation.laws import Constant
from headrace.simulation.loop import run_virtual
from headrace.simulation.scenario import Scenario
from headrace.store.memory import MemoryJournal

CALLS_PER_S = 0.5
AHEAD = {"mode": "separate_async", "credit_batches": 1}


def limited(calls_per_s: float | None = CALLS_PER_S) -> Scenario:
    """Episodes of three turns and two calls before a service with a rate limit."""
    return msgspec.structs.replace(faultless(turns=Constant(value=3.0)), external_calls_per_s=calls_per_s)


def test_turns_are_given_in_order_and_one_that_is_given_up_delays_nobody() -> None:
    async def main() -> None:
        service, ends = ServiceTurns(CALLS_PER_S), dict[str, tuple[float | None, float]]()
        loop = asyncio.get_running_loop()

        async def call(name: str, timeout_s: float | None) -> None:
            waited_s = await service.turn(timeout_s)
            ends[name] = (waited_s, loop.time())

        bounds = {"first": 9.0, "out of time": 1.0, "cancelled": None, "last": 9.0}
        calls = {name: asyncio.create_task(call(name, bound)) for name, bound in bounds.items()}
        await asyncio.sleep(0.5)
        calls["cancelled"].cancel()
        await asyncio.gather(*calls.values(), return_exceptions=True)
        assert ends == {"first": (0.0, 0.0), "out of time": (None, 1.0), "last": (2.0, 2.0)}
        await asyncio.sleep(100.0)
        assert [await service.turn(9.0) for _ in range(3)] == [0.0, 2.0, 2.0], "idle time is not saved up"

    run_virtual(main())


def test_the_calls_of_all_episodes_begin_as_far_apart_as_the_service_asks_and_in_the_order_of_asking() -> None:
    result = run(AHEAD, of=limited(), updates=2)
    intended = [
        (event.t_ns / 1e9, event.payload.wait_s) for event in result.events if isinstance(event.payload, ActionIntended)
    ]
    times = [t_s for t_s, _ in intended]
    assert min(after - before for before, after in itertools.pairwise(times)) >= 1 / CALLS_PER_S - 1e-6
    asked = [t_s - wait_s for t_s, wait_s in intended]
    assert all(after >= before - 1e-6 for before, after in itertools.pairwise(asked))
    assert max(wait_s for _, wait_s in intended) > 10 / CALLS_PER_S


def test_a_call_that_is_tried_again_waits_its_turn_again() -> None:
    begun = list[float]()

    class Timed:
        def __init__(self, inner: Environment) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

        def execute(self, *call: Any) -> Coroutine[Any, Any, Receipt]:
            begun.append(asyncio.get_running_loop().time())
            return self._inner.execute(*call)

    adapt, injected = with_faults(Fault(worker="environment", kind=FaultKind.REJECT, method="execute", call=2))

    def timed(ports: Ports) -> Ports:
        faulty = adapt(ports)
        return dataclasses.replace(faulty, environment=cast("Environment", Timed(faulty.environment)))

    result = run(AHEAD, of=limited(), updates=1, adapt=timed)
    assert injected[0].is_spent
    assert len(begun) == len(payloads(result, ActionIntended)) + 1
    assert min(after - before for before, after in itertools.pairwise(begun)) >= 1 / CALLS_PER_S - 1e-6


def test_an_episode_whose_time_ends_in_the_queue_is_cut_short_and_has_called_nothing_more() -> None:
    of = limited()
    budget = with_budget(of, wall_s=20.0, turn_tokens=10_000, episode_tokens=100_000)
    result = run(AHEAD, of=of, updates=1, adapt=budget)
    ends = {event.key: event.payload.terminal for event in result.events if isinstance(event.payload, TranscriptSealed)}
    cut = {key for key, terminal in ends.items() if terminal == "truncated:wall_s"}
    starved = cut - {str(payload.action.id.episode) for payload in payloads(result, ActionIntended)}
    assert starved, ends


def test_the_wait_is_a_stage_of_the_report_and_a_part_of_each_episode_s_time() -> None:
    disk = SimulatedDisk()
    simulate(Simulation(config(AHEAD, updates=2), limited()), disk=disk)
    journal = MemoryJournal(disk.storage)
    events = list(journal.events())
    waits_s = [event.payload.wait_s for event in events if isinstance(event.payload, ActionIntended)]
    sides = [
        msgspec.msgpack.decode(journal.read(event.payload.side), type=SideRecord)
        for event in events
        if isinstance(event.payload, TranscriptSealed)
    ]
    (row,) = [row for row in report_run(events, journal.read).stages.waits if row.stage == "external service"]
    assert (row.left, row.total_s) == (len(waits_s), pytest.approx(sum(waits_s)))
    for side in sides:
        spent_s = side.service_s + side.tool_s + side.generate_s + side.wait_s
        assert 0.0 < side.service_s < side.wall_s
        assert spent_s <= side.wall_s + 1e-6


def test_without_a_limit_no_call_waits() -> None:
    result = run(AHEAD, of=limited(None), updates=1)
    assert {payload.wait_s for payload in payloads(result, ActionIntended)} == {0.0}
