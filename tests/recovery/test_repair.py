"""A damaged run is repaired and goes on with every law; what cannot be repaired is said, and cut only when told to."""

import copy
import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from recovery.crashes import DEAD, MortalStorage
from recovery.test_simulated_crashes import check, small
from store.test_verify import store

from headrace.cli import main
from headrace.control.recovery import recover
from headrace.errors import StoreError
from headrace.records.batch import GroupClosed
from headrace.records.checkpoint import RecordQuarantined
from headrace.records.events import Event
from headrace.records.ids import EpisodeId
from headrace.records.provenance import address_of
from headrace.records.trajectory import TranscriptSealed
from headrace.reporting.report import report_run
from headrace.runtime import repairing
from headrace.runtime.repairing import QUARANTINE, RepairReport, describe, repair_run
from headrace.runtime.simulated import SimulatedDisk, Simulation, simulate
from headrace.simulation.weights import WeightShelf
from headrace.store import FileBlobs, open_reader, verify_run
from headrace.store.schema import FILE_NAME
from headrace.store.sqlite import SqliteStorage

SIMULATION = small("one step asynchronous", checkpoint={"every_updates": 1})
DIES_AT = 40


@dataclasses.dataclass
class Run:
    """A run that was cut off, on a real disk; its weights are in memory."""

    folder: Path
    shelf: WeightShelf

    def copy(self, folder: Path) -> "Run":
        shutil.copytree(self.folder, folder)
        return Run(folder, copy.deepcopy(self.shelf))

    def execute(self, statement: str, *values: Any) -> Any:
        connection = apsw.Connection(str(self.folder / FILE_NAME))
        found = connection.execute(statement, values).fetchall()
        connection.close()
        return found

    def flip(self, table: str, column: str, rowid: int, bits: int) -> None:
        """Flips so many bits of a stored value."""
        ((data,),) = self.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", rowid)
        damaged = bytearray(data)
        for bit in range(bits):
            damaged[len(damaged) // 2 + bit] ^= 4
        self.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", bytes(damaged), rowid)

    def rowid(self, kind: str, rank: int = 0) -> int:
        """The newest row of a kind, or one of the newest."""
        return self.execute("SELECT rowid FROM rows WHERE kind = ? ORDER BY rowid DESC LIMIT 1 OFFSET ?", kind, rank)[
            0
        ][0]

    def events(self) -> list[Event]:
        with open_reader(self.folder) as reader:
            return list(reader.events())

    def finish(self, what: str, simulation: Simulation = SIMULATION) -> list[Event]:
        """The events once another process has completed the run, with every law."""
        simulate(simulation, disk=SimulatedDisk(SqliteStorage(self.folder), self.shelf))
        again = SqliteStorage(self.folder)
        check(simulation.config, SimulatedDisk(again, self.shelf), what)
        again.close()
        return self.events()


def cut_off(folder: Path, simulation: Simulation, dies_at: int = DIES_AT) -> Run:
    """The run of a process that died at one of its commits."""
    storage, shelf = SqliteStorage(folder), WeightShelf()
    with pytest.raises(StoreError, match=DEAD):
        simulate(simulation, disk=SimulatedDisk(MortalStorage(storage, dies_at), shelf))
    storage.close()
    return Run(folder, shelf)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Killed with one update done, one group finished, three running, and a held-out round under way."""
    run = cut_off(tmp_path_factory.mktemp("interrupted") / "run", SIMULATION)
    past = recover(run.events())
    assert (past.version, len(past.closing), len(past.groups), len(past.open_rounds)) == (1, 1, 4, 1)
    return run


@pytest.fixture
def run(interrupted: Run, tmp_path: Path) -> Run:
    return interrupted.copy(tmp_path / "run")


def test_a_sound_run_is_left_as_it_is(run: Run) -> None:
    before = (run.folder / FILE_NAME).read_bytes()
    report = repair_run(run.folder)
    assert not report.has_damage
    assert describe(report, is_dry_run=False) == (f"run {run.folder}\nsound: nothing to repair", 0)
    assert (run.folder / FILE_NAME).read_bytes() == before
    assert not (run.folder / QUARANTINE).exists()


@pytest.mark.parametrize("kind", ["task", "transcript", "artifact", "verdict", "side", "plan", "config", "receipt"])
def test_one_flipped_bit_in_a_row_is_put_right(run: Run, kind: str) -> None:
    before = run.execute("SELECT address, kind, data FROM rows ORDER BY address")
    if kind not in {row[1] for row in before}:
        pytest.skip(f"the simulated workers make no {kind}")
    run.flip("rows", "data", run.rowid(kind), 1)
    assert not verify_run(run.folder).is_sound
    (finding,) = repair_run(run.folder).findings
    assert finding.remedy == "rebuilt"
    assert run.execute("SELECT address, kind, data FROM rows ORDER BY address") == before
    assert verify_run(run.folder).is_sound


def void(run: Run, before: int) -> set[EpisodeId]:
    """Attempts that the repair declared void."""
    payloads = [event.payload for event in run.events()[before:]]
    return {item.episode for item in payloads if isinstance(item, RecordQuarantined) and item.episode is not None}


LOST_KINDS = ("transcript", "verdict", "receipt", "side", "task", "plan")
LOSSES: dict[str, Callable[[Run, int], None]] = {
    "two flipped bits": lambda run, rowid: run.flip("rows", "data", rowid, 2),
    "deleted": lambda run, rowid: run.execute("DELETE FROM rows WHERE rowid = ?", rowid),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("kind", "rank"), [*((kind, 0) for kind in LOST_KINDS), ("transcript", 4)])
def test_a_run_that_lost_a_row_goes_on_lawfully_and_never_trains_what_is_gone(
    run: Run, kind: str, rank: int, loss: str
) -> None:
    rowid = run.rowid(kind, rank)
    ((address,),) = run.execute("SELECT address FROM rows WHERE rowid = ?", rowid)
    LOSSES[loss](run, rowid)
    before = len(run.events())
    report = repair_run(run.folder)
    assert report.cut_after is None, report
    assert verify_run(run.folder).problems == ()
    again = void(run, before)
    assert sorted(map(str, again)) == list(report.again)
    assert len(again) == (kind in {"transcript", "verdict"})
    events = run.finish(f"{kind} {rank} {loss}")
    sealed = {EpisodeId.parse(event.key) for event in events[before:] if isinstance(event.payload, TranscriptSealed)}
    for episode in again:
        assert episode not in sealed
        assert EpisodeId(episode.group, episode.member, episode.attempt + 1) in sealed, "its member rolled again"
    assert verify_run(run.folder).problems == ()
    with open_reader(run.folder) as reader:
        funnel = report_run(reader.events(), reader.read).funnel
        assert any("quarantined by a repair" in outcome.reason for outcome in funnel.outcomes)
        assert reader.has_row(address) == (kind == "task"), "what was set aside stays aside; a task is drawn again"
    assert not repair_run(run.folder).has_damage, "a repaired run needs no second repair"


def test_every_transcript_and_verdict_of_the_open_groups_may_be_lost_at_once(run: Run) -> None:
    kinds = "('transcript', 'verdict', 'receipt', 'task')"
    for rowid, data in run.execute(f"SELECT rowid, data FROM rows WHERE kind IN {kinds}"):
        run.execute("UPDATE rows SET data = ? WHERE rowid = ?", data[:-2] + b"\x00\x00\x00", rowid)
    report = repair_run(run.folder)
    assert len(report.again) >= 5
    run.finish("everything lost")
    assert verify_run(run.folder).problems == ()


def test_a_finished_group_that_lost_a_member_is_closed_a_second_time(run: Run) -> None:
    past = recover(run.events())
    member = past.groups[past.closing[0]].attempts[1][0]
    assert member.sealed is not None
    run.execute("DELETE FROM rows WHERE address = ?", member.sealed.transcript)
    assert repair_run(run.folder).again == (str(member.episode),)
    assert recover(run.events()).closing == []
    closed = [event.key for event in run.finish("reopened") if isinstance(event.payload, GroupClosed)]
    assert closed.count(str(member.episode.group)) == closed.count(f"{member.episode.group}#2") == 1


@pytest.mark.parametrize(
    ("column", "value"),
    [("epoch", 9), ("kind", "task_drawm"), ("key", "train.8"), ("t_ns", 5), ("is_once", 0), ("head", bytes(32))],
)
def test_a_column_of_an_event_is_made_again_from_its_bytes(run: Run, column: str, value: str | int | bytes) -> None:
    before = run.execute("SELECT * FROM events ORDER BY seq")
    run.execute(f"UPDATE events SET {column} = ? WHERE seq = 26", value)
    (finding,) = repair_run(run.folder).findings
    assert (finding.where, finding.remedy) == ("event 26", "rebuilt")
    assert run.execute("SELECT * FROM events ORDER BY seq") == before


def test_a_flipped_address_or_kind_is_made_again_from_the_bytes_and_from_what_names_them(run: Run) -> None:
    before = run.execute("SELECT address, kind, data FROM rows ORDER BY address")
    transcript, verdict = run.rowid("transcript"), run.rowid("verdict")
    run.execute(
        "UPDATE rows SET address = replace(address, substr(address, 9, 8), 'decafbad') WHERE rowid = ?", transcript
    )
    run.execute("UPDATE rows SET kind = 'verdicu' WHERE rowid = ?", verdict)
    assert [finding.remedy for finding in repair_run(run.folder).findings] == ["rebuilt", "rebuilt"]
    assert run.execute("SELECT address, kind, data FROM rows ORDER BY address") == before


def test_a_fenced_epoch_does_not_come_back_when_the_writers_line_is_damaged(run: Run) -> None:
    run.execute("UPDATE writer SET epoch = 0")
    run.flip("rows", "data", run.rowid("side"), 2)
    repair_run(run.folder)
    assert run.events()[-1].epoch == 2
    run.finish("writer damaged")


def test_one_flipped_bit_in_an_event_is_put_right(run: Run) -> None:
    before = run.execute("SELECT * FROM events ORDER BY seq")
    run.flip("events", "bytes", 60, 1)
    run.flip("events", "bytes", len(before), 1)
    assert {finding.remedy for finding in repair_run(run.folder).findings} == {"rebuilt"}
    assert run.execute("SELECT * FROM events ORDER BY seq") == before


def test_what_was_repaired_is_told_with_short_addresses(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.flip("rows", "data", run.rowid("side"), 1)
    assert main(["repair", str(run.folder)]) == 0
    told = capsys.readouterr().out
    assert "REBUILT  row " in told
    assert "…" in told
    assert f"repaired: 1 rebuilt, 0 set aside in {run.folder / QUARANTINE}" in told


BREAKS: dict[str, Callable[[Run], None]] = {
    "two flipped bits": lambda run: run.flip("events", "bytes", 120, 2),
    "deleted": lambda run: run.execute("DELETE FROM events WHERE seq = 120"),
}


@pytest.mark.parametrize("damage", BREAKS)
def test_a_broken_chain_is_cut_only_when_told_to_and_the_tail_is_kept(
    run: Run, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    BREAKS[damage](run)
    stored = (run.folder / FILE_NAME).read_bytes()
    ((total,),) = run.execute("SELECT count(*) FROM events")
    assert main(["repair", str(run.folder)]) == 1
    told = capsys.readouterr().out
    assert "CANNOT   event 120" in told
    assert "would keep events 1 to 119 and lose: " in told
    assert "--truncate" in told
    assert (run.folder / FILE_NAME).read_bytes() == stored, "nothing was written"
    assert main(["repair", str(run.folder), "--truncate"]) == 0
    assert "kept events 1 to 119" in capsys.readouterr().out
    kept = Run(run.folder / QUARANTINE / "001", run.shelf)
    assert kept.execute("SELECT count(*) FROM events") == [(total,)], "the cut tail lies in quarantine"
    assert verify_run(run.folder).problems == ()
    assert [event.seq for event in run.events()][:119] == list(range(1, 120))
    run.finish(damage)
    assert verify_run(run.folder).problems == ()


def test_a_plan_that_no_checkpoint_covers_is_cut_away_and_planned_again(tmp_path: Path) -> None:
    simulation = small("one step asynchronous", checkpoint={"every_updates": 0})
    run = cut_off(tmp_path / "run", simulation)
    run.execute("DELETE FROM rows WHERE rowid = ?", run.rowid("plan"))
    report = repair_run(run.folder)
    assert report.quarantine is None
    assert "update 1 is not in the newest checkpoint that verifies (none)" in report.cut_reason
    assert report.cut_events["weights_committed"] == 1
    assert repair_run(run.folder, may_truncate=True).cut_after == report.cut_after
    assert recover(run.events()).version == 0
    run.finish("plan lost", simulation)


def test_a_lost_configuration_is_said_to_be_beyond_repair(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.execute("DELETE FROM rows WHERE kind = 'config'")
    assert main(["repair", str(run.folder)]) == 1
    assert "without it no process can go on" in capsys.readouterr().out


def test_a_dry_run_says_the_same_and_writes_nothing(run: Run) -> None:
    run.flip("rows", "data", run.rowid("transcript"), 2)
    before = (run.folder / FILE_NAME).read_bytes()
    dry = repair_run(run.folder, is_dry_run=True)
    assert (run.folder / FILE_NAME).read_bytes() == before
    assert not (run.folder / QUARANTINE).exists()
    done = repair_run(run.folder)
    assert (dry.findings, dry.again) == (done.findings, done.again)
    assert done.quarantine is not None
    stored = msgspec.json.decode((Path(done.quarantine) / "report.json").read_bytes(), type=RepairReport)
    assert stored == done


def test_a_run_that_is_being_written_is_not_repaired(run: Run) -> None:
    storage = SqliteStorage(run.folder)
    with pytest.raises(StoreError, match="is being written already"):
        repair_run(run.folder)
    storage.close()


class Crash(Exception):
    """The repair is gone."""


@pytest.mark.parametrize("step", ["write_journal", "_append", "fold_old_log", "take_place"])
@pytest.mark.parametrize("is_done", [False, True])
def test_a_repair_that_dies_at_any_step_leaves_the_old_journal_or_the_new_one(
    run: Run, monkeypatch: pytest.MonkeyPatch, step: str, is_done: bool
) -> None:
    run.flip("rows", "data", run.rowid("transcript"), 2)
    old = run.execute("SELECT * FROM rows")
    original = getattr(repairing, step)

    def dies(*arguments: Any, **options: Any) -> None:
        if is_done:
            original(*arguments, **options)
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(repairing, step, dies)
        with pytest.raises(Crash):
            repair_run(run.folder)
    if step == "take_place" and is_done:
        assert verify_run(run.folder).is_sound
    else:
        assert run.execute("SELECT * FROM rows") == old
    repair_run(run.folder)
    assert verify_run(run.folder).is_sound
    run.finish(step)


def test_pages_that_cannot_be_read_are_left_out_and_what_was_on_them_is_lost(run: Run) -> None:
    """Garbage over whole pages of the database file, in its middle."""
    run.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray((run.folder / FILE_NAME).read_bytes())
    ((root,),) = run.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'row_address'")
    data[(root - 1) * 4096 : root * 4096] = bytes(4096)
    (run.folder / FILE_NAME).write_bytes(bytes(data))
    assert not verify_run(run.folder).is_sound
    report = repair_run(run.folder, may_truncate=True)
    assert report.quarantine is not None
    assert verify_run(run.folder).problems == ()
    run.finish("a page lost")


def test_a_damaged_blob_moves_to_quarantine_and_the_weights_are_computed_again(tmp_path: Path) -> None:
    folder = store(tmp_path / "run")
    blobs, newest = FileBlobs(folder / "blobs"), address_of(b"weights 2" * 50)
    damaged = b"x" + blobs.read(newest)[1:]
    blobs.path(newest).write_bytes(damaged)
    report = repair_run(folder)
    assert report.quarantine is not None
    assert (Path(report.quarantine) / "blobs" / newest).read_bytes() == damaged
    assert verify_run(folder).problems == ()
    assert not repair_run(folder).has_damage
