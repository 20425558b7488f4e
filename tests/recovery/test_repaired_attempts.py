"""What a repair makes of attempts in flight, of effects outside, of lost weights, and of what zombies were refused."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from recovery.test_checkpoint_cuts import UPDATES, restored
from recovery.test_repair import SIMULATION, Run, cut_off
from training_lab import Lab

from headrace.control.past import AttemptPast
from headrace.control.recovery import recover
from headrace.errors import StoreError
from headrace.records.action import ActionIntended, EffectClass
from headrace.records.batch import GroupRejected
from headrace.records.checkpoint import RecordQuarantined
from headrace.records.events import OrdinalState
from headrace.records.execution import EpisodeClaimed
from headrace.records.ids import Address, EpisodeId
from headrace.records.run import WorkerState, WorkerStateChanged
from headrace.records.trajectory import EpisodeStarted, TranscriptSealed
from headrace.runtime.repairing import describe, repair_run
from headrace.store import FileBlobs, InlineCommit, SqliteJournal, open_reader, verify_run
from headrace.store.sqlite import LOCK_NAME

EXTERNAL = dataclasses.replace(SIMULATION, effect=EffectClass.EXTERNAL)
ACTING = 22
"""A commit at which attempts in flight have acted already, in either simulation."""


def attempt_of(run: Run, *, is_sealed: bool) -> AttemptPast:
    """An attempt of an open training group with a committed action, sealed or in flight."""
    groups = recover(run.events()).groups.values()
    attempts = [item for group in groups for numbers in group.attempts.values() for item in numbers.values()]
    return next(item for item in attempts if (item.sealed is not None) is is_sealed and item.commits)


def lose(run: Run, address: Address | None) -> None:
    assert run.execute("DELETE FROM rows WHERE address = ? RETURNING kind", address)


def receipt_of(attempt: AttemptPast) -> Address:
    return next(iter(attempt.commits.values()))[1].receipt


def test_an_attempt_in_flight_that_lost_a_receipt_is_void_and_its_member_rolls_again(tmp_path: Path) -> None:
    run = cut_off(tmp_path / "run", SIMULATION, ACTING)
    attempt = attempt_of(run, is_sealed=False)
    before = len(run.events())
    lose(run, receipt_of(attempt))
    assert repair_run(run.folder).again == (str(attempt.episode),)
    events = run.finish("in flight")[before:]
    claimed = {event.key.partition("#")[0] for event in events if isinstance(event.payload, EpisodeClaimed)}
    sealed = {EpisodeId.parse(event.key) for event in events if isinstance(event.payload, TranscriptSealed)}
    member = [item for item in sealed if (item.group, item.member) == (attempt.episode.group, attempt.episode.member)]
    assert str(attempt.episode) not in claimed, "nobody goes on with the attempt"
    assert [item.attempt for item in member] == [attempt.episode.attempt + 1]
    assert verify_run(run.folder).problems == ()


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_group_whose_effects_are_outside_is_given_up_and_nothing_of_it_runs_again(
    tmp_path: Path, is_sealed: bool
) -> None:
    run = cut_off(tmp_path / "run", EXTERNAL, ACTING)
    attempt, before = attempt_of(run, is_sealed=is_sealed), len(run.events())
    lose(run, attempt.sealed.transcript if attempt.sealed is not None else receipt_of(attempt))
    report, group = repair_run(run.folder), attempt.episode.group
    assert (report.again, report.abandoned) == ((), (str(group),))
    assert f"GIVEN UP {group}: an effect outside must not happen twice" in describe(report, is_dry_run=False)[0]
    events = run.finish("given up", EXTERNAL)[before:]
    left = [event.payload for event in events if isinstance(event.payload, GroupRejected) and event.key == str(group)]
    assert [item.state for item in left] == [OrdinalState.ABANDONED.value]
    started = [event.key for event in events if isinstance(event.payload, EpisodeStarted)]
    intended = [event.payload.action.id.episode for event in events if isinstance(event.payload, ActionIntended)]
    assert group not in {EpisodeId.parse(key).group for key in started} | {episode.group for episode in intended}
    assert verify_run(run.folder).problems == ()


def test_a_run_that_lost_its_newest_weights_computes_them_again_on_the_real_trainer(
    trained: tuple[Path, list[Address], Address], lab: Lab, batch: list[Any]
) -> None:
    folder, weights, _ = trained
    blobs = FileBlobs(folder / "blobs")
    blobs.path(weights[-1]).unlink()
    report = repair_run(folder)
    assert report.cut_after is None
    with open_reader(folder) as reader:
        aside = [event.payload for event in reader.events() if isinstance(event.payload, RecordQuarantined)]
    assert [(item.address, item.record, item.episode) for item in aside] == [(weights[-1], "blob", None)]
    past, trainer, found, _ = restored(folder, lab, batch)
    assert (past.version, trainer.checkpoint, trainer.replayed, trainer.identical) == (UPDATES, UPDATES - 1, 1, 1)
    assert found == weights[-1]
    assert blobs.read(weights[-1]), "the same bytes are stored again"
    assert not repair_run(folder).has_damage


async def refused(folder: Path) -> None:
    """Two late writes of a process that was taken over without noticing."""
    zombie = SqliteJournal(folder, incarnation="zombie", runner=InlineCommit())
    (folder / LOCK_NAME).unlink()
    owner = SqliteJournal(folder, incarnation="owner", runner=InlineCommit())
    idle = WorkerStateChanged("engine", WorkerState.IDLE)
    zombie.append(idle, key="engine")
    with pytest.raises(StoreError, match="is fenced"):
        await zombie.durable(zombie.append(idle, key="engine"))
    zombie.abandon()
    await owner.close()


def test_what_zombies_were_refused_is_still_counted_after_a_repair(tmp_path: Path) -> None:
    run = cut_off(tmp_path / "run", SIMULATION, ACTING)
    asyncio.run(refused(run.folder))
    lose(run, receipt_of(attempt_of(run, is_sealed=False)))
    assert repair_run(run.folder).quarantine is not None
    with open_reader(run.folder) as reader:
        assert reader.late_writes() == {"worker_state_changed": 2}
