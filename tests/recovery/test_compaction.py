"""A compaction drops settled work by name: figures, laws and the way on stay, whatever it is cut off by."""

import dataclasses
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from control.test_trained_again import ASYNC
from control.test_trained_again import simulation as trains_again
from recovery.crashes import consumed, weights
from recovery.test_repair import Run
from recovery.test_simulated_crashes import small

from headrace.cli import main
from headrace.control.recovery import recover
from headrace.errors import ConfigError, IntegrityError, StoreError
from headrace.harness.chatml import ASSETS
from headrace.planning.samples import Samples
from headrace.records.compaction import RunCompacted
from headrace.records.events import Event
from headrace.records.ids import Address, EpisodeId, Purpose
from headrace.records.segment import TurnGenerated
from headrace.records.trajectory import TranscriptSealed
from headrace.reporting.report import report_run
from headrace.runtime.compacting import compact_run
from headrace.runtime.exporting import export_trajectories
from headrace.runtime.repairing import repair_run
from headrace.runtime.simulated import SimulatedDisk, Simulation, simulate
from headrace.simulation.weights import WeightShelf
from headrace.store import open_reader, verify_run
from headrace.store.faulty import DiskLog, FaultyVFS, Leaves, write_image
from headrace.store.schema import FILE_NAME
from headrace.store.sqlite import SqliteStorage, WriterLock


def simulation(updates: int) -> Simulation:
    made = small("sync", checkpoint={"every_updates": 1, "keep_last": 2}, run={"updates": updates})
    return dataclasses.replace(made, is_checked=False)  # `verify_run` checks the laws of the whole log


