"""A simulated process dies at every commit of its journal, and another one goes on: nothing lost, nothing doubled."""

from collections import Counter
from typing import Any

import pytest
from control.simulated_runs import faultless, scenario
from recovery.crashes import all_events, broken_laws, config, consumed, count_commits, run_until, weights

from headrace.config import Config
from headrace.control.recovery import recover
from headrace.records.batch import BatchPlanned, GroupAdmitted, GroupRejected
from headrace.records.checkpoint import CheckpointWritten, RunResumed
from headrace.records.evaluation import EvaluationCompleted
from headrace.records.run import RunEnded
from headrace.records.task import TaskDrawn
from headrace.runtime.simulated import SimulatedDisk, Simulation, simulate

MODES: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync", "credit_batches": 0},
    "taking turns": {"mode": "colocate_async", "credit_batches": 1, "order": "ordinal"},
    "one step asynchronous": {"mode": "separate_async", "credit_batches": 1, "order": "ordinal"},
}
REQUEUE = {"mode": "separate_async", "staleness": "requeue", "max_lag": 1, "max_credit_batches": 3, "order": "ready"}
TINY = {"group_size": 2, "batch_groups": 2}


def small(mode: str, *, is_tiny: bool = True, is_faultless: bool = True, **sections: Any) -> Simulation:
    """Three updates of 2 x 2 episodes, or four of 3 x 3."""
    size: dict[str, Any] = {**MODES[mode], **(TINY if is_tiny else {})}
    sections.setdefault("run", {"updates": 3 if is_tiny else 4})
    workload = faultless() if is_faultless else scenario()
    return Simulation(config(size, **sections), workload, num_held_out=1 if is_tiny else 2)


def finish(simulation: Simulation, disk: SimulatedDisk) -> None:
    result = simulate(simulation, disk=disk)
    assert result.summary.reason == "completed"


def check(configured: Config, disk: SimulatedDisk, what: str) -> None:
    """Every law, every update once, every round once, and an end."""
    events, updates = all_events(disk), configured.run.updates
    assert broken_laws(configured, disk) == [], what
    assert events[-1].payload == RunEnded("completed", updates)
    planned = [event.payload.update for event in events if isinstance(event.payload, BatchPlanned)]
    assert planned == list(range(1, updates + 1)), what
    rounds = Counter(event.key for event in events if isinstance(event.payload, EvaluationCompleted))
    assert set(rounds.values()) == {1}
    assert len(rounds) == 2 * len({version for version in range(updates + 1) if version % 2 == 0 or version == updates})


def sweep(simulation: Simulation, step: int = 1) -> int:
    """Dies once at every `step`-th commit; the number of deaths."""
    deaths = range(1, count_commits(simulation) + 1, step)
    for dies_at in deaths:
        disk = SimulatedDisk()
        assert run_until(simulation, disk, dies_at) is None
        finish(simulation, disk)
        check(simulation.config, disk, f"died at commit {dies_at}")
    return len(deaths)


def test_a_crash_at_any_commit_breaks_no_law_and_the_run_completes() -> None:
    assert sweep(small("sync", is_faultless=False)) > 60


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("in_flight", ["resume", "reissue"])
def test_a_crash_at_every_seventh_commit_of_a_larger_run_breaks_no_law(mode: str, in_flight: str) -> None:
    simulation = small(mode, is_tiny=False, is_faultless=False, checkpoint={"in_flight": in_flight})
    assert sweep(simulation, step=7) > 20


def test_a_crash_loses_no_requeued_task_and_no_credit_that_was_found() -> None:
    configured = config({**REQUEUE, **TINY}, run={"updates": 5, "deterministic": False})
    simulation = Simulation(configured, faultless(), num_held_out=1)
    for dies_at in range(5, count_commits(simulation), 9):
        disk = SimulatedDisk()
        run_until(simulation, disk, dies_at)
        finish(simulation, disk)
        check(configured, disk, f"died at commit {dies_at}")
        events = all_events(disk)
        assert recover(events).credit_batches is not None
        (*_, rejected) = (
            event for event in events if isinstance(event.payload, GroupRejected) and event.payload.is_requeued
        )
        owed = recover(event for event in events if event.seq <= rejected.seq).requeued
        again = [
            event.payload for event in events if isinstance(event.payload, TaskDrawn) and event.payload.requeued_from
        ]
        assert [(str(group), task) for group, task in owed.items()][-1] == (rejected.key, list(owed.values())[-1])
        assert {item.requeued_from: item.task for item in again}.items() >= dict(list(owed.items())[:-1]).items()


