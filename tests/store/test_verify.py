"""A sound run verifies; anything that is not as it was written, or breaks a law, is named with its place."""

import asyncio
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import apsw
import msgspec
import pytest
from lawful_run import (
    Step,
    dropped,
    edited,
    find,
    lawful_steps,
    repeated,
    replaced,
    replanned,
    resealed,
    row_of,
    task_of,
    write_run,
)

from headrace.checkers import LawChecker
from headrace.errors import StoreError
from headrace.ports import Row
from headrace.records.batch import BatchPlanned, GroupRejected
from headrace.records.checkpoint import CheckpointWritten, Manifest
from headrace.records.ids import LeaseToken, PolicyId
from headrace.records.provenance import address_of, canonical_bytes
from headrace.records.trajectory import Transcript, TranscriptSealed
from headrace.records.update import WeightsCommitted
from headrace.records.verdict import Verdict, VerdictDisputed, VerdictSealed
from headrace.runtime.repairing import repair_run
from headrace.store import FileBlobs, InlineCommit, SqliteJournal, UnsyncedDisk, VerifyReport, open_reader, verify_run
from headrace.store.schema import FILE_NAME
from headrace.store.verify import BLOBS_NAME


def store(folder: Path, change: Callable[[list[Step]], list[Step]] = lambda steps: steps) -> Path:
    """A finished run on disk."""
    blobs = FileBlobs(folder / BLOBS_NAME, UnsyncedDisk())

    async def work() -> None:
        journal = SqliteJournal(folder, incarnation="life", runner=InlineCommit())
        await journal.durable(write_run(journal, change(lawful_steps(blobs.put))))
        await journal.close()

    asyncio.run(work())
    return folder


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "run"))


def execute(folder: Path, statement: str, values: Sequence[str | int | bytes] = ()) -> None:
    connection = apsw.Connection(str(folder / FILE_NAME))
    connection.execute(statement, tuple(values))
    connection.close()


def only(report: VerifyReport) -> str:
    """The one problem of the report."""
    assert len(report.problems) == 1, [str(problem) for problem in report.problems]
    return str(report.problems[0])


def test_a_sound_run_verifies_and_says_what_was_looked_at(sound: Path) -> None:
    report = verify_run(sound)
    assert report.problems == ()
    assert report.is_sound
    assert report.counts["events"] == len(lawful_steps())
    assert report.counts["rows.transcript"] == report.counts["events.transcript_sealed"] == 12
    assert report.counts["rows.plan"] == 2
    assert report.counts["blobs"] == 3
    assert report.counts["laws"] == len(LawChecker.laws)
    assert report.absent == {}


def test_a_folder_without_a_journal_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such journal"):
        verify_run(tmp_path)


def test_the_head_is_that_of_the_journal(sound: Path) -> None:
    async def head() -> str:
        journal = SqliteJournal(sound, incarnation="another", runner=InlineCommit())
        found = journal.head()
        await journal.close()
        return found

    assert verify_run(sound).head == asyncio.run(head())


