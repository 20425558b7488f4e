"""`colocate_async`: generation and training take turns on the same devices."""

import dataclasses
from itertools import pairwise

import msgspec
import pytest
from control.simulated_runs import MODES, faultless, payloads, run

from headrace.control.context import Ports
from headrace.errors import InvariantViolated
from headrace.ports import Inference
from headrace.records.batch import BatchPlanned
from headrace.records.events import Event
from headrace.records.run import WorkerState, WorkerStateChanged
from headrace.records.segment import TurnGenerated
from headrace.records.update import GenerationPaused, GenerationResumed, Standstill, UpdateCompleted, WeightsCommitted
from headrace.simulation.scenario import Scenario

TURNS = MODES["taking turns"]
SWITCH_S = 0.75


def shared() -> Scenario:
    return msgspec.structs.replace(faultless(), switch_s=SWITCH_S)


def states(events: tuple[Event, ...], worker: str) -> list[tuple[float, float, WorkerState]]:
    """Stretches of one worker's time: begin, end, state."""
    changes = [
        (event.t_ns / 1e9, event.payload.state)
        for event in events
        if isinstance(event.payload, WorkerStateChanged) and event.payload.worker == worker
    ]
    ends = [*(begin for begin, _ in changes[1:]), events[-1].t_ns / 1e9]
    return [(begin, end, state) for (begin, state), end in zip(changes, ends, strict=True)]


def test_the_engine_is_paused_whenever_the_trainer_updates() -> None:
    result = run(TURNS, of=shared())
    engine, trainer = states(result.events, "engine"), states(result.events, "trainer")
    for begin, end, state in trainer:
        if state is WorkerState.BUSY:
            overlaps = {other for first, last, other in engine if first < end and last > begin and last > first}
            assert overlaps == {WorkerState.PAUSED}
    assert sum(end - begin for begin, end, _ in engine) == pytest.approx(result.events[-1].t_ns / 1e9, abs=1e-6)


def test_no_token_is_computed_in_the_trainers_turn_and_the_switch_is_metered() -> None:
    result = run(TURNS, of=shared())
    begun, ended = payloads(result, GenerationPaused), payloads(result, GenerationResumed)
    assert [turn.update for turn in begun] == [turn.update for turn in ended] == [1, 2, 3, 4]
    assert [turn.computed_tokens for turn in begun] == [turn.computed_tokens for turn in ended]
    assert all(turn.computed_tokens < later.computed_tokens for turn, later in pairwise(begun))
    assert [turn.switch_s for turn in (*begun, *ended)] == pytest.approx([SWITCH_S] * 8)
    assert max(turn.running for turn in begun) > 0


def test_a_turn_that_stood_still_goes_on_under_the_new_version() -> None:
    result = run(TURNS, of=shared())
    spans = [
        [segment.policy.version for segment in turn.segments if segment.policy]
        for turn in payloads(result, TurnGenerated)
    ]
    assert any(len(set(versions)) > 1 for versions in spans)
    assert all(versions == sorted(versions) for versions in spans)
    assert max(plan.max_span for plan in payloads(result, BatchPlanned)) >= 1


def test_it_trains_as_much_as_the_other_modes() -> None:
    for schedule in (MODES["sync"], TURNS, MODES["one step asynchronous"]):
        result = run(schedule, of=shared())
        assert [item.result.version for item in payloads(result, UpdateCompleted)] == [1, 2, 3, 4]
        assert [item.policy.version for item in payloads(result, WeightsCommitted)] == [0, 1, 2, 3, 4]


def test_turns_cost_what_they_last_and_separate_devices_do_not_wait() -> None:
    turns, separate = run(TURNS, of=shared()), run(MODES["one step asynchronous"], of=shared())
    held_s = sum(turn.held_s for turn in payloads(turns, GenerationResumed))
    assert held_s > 0
    assert turns.makespan_s > separate.makespan_s


class _Restless:
    """An engine that goes on while it says that it stands still."""

    def __init__(self, inner: Inference) -> None:
        self._inner = inner
        self._computed = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def pause(self, timeout_s: float) -> Standstill:
        return await self.resume(timeout_s)

    async def resume(self, timeout_s: float) -> Standstill:
        self._computed += 5
        return Standstill("engine", 1, self._computed)


def test_an_engine_that_computes_in_the_trainers_turn_stops_the_run() -> None:
    def adapt(ports: Ports) -> Ports:
        return dataclasses.replace(ports, inference=_Restless(ports.inference))

    with pytest.raises(InvariantViolated, match="computed 5 tokens in"):
        run(TURNS, of=shared(), adapt=adapt)