def store(folder: Path, of: Simulation) -> Run:
    """The run, complete, on a real disk."""
    storage, shelf = SqliteStorage(folder), WeightShelf()
    simulate(of, disk=SimulatedDisk(storage, shelf))
    storage.close()
    return Run(folder, shelf)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four updates and their held-out rounds."""
    return store(tmp_path_factory.mktemp("whole") / "run", simulation(4))


@pytest.fixture
def run(whole: Run, tmp_path: Path) -> Run:
    return whole.copy(tmp_path / "run")


def figures(folder: Path) -> tuple[bytes, Any]:
    """The report, byte for byte, and what `headrace plan` samples of the run."""
    with open_reader(folder) as reader:
        samples = Samples(reader.read, first=1)
        for event in reader.events():
            samples.observe(event)
        report = report_run(reader.events(), reader.read, reader.late_writes())
    assert samples.episodes
    return msgspec.json.encode(report), {name: value for name, value in vars(samples).items() if name != "_read"}


def contents(run: Run) -> tuple[Any, Any]:
    """Every line of the journal."""
    return run.execute("SELECT * FROM events ORDER BY seq"), run.execute("SELECT * FROM rows ORDER BY address")


def sealed(events: list[Event]) -> dict[EpisodeId, Address]:
    return {
        EpisodeId.parse(event.key): event.payload.transcript
        for event in events
        if isinstance(event.payload, TranscriptSealed)
    }


def whole_updates(run: Run) -> set[int]:
    """Updates whose planned transcripts are all stored."""
    past = recover(run.events())
    with open_reader(run.folder) as reader:
        plans = {
            update: consumed([event for event in run.events() if event.key == str(update)], reader.read)
            for update in past.plans
        }
        return {update for update, plan in plans.items() if all(reader.has_row(Address(item)) for item in plan)}


def test_old_work_goes_by_name_and_every_figure_and_law_stays(run: Run) -> None:
    before, size = figures(run.folder), (run.folder / FILE_NAME).stat().st_size
    planned = compact_run(run.folder, keep_updates=1, is_dry_run=True)
    assert whole_updates(run) == {1, 2, 3, 4}, "a dry run drops nothing"
    done = compact_run(run.folder, keep_updates=1)
    assert (done.update, done.records, done.turns) == (3, planned.records, planned.turns)
    assert whole_updates(run) == {4}
    assert figures(run.folder) == before
    found = verify_run(run.folder)
    assert found.problems == ()
    assert found.counts["dropped"] == sum(count for count, _ in done.records.values()) > 12
    assert (run.folder / FILE_NAME).stat().st_size == done.left_bytes < size
    (told,) = (event.payload for event in run.events() if isinstance(event.payload, RunCompacted))
    assert told.records == {kind: count for kind, (count, _) in done.records.items()}
    with open_reader(run.folder) as reader:
        held_out = [address for episode, address in sealed(run.events()).items() if episode.purpose is Purpose.EVAL]
        assert held_out
        assert all(map(reader.has_row, held_out)), "held-out episodes stay whole"
        short = {
            event.payload.episode
            for event in run.events()
            if isinstance(event.payload, TurnGenerated) and event.payload.shortened
        }
        gone = {episode for episode, address in sealed(run.events()).items() if address in reader.drops()}
    assert short == gone, "exactly the turns of dropped transcripts have no tokens"


def test_a_second_compaction_does_nothing_and_a_later_one_goes_on(run: Run) -> None:
    compact_run(run.folder, keep_updates=2)
    before, stored = figures(run.folder), contents(run)
    again = compact_run(run.folder, keep_updates=2)
    assert (again.records, again.turns) == ({}, 0)
    assert contents(run) == stored
    assert compact_run(run.folder, keep_updates=1).records["transcript"][0] == 4
    assert figures(run.folder) == before
    assert verify_run(run.folder).problems == ()
    assert not repair_run(run.folder).has_damage


def test_a_compacted_run_goes_on_as_if_nothing_had_gone(run: Run, tmp_path: Path) -> None:
    expected = store(tmp_path / "undisturbed", simulation(5))
    assert compact_run(run.folder, keep_updates=0).held_by.startswith(
        "a resumed run may load the checkpoint of update 3"
    )
    assert whole_updates(run) == {4}, "the plan of update 4 may be computed again"
    events = run.finish("resumed", simulation(5))
    with open_reader(run.folder) as reader, open_reader(expected.folder) as other:
        assert consumed(events, reader.read) == consumed(expected.events(), other.read)
    assert weights(events) == weights(expected.events())
    assert verify_run(run.folder).problems == ()
    compact_run(run.folder, keep_updates=1)
    assert whole_updates(run) == {5}
    assert verify_run(run.folder).problems == ()


def test_groups_that_may_train_again_stay(tmp_path: Path) -> None:
    schedule = {**ASYNC, "group_size": 2, "batch_groups": 2}
    checkpoint = {"every_updates": 1, "keep_last": 1}
    run = store(tmp_path / "run", trains_again(schedule, checkpoint=checkpoint, updates=4))
    before = figures(run.folder)
    assert compact_run(run.folder, keep_updates=0).records["transcript"][0] > 0
    past = recover(run.events(), keeps_trained=True)
    assert past.trained
    kept = {
        attempt.sealed.transcript
        for group in past.trained.values()
        for attempts in group.attempts.values()
        for attempt in attempts.values()
        if attempt.sealed is not None
    }
    with open_reader(run.folder) as reader:
        assert all(map(reader.has_row, kept))
    assert figures(run.folder) == before
    more = trains_again(schedule, checkpoint=checkpoint, updates=5)
    simulate(more, disk=SimulatedDisk(SqliteStorage(run.folder), run.shelf))
    assert verify_run(run.folder).problems == ()


def test_without_a_checkpoint_nothing_goes_and_the_reason_is_said(tmp_path: Path) -> None:
    run = store(tmp_path / "run", small("sync", checkpoint={"every_updates": 0}))
    stored = contents(run)
    found = compact_run(run.folder, keep_updates=0)
    assert (found.update, found.records, found.turns) == (0, {}, 0)
    assert found.held_by == "no checkpoint verifies, so a resumed run would compute every plan again"
    assert contents(run) == stored


@pytest.fixture
def log() -> DiskLog:
    return DiskLog()


@pytest.fixture
def vfs(log: DiskLog) -> Iterator[str]:
    found = FaultyVFS("compacting", log)
    yield "compacting"
    found.unregister()


def test_a_cut_at_any_step_leaves_a_sound_run_and_a_second_pass_ends_it(
    run: Run, log: DiskLog, vfs: str, tmp_path: Path
) -> None:
    before, events = figures(run.folder), run.events()
    log.open(run.folder / FILE_NAME)
    begin = len(log.operations)
    done = compact_run(run.folder, keep_updates=1, vfs=vfs)
    outcomes, step = set[bool](), max(1, (len(log.operations) - begin) // 8)
    for count in range(begin, len(log.operations) + 1, step):
        leaves = list(Leaves)[count // step % len(Leaves)]
        image = tmp_path / str(count)
        write_image(log.crashed(count, leaves, random.Random(count)), run.folder, image)
        assert verify_run(image).problems == (), (count, leaves)
        assert figures(image) == before
        again = compact_run(image, keep_updates=1)
        outcomes.add(bool(again.records))
        assert again.records in ({}, done.records), "all of it went, or nothing"
        assert again.left_bytes == done.left_bytes
        assert verify_run(image).problems == ()
    assert outcomes == {True, False}
    assert len(events) + 1 == len(run.events())


def test_what_was_dropped_is_refused_with_when_and_why(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copy(ASSETS / "tokenizer.json", run.folder)
    before = export_trajectories(run.folder, "atif", "train", tmp_path / "before.jsonl")
    assert main(["compact", str(run.folder), "--keep-updates", "1"]) == 0
    told = capsys.readouterr().out
    assert "4 updates; groups up to update 3: " in told
    assert "12 transcripts of " in told
    for command in ("show", "replay"):
        assert main([command, "train.0.0.0", "--run", str(run.folder)]) == 1
        error = capsys.readouterr().err
        assert " was dropped by `headrace compact` at 20" in error
        assert "kept the newest 1 updates whole; only a copy of the run from before has its " in error
    after = export_trajectories(run.folder, "atif", "train", tmp_path / "after.jsonl")
    assert int(before.split()[0]) - int(after.split()[0]) == 12
    assert "; 12 more were dropped by `headrace compact`" in after
    stayed = (tmp_path / "after.jsonl").read_text().splitlines()
    assert [line for line in (tmp_path / "before.jsonl").read_text().splitlines() if line in stayed] == stayed


def test_what_is_damaged_or_missing_is_still_told_from_what_was_dropped(run: Run) -> None:
    compact_run(run.folder, keep_updates=1)
    counted = verify_run(run.folder).counts["dropped"]
    ((address,),) = run.execute("SELECT address FROM rows WHERE kind = 'transcript' ORDER BY rowid DESC LIMIT 1")
    run.execute("DELETE FROM rows WHERE address = ?", address)
    found = verify_run(run.folder)
    assert found.counts["dropped"] == counted
    assert any(f"names {address}, which is neither a row nor a blob" in item.message for item in found.problems)
    assert {item.where for item in repair_run(run.folder).findings} == {f"transcript {address}"}
    assert verify_run(run.folder).problems == ()
    assert verify_run(run.folder).counts["dropped"] == counted, "a repair keeps what says what was dropped"


def test_a_lost_list_is_named_and_set_aside_with_what_it_named(run: Run) -> None:
    compact_run(run.folder, keep_updates=1)
    run.execute("DELETE FROM rows WHERE kind = 'compaction'")
    assert any("dropped is gone; see `headrace repair" in item.message for item in verify_run(run.folder).problems)
    report = repair_run(run.folder)
    assert (report.cut_after, report.again, report.obstacles) == (None, (), ())
    assert verify_run(run.folder).problems == ()


def test_nothing_goes_from_a_live_run_or_one_that_is_damaged(run: Run) -> None:
    stored = contents(run)
    lock = WriterLock(run.folder)
    with pytest.raises(StoreError, match="is being written already"):
        compact_run(run.folder, keep_updates=1)
    lock.release()
    with pytest.raises(ConfigError, match="--keep-updates is -1; it must be at least 0"):
        compact_run(run.folder, keep_updates=-1)
    assert contents(run) == stored
    rowid = run.execute("SELECT min(rowid) FROM rows WHERE kind = 'transcript'")[0][0]
    run.flip("rows", "data", rowid, 1)
    with pytest.raises(IntegrityError, match="nothing was dropped; see `headrace repair`"):
        compact_run(run.folder, keep_updates=1)
    run.flip("rows", "data", rowid, 1)
    run.execute("UPDATE events SET head = ? WHERE seq = 300", bytes(32))
    with pytest.raises(
        IntegrityError, match="event 300: its bytes and the hash chain disagree, so nothing was dropped"
    ):
        compact_run(run.folder, keep_updates=1)
    run.execute("UPDATE events SET head = ? WHERE seq = 300", stored[0][299][-1])
    assert contents(run) == stored