@pytest.mark.parametrize("column", ["bytes", "head"])
@pytest.mark.parametrize("seq", [1, 60, 165])
def test_a_flipped_bit_in_an_event_is_named_by_its_number(copy: Path, seq: int, column: str) -> None:
    connection = apsw.Connection(str(copy / FILE_NAME))
    data = bytearray(connection.execute(f"SELECT {column} FROM events WHERE seq = ?", (seq,)).get)
    connection.close()
    data[len(data) // 2] ^= 4
    execute(copy, f"UPDATE events SET {column} = ? WHERE seq = ?", (bytes(data), seq))
    found = [str(problem) for problem in verify_run(copy).problems]
    assert any(text.startswith(f"event {seq}: ") and "hash chain disagree" in text for text in found), found


def test_a_flipped_bit_in_a_row_is_named_by_its_address(copy: Path) -> None:
    connection = apsw.Connection(str(copy / FILE_NAME))
    one_of_each = "SELECT max(rowid), address, kind, data FROM rows GROUP BY kind"
    for rowid, address, kind, data in connection.execute(one_of_each).fetchall():
        damaged = bytearray(data)
        damaged[len(damaged) // 2] ^= 1
        connection.execute("UPDATE rows SET data = ? WHERE rowid = ?", (bytes(damaged), rowid))
        found = [str(problem) for problem in verify_run(copy).problems]
        assert any(text.startswith(f"row {address} ({kind}): stored bytes: bytes hash to") for text in found), found
        connection.execute("UPDATE rows SET data = ? WHERE rowid = ?", (data, rowid))
    connection.close()
    assert verify_run(copy).is_sound


@pytest.mark.parametrize(
    ("column", "value"),
    [("epoch", 2), ("kind", "task_drawm"), ("key", "train.8"), ("t_ns", 5), ("cause_seq", 1), ("is_once", 0)],
)
def test_a_column_that_repeats_its_event_wrongly_is_named(copy: Path, column: str, value: str | int) -> None:
    execute(copy, f"UPDATE events SET {column} = ? WHERE seq = 26", (value,))
    assert only(verify_run(copy)).startswith(f"event 26: column {column} is {value!r}, the event says")


def test_every_flipped_bit_that_changes_what_is_stored_is_noticed(copy: Path) -> None:
    file = copy / FILE_NAME
    original = file.read_bytes()
    before = contents(copy)
    rng = random.Random(7)
    noticed = 0
    for position in rng.sample(range(len(original)), 70):
        damaged = bytearray(original)
        damaged[position] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        try:
            is_sound = verify_run(copy).is_sound
        except StoreError:
            is_sound = False
        noticed += not is_sound
        assert not is_sound or contents(copy) == before, position
    file.write_bytes(original)
    assert verify_run(copy).is_sound
    assert noticed > 20


def contents(folder: Path) -> list[tuple[object, ...]]:
    with open_reader(folder) as reader:
        return [*reader.stored_events(), *reader.stored_rows()]


def test_a_lost_event_leaves_a_gap(copy: Path) -> None:
    execute(copy, "DELETE FROM events WHERE seq = 40")
    found = [str(problem) for problem in verify_run(copy).problems]
    assert "event 41: follows event 39; the sequence has a gap" in found


@pytest.mark.parametrize("kind", ["task", "transcript", "side", "verdict", "plan", "config", "receipt"])
def test_a_lost_row_is_named_by_the_event_that_needs_it(copy: Path, kind: str) -> None:
    execute(copy, "DELETE FROM rows WHERE rowid = (SELECT max(rowid) FROM rows WHERE kind = ?)", (kind,))
    found = [str(problem) for problem in verify_run(copy).problems]
    assert any("which is neither a row nor a blob" in text and text.startswith("event ") for text in found), found


def test_a_damaged_blob_and_lost_weights_are_named(copy: Path) -> None:
    blobs = FileBlobs(copy / BLOBS_NAME)
    newest = address_of(b"weights 2" * 50)
    data = bytearray(blobs.read(newest))
    data[3] ^= 1
    blobs.path(newest).write_bytes(data)
    assert only(verify_run(copy)).startswith(f"blob {newest}: ")
    blobs.path(newest).unlink()
    assert only(verify_run(copy)).startswith("weights of versions 2: not in ")


def remove_weights(folder: Path, *versions: int) -> None:
    for version in versions:
        FileBlobs(folder / BLOBS_NAME).path(address_of(f"weights {version}".encode() * 50)).unlink()


def with_a_checkpoint_of_version_2(steps: list[Step]) -> list[Step]:
    manifest = Manifest(PolicyId("policy"), 2, address_of(b"weights 2" * 50), {}, 1, "constant", address_of(b"a"))
    written = CheckpointWritten(2, manifest, 0, 0, 0, 0, (), 0, LeaseToken(0), "resume", 0.0, 0.0)
    return [*steps[:-1], Step(written, "2"), steps[-1]]


def test_versions_whose_weights_are_gone_are_named_with_the_reason(tmp_path: Path) -> None:
    folder = store(tmp_path / "run", with_a_checkpoint_of_version_2)
    remove_weights(folder, 1)
    report = verify_run(folder)
    assert (report.problems, report.absent) == ((), {"retention": (1,)})
    remove_weights(folder, 0)
    assert only(verify_run(folder)).startswith("weights of versions 0: not in ")
    repair_run(folder)
    report = verify_run(folder)
    assert (report.problems, report.absent) == ((), {"retention": (1,), "repair": (0,)})
    assert not repair_run(folder).has_damage


def test_what_a_crash_left_beside_the_blobs_is_no_problem(copy: Path) -> None:
    folder = copy / BLOBS_NAME / "ab"
    folder.mkdir(exist_ok=True)
    (folder / f"ab{'0' * 62}.12.0.part").write_bytes(b"half")
    assert verify_run(copy).is_sound


BROKEN: list[tuple[str, Callable[[list[Step]], list[Step]], str]] = [
    (
        "a law that the configuration bounds",
        lambda s: edited(s, find(s, BatchPlanned, "2"), oldest_lag=2),
        "law C12, event",
    ),
    ("a law without bounds", lambda s: dropped(s, find(s, WeightsCommitted, "policy@1")), "law C6, event"),
    (
        "a transcript without a harness version",
        lambda s: with_provenance(s, harness=""),
        "provenance.harness is ''",
    ),
    (
        "a verdict without a grader version",
        lambda s: resealed(
            s,
            find(s, VerdictSealed),
            "verdict",
            lambda verdict: msgspec.structs.replace(verdict, grader="v1"),
            Verdict,
        ),
        "verdict.grader is 'v1'",
    ),
    (
        "an output that was not the one observed",
        lambda s: with_output(s, b"3"),
        "the output sealed is not the output observed",
    ),
    (
        "a row of an unknown kind",
        lambda s: with_extra(s, Row("recipe", b"eggs")),
        "kind 'recipe' is none of",
    ),
    ("a row of another struct", lambda s: with_extra(s, row_of("plan", ("no", "plan"))), "cannot be decoded"),
    ("a row that is not canonical", lambda s: with_extra(s, with_a_stranger()), "not the canonical ones"),
    (
        "a dispute whose second verdict was not kept",
        lambda s: without_rows(s, find(s, VerdictDisputed)),
        "second verdict: names",
    ),
    (
        "a planned transcript that is nowhere",
        lambda s: replanned(s, find(s, BatchPlanned, "1"), 0, transcript=address_of(b"nowhere")),
        "planned transcript: names",
    ),
    (
        "a configuration that cannot be read",
        lambda s: replaced(s, 0, Step(s[0].payload, "run", ())),
        "event 1, config: names",
    ),
    ("a group that leaves twice", lambda s: renamed(repeated(s, find(s, GroupRejected))), "law C1, event"),
]


def with_provenance(steps: list[Step], **changes: str) -> list[Step]:
    def change(transcript: Transcript) -> Transcript:
        provenance = msgspec.structs.replace(transcript.provenance, **changes)
        return msgspec.structs.replace(transcript, provenance=provenance)

    return resealed(steps, find(steps, TranscriptSealed), "transcript", change, Transcript)


def with_output(steps: list[Step], output: bytes) -> list[Step]:
    def change(transcript: Transcript) -> Transcript:
        outcome = msgspec.structs.replace(transcript.actions[0], output=output)
        return msgspec.structs.replace(transcript, actions=(outcome,))

    return resealed(steps, find(steps, TranscriptSealed), "transcript", change, Transcript)


def with_extra(steps: list[Step], row: Row) -> list[Step]:
    return replaced(steps, 1, Step(steps[1].payload, steps[1].key, (row,)))


def without_rows(steps: list[Step], index: int) -> list[Step]:
    return replaced(steps, index, Step(steps[index].payload, steps[index].key))


def with_a_stranger() -> Row:
    """A task with a field that nobody knows: it decodes, and loses something on the way."""
    return row_of("task", {**msgspec.msgpack.decode(canonical_bytes(task_of(500))), "stranger": 1})


def renamed(steps: list[Step]) -> list[Step]:
    """The second rejection under a key of its own, so that the journal takes it."""
    index = find(steps, GroupRejected) + 1
    return replaced(steps, index, Step(steps[index].payload, "train.0"))


@pytest.mark.parametrize(("change", "message"), [item[1:] for item in BROKEN], ids=[item[0] for item in BROKEN])
def test_a_run_that_was_written_wrong_does_not_verify(
    tmp_path: Path, change: Callable[[list[Step]], list[Step]], message: str
) -> None:
    found = [str(problem) for problem in verify_run(store(tmp_path, change)).problems]
    assert any(message in text for text in found), found


def test_verification_writes_nothing(copy: Path) -> None:
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file() and "-shm" not in path.name}
    verify_run(copy)
    after = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file() and path.stat().st_size}
    assert {path: data for path, data in after.items() if path in before} == {p: d for p, d in before.items() if d}


def test_a_run_that_was_killed_verifies_as_far_as_it_came(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / BLOBS_NAME, UnsyncedDisk())

    async def work() -> None:
        steps = lawful_steps(blobs.put)
        journal = SqliteJournal(tmp_path, incarnation="life", runner=InlineCommit())
        await journal.durable(write_run(journal, steps[: find(steps, BatchPlanned, "2")]))
        assert verify_run(tmp_path).problems == ()
        journal.abandon()

    asyncio.run(work())
    assert verify_run(tmp_path).problems == ()