@pytest.mark.parametrize("checkpoint", [{"every_updates": 1}, {"every_updates": 0}])
def test_a_resumed_synchronous_run_trains_what_the_uninterrupted_one_trains(checkpoint: dict[str, Any]) -> None:
    simulation = small("sync", checkpoint=checkpoint)
    whole = SimulatedDisk()
    finish(simulation, whole)
    expected = weights(all_events(whole)), consumed(all_events(whole), whole.storage.read)
    for dies_at in range(1, count_commits(simulation) + 1, 5):
        disk = SimulatedDisk()
        run_until(simulation, disk, dies_at)
        finish(simulation, disk)
        events = all_events(disk)
        assert (weights(events), consumed(events, disk.storage.read)) == expected, f"died at commit {dies_at}"


@pytest.mark.parametrize("first", [9, 30, 50])
def test_a_second_crash_during_recovery_changes_nothing(first: int) -> None:
    simulation = small("sync")
    whole = SimulatedDisk()
    finish(simulation, whole)
    for second in range(1, 8):
        disk = SimulatedDisk()
        run_until(simulation, disk, first)
        before = recover(all_events(disk))
        run_until(simulation, disk, second)
        if second == 1:
            # The second process died before its first commit: it left nothing, not even its name.
            assert recover(all_events(disk)) == before
        finish(simulation, disk)
        check(simulation.config, disk, f"died at commits {first} and {second}")
        assert weights(all_events(disk)) == weights(all_events(whole))


def test_a_run_that_dies_again_and_again_completes() -> None:
    simulation, disk = small("one step asynchronous", is_faultless=False), SimulatedDisk()
    deaths = 0
    while run_until(simulation, disk, 12) is None:
        deaths += 1
        assert deaths < 100
    assert deaths > 3
    check(simulation.config, disk, "died every 12 commits")
    resumed = [event.payload for event in all_events(disk) if isinstance(event.payload, RunResumed)]
    assert any(item.checkpoint is not None for item in resumed)
    assert all(item.identical == item.replayed for item in resumed)


def test_admission_after_a_restore_recounts_what_is_open() -> None:
    simulation = small("one step asynchronous")
    for dies_at in range(10, 60, 10):
        disk = SimulatedDisk()
        run_until(simulation, disk, dies_at)
        finish(simulation, disk)
        events = all_events(disk)
        assert max(e.payload.outstanding for e in events if isinstance(e.payload, GroupAdmitted)) <= 4
        drawn = [event.key for event in events if isinstance(event.payload, TaskDrawn)]
        assert len(drawn) == len(set(drawn)) == 6, "no extra task is drawn, and none twice"


def test_a_checkpoint_counts_what_a_recount_of_the_events_before_it_counts() -> None:
    simulation, disk = small("one step asynchronous", checkpoint={"every_updates": 1}), SimulatedDisk()
    finish(simulation, disk)
    events = all_events(disk)
    written = [event.payload for event in events if isinstance(event.payload, CheckpointWritten)]
    assert [item.update for item in written] == [1, 2, 3]
    for item in written:
        past = recover(event for event in events if event.seq <= item.last_seq)
        assert (item.drawn, item.open) == (past.frontier.drawn, past.frontier.open)
        assert item.lease_token == past.lease_token
        assert item.drawn == item.trained + item.filtered + item.abandoned + len(item.open)
        assert item.manifest.weights == past.weights[item.update]


@pytest.mark.parametrize("every_updates", [1, 2])
def test_weights_that_no_kept_checkpoint_no_round_and_no_recovery_needs_go_also_between_checkpoints(
    every_updates: int,
) -> None:
    settings = {"every_updates": every_updates, "keep_last": 1}
    simulation = small("sync", run={"updates": 4}, checkpoint=settings)
    disk = SimulatedDisk()
    finish(simulation, disk)
    made = weights(all_events(disk))
    held = [disk.shelf.holds(address) for address in made]
    assert held == [True, False, False, False, True], "where the run began, and the one kept checkpoint"
    commits = count_commits(simulation)
    for dies_at in range(commits // 2, commits + 1, 4):
        disk = SimulatedDisk()
        run_until(simulation, disk, dies_at)
        finish(simulation, disk)
        assert weights(all_events(disk)) == made
        assert [disk.shelf.holds(address) for address in made] == held
