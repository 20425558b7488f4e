"""The worker crashes after the tool has executed; the trainer crashes during weight sync. See docs/recovery.md."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from control.simulated_runs import faultless, with_faults
from recovery.crashes import (
    MortalStorage,
    all_events,
    broken_laws,
    config,
    consumed,
    run_until,
    weights,
)

from headrace.control.context import Ports
from headrace.control.past import RunPast
from headrace.control.recovery import recover
from headrace.errors import InferenceError, TrainerError
from headrace.records.action import ActionCommitted, ActionIntended, EffectClass
from headrace.records.checkpoint import RunResumed
from headrace.records.events import Event
from headrace.records.ids import ActionId, EpisodeId
from headrace.records.observation import ActionObserved
from headrace.records.run import RunEnded
from headrace.records.segment import TurnGenerated
from headrace.records.trajectory import TranscriptSealed
from headrace.records.update import UpdateCompleted, WeightsActivated, WeightsCommitted, WeightsStaged
from headrace.runtime.simulated import SimulatedDisk, Simulation, simulate
from headrace.simulation.environment import SimulatedEnvironment
from headrace.simulation.faults import Fault, FaultKind
from headrace.simulation.workload import Draws
from headrace.store.memory import MemoryStorage

SYNC = {"mode": "sync", "credit_batches": 0, "group_size": 2, "batch_groups": 2}
Adapt = Callable[[Ports], Ports]


def case(adapt: Adapt = lambda ports: ports, **sections: Any) -> Simulation:
    # Tools that take a second, so that a crash finds some of them at work.
    return Simulation(config(SYNC, run={"updates": 3}, **sections), faultless(), num_held_out=1, adapt=adapt)


def undisturbed() -> SimulatedDisk:
    disk = SimulatedDisk()
    simulate(case(), disk=disk)
    return disk


def times(events: list[Event], kind: type) -> Counter[str]:
    return Counter(event.key for event in events if isinstance(event.payload, kind))


def with_environment(effect: EffectClass, made: list[SimulatedEnvironment]) -> Adapt:
    """Replaces the environment of every life of the run by one of another class, and keeps it for a look at its effects."""

    def adapt(ports: Ports) -> Ports:
        environment = SimulatedEnvironment(Draws(faultless().workload, 7), effect=effect)
        made.append(environment)
        return dataclasses.replace(ports, environment=environment)

    return adapt


def deaths_where(simulation: Simulation, is_wanted: Callable[[RunPast], bool]) -> list[int]:
    """Commits whose loss leaves the run where it is wanted."""
    storage = MortalStorage(MemoryStorage())
    simulate(simulation, disk=SimulatedDisk(storage))
    events = list(storage.events(0))
    # Losing commit n leaves what the commits before it had written.
    return [
        number
        for number, end in enumerate([0, *storage.ends[:-1]], start=1)
        if is_wanted(recover(event for event in events[:end]))
    ]


def has_open_intent(past: RunPast) -> bool:
    return any(
        attempt.intents.keys() - attempt.commits.keys() for group in past.groups.values() for attempt in group.running()
    )


# --- the worker crashes after the tool has executed


def test_an_answer_lost_after_the_effect_is_found_by_a_probe_and_the_tool_runs_once() -> None:
    environments: list[SimulatedEnvironment] = []
    faults, injectors = with_faults(Fault(worker="environment", kind=FaultKind.LOSE, method="execute", call=3, times=4))

    def adapt(ports: Ports) -> Ports:
        assert isinstance(ports.environment, SimulatedEnvironment)
        environments.append(ports.environment)
        return faults(ports)

    disk = SimulatedDisk()
    simulate(case(adapt), disk=disk)
    assert injectors[0].is_spent
    assert set(environments[0].effects.values()) == {1}
    events = all_events(disk)
    assert times(events, ActionIntended) == times(events, ActionCommitted) == times(events, ActionObserved)
    whole = undisturbed()
    assert consumed(events, disk.storage.read) == consumed(all_events(whole), whole.storage.read)


def test_a_run_that_dies_between_the_effect_and_its_commit_ends_as_if_it_had_not() -> None:
    whole = undisturbed()
    deaths = deaths_where(case(), has_open_intent)
    assert deaths, "some crash falls between an INTENT and its COMMIT"
    for dies_at in deaths:
        environments: list[SimulatedEnvironment] = []
        simulation, disk = case(with_environment(EffectClass.PURE, environments)), SimulatedDisk()
        run_until(simulation, disk, dies_at)
        past = recover(all_events(disk))
        done = {action for group in past.groups.values() for attempt in group.running() for action in attempt.commits}
        simulate(simulation, disk=disk)
        events = all_events(disk)
        assert broken_laws(simulation.config, disk) == []
        assert set(times(events, ActionIntended).values()) == {1}, "an action is intended once, however often it runs"
        assert not done & environments[1].effects.keys(), "what was committed is never run again"
        assert weights(events) == weights(all_events(whole))
        resumed = [event.payload for event in events if isinstance(event.payload, RunResumed)]
        assert resumed[0].resumed > 0


def test_an_external_action_of_unknown_outcome_is_parked_and_nobody_runs_it_again() -> None:
    deaths = deaths_where(case(with_environment(EffectClass.EXTERNAL, [])), has_open_intent)
    assert deaths
    for dies_at in deaths[::3]:
        environments: list[SimulatedEnvironment] = []
        simulation, disk = case(with_environment(EffectClass.EXTERNAL, environments)), SimulatedDisk()
        run_until(simulation, disk, dies_at)
        past = recover(all_events(disk))
        touched = {
            (attempt.episode.group, attempt.episode.member)
            for group in past.groups.values()
            for attempt in group.running()
            if attempt.intents
        }
        simulate(simulation, disk=disk)
        assert broken_laws(simulation.config, disk) == []
        again = {(action.episode.group, action.episode.member) for action in environments[1].effects}
        assert touched
        assert not touched & again, "a member that may have changed the world outside does not act again"
        total: Counter[ActionId] = Counter()
        for environment in environments:
            total += environment.effects
        assert set(total.values()) == {1}


def test_in_an_environment_that_lost_its_state_the_member_starts_again_as_another_attempt() -> None:
    simulation = case(with_environment(EffectClass.RESETTABLE, []))
    dies_at = deaths_where(simulation, has_open_intent)[0]
    disk = SimulatedDisk()
    run_until(simulation, disk, dies_at)
    running = [a.episode for g in recover(all_events(disk)).groups.values() for a in g.running()]
    simulate(simulation, disk=disk)
    sealed = {event.key: event.payload for event in all_events(disk) if isinstance(event.payload, TranscriptSealed)}
    assert running
    for episode in running:
        assert sealed[str(episode)].terminal == "infra_error:run"
        assert str(EpisodeId(episode.group, episode.member, episode.attempt + 1)) in sealed
    assert broken_laws(simulation.config, disk) == []


# --- the trainer crashes during weight sync


def sampled_versions(events: list[Event]) -> list[int]:
    turns = [event.payload for event in events if isinstance(event.payload, TurnGenerated)]
    return [segment.policy.version for turn in turns for segment in turn.segments if segment.policy]


def test_a_trainer_that_dies_between_stage_and_commit_leaves_no_trace_of_the_version() -> None:
    whole = undisturbed()
    faults, _ = with_faults(Fault(worker="trainer", kind=FaultKind.CRASH, method="canary", call=3))
    disk = SimulatedDisk()
    with pytest.raises(TrainerError):
        simulate(case(faults), disk=disk)
    events = all_events(disk)
    ended = events[-1].payload
    assert isinstance(ended, RunEnded)
    assert ended.reason.startswith("failed")
    assert max(event.payload.policy.version for event in events if isinstance(event.payload, WeightsStaged)) == 2
    assert len(weights(events)) == 2, "version 2 was staged and never committed"
    assert max(sampled_versions(events)) == 1

    simulate(case(), disk=disk)
    events = all_events(disk)
    assert broken_laws(case().config, disk) == []
    assert weights(events) == weights(all_events(whole))
    for kind in (UpdateCompleted, WeightsStaged, WeightsCommitted, WeightsActivated):
        assert set(times(events, kind).values()) == {1}, "the number is used again, for the same content"
    assert consumed(events, disk.storage.read) == consumed(all_events(whole), whole.storage.read)


def test_a_version_that_was_committed_and_not_activated_is_rolled_forward() -> None:
    def is_between(past: RunPast) -> bool:
        return past.version > 0 and ("weights_activated", f"policy@{past.version}/engine") not in past.recorded

    deaths = deaths_where(case(), is_between)
    assert deaths
    whole = undisturbed()
    for dies_at in deaths:
        disk = SimulatedDisk()
        run_until(case(), disk, dies_at)
        version = recover(all_events(disk)).version
        simulate(case(), disk=disk)
        events = all_events(disk)
        assert broken_laws(case().config, disk) == []
        activated = [event for event in events if isinstance(event.payload, WeightsActivated)]
        assert [event.payload.policy.version for event in activated] == [0, 1, 2, 3]
        assert activated[version].epoch == 2
        assert weights(events) == weights(all_events(whole))


@pytest.mark.parametrize("kind", [FaultKind.REJECT, FaultKind.LOSE])
@pytest.mark.parametrize(
    ("method", "exists"), [("stage", False), ("score", False), ("activate", True)], ids=["stage", "canary", "activate"]
)
def test_a_publication_that_the_engine_breaks_off_is_undone_before_its_commit_and_completed_after_it(
    method: str, exists: bool, kind: FaultKind
) -> None:
    whole, disk = undisturbed(), SimulatedDisk()
    faults, _ = with_faults(Fault(worker="inference", kind=kind, method=method, call=3))
    with pytest.raises(InferenceError):
        simulate(case(faults), disk=disk)
    events = all_events(disk)
    assert len(weights(events)) == (3 if exists else 2), "versions 0 and 1, and 2 if its commit came before the fault"
    assert max(sampled_versions(events)) == 1

    simulate(case(), disk=disk)
    events = all_events(disk)
    assert broken_laws(case().config, disk) == []
    assert weights(events) == weights(all_events(whole))
    assert set(times(events, WeightsCommitted).values()) == {1}
    assert consumed(events, disk.storage.read) == consumed(all_events(whole), whole.storage.read)


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_replays_more() -> None:
    settings = {"checkpoint": {"every_updates": 1}}
    disk = SimulatedDisk()
    storage = MortalStorage(MemoryStorage())
    simulate(case(**settings), disk=SimulatedDisk(storage))
    # The last commits are the end of the run: die shortly before it.
    run_until(case(**settings), disk, storage.commits - 1)
    past = recover(all_events(disk))
    assert len(past.checkpoints) >= 2
    newest, before = past.checkpoints[-1], past.checkpoints[-2]
    disk.shelf.remove(newest.manifest.weights)
    simulate(case(**settings), disk=disk)
    (resumed,) = [event.payload for event in all_events(disk) if isinstance(event.payload, RunResumed)]
    assert resumed.checkpoint == before.update
    assert resumed.replayed == past.version - before.update
    assert resumed.identical == resumed.replayed
