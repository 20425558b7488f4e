"""The journal on disk: one writer, one transaction per batch, nothing acknowledged that a crash can take back."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from lawful_run import as_log, lawful_steps, row_of, task_of, write_run

from headrace.errors import IntegrityError, Outcome, StoreError
from headrace.ports import Row
from headrace.records.provenance import address_of
from headrace.records.run import RunEnded, WorkerState, WorkerStateChanged
from headrace.records.task import TaskDrawn
from headrace.simulation.loop import run_virtual
from headrace.store import CommitPolicy, InlineCommit, MemoryJournal, SqliteJournal, open_reader
from headrace.store.schema import FILE_NAME
from headrace.store.sqlite import SqliteStorage

IDLE = WorkerStateChanged("engine", WorkerState.IDLE)
ROOT = Path(__file__).parents[2]


def journal_of(folder: Path, **options: Any) -> SqliteJournal:
    options = {"incarnation": "life", "runner": InlineCommit(), **options}
    return SqliteJournal(folder, **options)


def run(work: Coroutine[Any, Any, None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(30):
            await work

    asyncio.run(within())


def test_a_second_writer_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    async def work() -> None:
        journal = journal_of(tmp_path / "run-7")
        with pytest.raises(StoreError, match=rf'run-7 is being written already, by .*"pid": {os.getpid()}'):
            journal_of(tmp_path / "run-7")
        await journal.close()
        await journal_of(tmp_path / "run-7").close()

    run(work())


def test_a_writer_that_lost_its_lock_unawares_is_fenced_by_epoch(tmp_path: Path) -> None:
    async def work() -> None:
        zombie = journal_of(tmp_path / "run")
        await zombie.durable(zombie.append(IDLE, key="engine"))
        (tmp_path / "run" / "journal.lock").unlink()
        owner = journal_of(tmp_path / "run")
        await owner.durable(owner.append(IDLE, key="engine"))
        with pytest.raises(StoreError, match="epoch 1 is fenced: epoch 2 has taken over"):
            await zombie.durable(zombie.append(IDLE, key="engine"))
        assert [event.epoch for event in owner.events()] == [1, 2]
        with open_reader(tmp_path / "run") as reader:
            assert reader.late_writes() == {"worker_state_changed": 1}, "its owner can see what was refused"
        zombie.abandon()
        await owner.close()

    run(work())


def test_a_reader_in_another_process_sees_what_is_durable_while_the_run_goes_on(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from headrace.store import open_reader\n"
        "with open_reader(Path(sys.argv[1])) as reader:\n"
        "    rows = [reader.read(event.payload.task) for event in reader.events()]\n"
        "    sys.stdout.buffer.write(b''.join(rows))\n"
    )

    async def work() -> None:
        journal = journal_of(tmp_path / "run", policy=CommitPolicy(max_delay_s=3600.0))
        row = row_of("task", task_of(0))
        journal.append(TaskDrawn(row.address, "sums", "easy"), key="train.0", rows=[row])
        await journal.durable(1)
        later = row_of("task", task_of(1))
        journal.append(TaskDrawn(later.address, "sums", "easy"), key="train.1", rows=[later])
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, str(tmp_path / "run"), cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await child.communicate()
        assert output == row.data
        await journal.close()

    run(work())


def test_a_reader_cannot_write_and_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such journal"):
        open_reader(tmp_path)
    (tmp_path / FILE_NAME).write_bytes(b"not a database, but long enough to be taken for one" * 40)
    with pytest.raises(StoreError, match="cannot be read as a journal"):
        open_reader(tmp_path)
    with pytest.raises(StoreError, match="cannot be opened as a journal"):
        journal_of(tmp_path)
    (tmp_path / "other").mkdir()
    apsw.Connection(str(tmp_path / "other" / FILE_NAME)).execute("CREATE TABLE cooking(recipe)")
    with pytest.raises(StoreError, match="application id"):
        open_reader(tmp_path / "other")
    with pytest.raises(StoreError, match="application id"):
        journal_of(tmp_path / "other")


def test_a_damaged_row_is_never_handed_out(tmp_path: Path) -> None:
    async def work() -> None:
        journal = journal_of(tmp_path)
        row = row_of("task", task_of(0))
        await journal.durable(journal.append(TaskDrawn(row.address, "s", "e"), key="train.0", rows=[row]))
        await journal.close()
        apsw.Connection(str(tmp_path / FILE_NAME)).execute(
            "UPDATE rows SET data = CAST(x'00' || substr(data, 2) AS BLOB)"
        )
        reopened = journal_of(tmp_path)
        with open_reader(tmp_path) as reader:
            for look_up in (reader.read, reopened.read):
                with pytest.raises(IntegrityError, match="the copy is damaged"):
                    look_up(row.address)
        await reopened.close()

    run(work())


def test_pending_events_share_a_transaction(tmp_path: Path) -> None:
    batches: list[int] = []

    class Counting(InlineCommit):
        async def __call__(self, commit: Callable[[], None]) -> None:
            before = journal.durable_seq
            await super().__call__(commit)
            batches.append(journal.last_seq - before)

    async def work() -> None:
        nonlocal journal
        journal = journal_of(tmp_path, runner=Counting())
        seqs = [journal.append(IDLE, key="engine") for _ in range(300)]
        await asyncio.gather(*(journal.durable(seq) for seq in seqs))
        await journal.close()

    journal: SqliteJournal
    run(work())
    assert batches == [300]


def test_time_until_durable_is_the_bounded_delay_and_the_simulated_sync() -> None:
    async def work() -> list[float]:
        loop = asyncio.get_running_loop()
        runner = InlineCommit(sync_s=0.004)
        journal = MemoryJournal(runner=runner, policy=CommitPolicy(max_delay_s=0.05))
        times = []
        journal.append(IDLE, key="engine")
        await asyncio.sleep(0.0539)
        times.append(float(journal.durable_seq))
        await asyncio.sleep(0.0002)
        times.append(float(journal.durable_seq))
        begin = loop.time()
        await journal.durable(journal.append(RunEnded("completed", 0), key="run"))
        times.append(round(loop.time() - begin, 9))
        await journal.close()
        return times

    assert run_virtual(work()) == [0.0, 1.0, 0.004]


def test_a_run_on_virtual_time_gives_the_same_bytes_twice(tmp_path: Path) -> None:
    async def work(folder: Path) -> str:
        journal = journal_of(folder, runner=InlineCommit(0.003))
        for step in lawful_steps():
            journal.append(step.payload, key=step.key, rows=step.rows)
            await asyncio.sleep(0.001)
        await journal.durable(journal.last_seq)
        head = journal.head()
        await journal.close()
        return head

    assert run_virtual(work(tmp_path / "a")) == run_virtual(work(tmp_path / "b"))


_WRITER = """
import asyncio, sys
from pathlib import Path
from headrace.records.run import WorkerState, WorkerStateChanged
from headrace.store import SqliteJournal

async def main():
    journal = SqliteJournal(Path(sys.argv[1]), incarnation="life")
    async def producer(name):
        while True:
            seq = journal.append(WorkerStateChanged(name, WorkerState.BUSY), key=name)
            await journal.durable(seq)
            print(seq, flush=True)
    await asyncio.gather(*(producer(f"w{i}") for i in range(8)))

asyncio.run(main())
"""


def kill_while_writing(folder: Path, acknowledgements: int) -> list[int]:
    """Sequence numbers that a writer acknowledged before it was killed."""
    child = subprocess.Popen([sys.executable, "-c", _WRITER, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout as lines:
        acknowledged = [int(next(lines)) for _ in range(acknowledgements)]
        child.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in lines if line.endswith("\n")]
    child.wait(timeout=20)
    return acknowledged


def test_kill_9_takes_back_no_acknowledged_event_and_the_next_writer_goes_on(tmp_path: Path) -> None:
    async def reopen() -> None:
        journal = journal_of(tmp_path)
        stored = [event.seq for event in journal.events()]
        assert stored == list(range(1, len(stored) + 1))
        assert max(acknowledged) <= len(stored)
        assert journal.append(IDLE, key="engine") == len(stored) + 1
        await journal.close()

    for acknowledgements in (1, 100):
        acknowledged = kill_while_writing(tmp_path, acknowledgements)
        run(reopen())


class FaultyFile(apsw.VFSFile):
    """A file whose n-th write or sync fails for good, like a full or broken disk."""

    def __init__(self, vfs: "FaultyVFS", name: Any, flags: list[int]) -> None:
        self._vfs = vfs
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:
        self._vfs.step()
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._vfs.step()
        super().xSync(flags)


class FaultyVFS(apsw.VFS):
    """The default file system, until the n-th write or sync."""

    def __init__(self, name: str) -> None:
        self.left = -1
        super().__init__(name, "")

    def step(self) -> None:
        if self.left == 0:
            raise apsw.IOError("injected")
        if self.left > 0:
            self.left -= 1

    def xOpen(self, name: Any, flags: list[int]) -> FaultyFile:
        return FaultyFile(self, name, flags)


@pytest.fixture
def faulty() -> Iterator[FaultyVFS]:
    vfs = FaultyVFS("faulty")
    yield vfs
    vfs.unregister()


def test_a_failure_at_any_write_or_sync_leaves_the_state_before_or_after(tmp_path: Path, faulty: FaultyVFS) -> None:
    rows = [row_of("task", task_of(ordinal)) for ordinal in range(20)]

    async def attempt(folder: Path, fail_at: int) -> bool:
        """Whether the second batch was acknowledged."""
        journal = journal_of(folder, vfs="faulty")
        await journal.durable(append(journal, rows[:3]))
        faulty.left = fail_at
        try:
            await journal.durable(append(journal, rows[3:]))
        except StoreError as error:
            with pytest.raises(StoreError) as refused:
                journal.append(IDLE, key="engine")
            assert refused.value.outcome is Outcome.REJECTED
            assert error.outcome is Outcome.LOST
            assert "may not be on disk" in str(error)
            return False
        finally:
            faulty.left = -1
            journal.abandon()
        return True

    def append(journal: SqliteJournal, found: list[Row]) -> int:
        return [journal.append(TaskDrawn(r.address, "s", "e"), key=f"train.{r.address}", rows=[r]) for r in found][-1]

    outcomes = []
    for fail_at in range(40):
        folder = tmp_path / str(fail_at)
        outcomes.append(asyncio.run(attempt(folder, fail_at)))
        with open_reader(folder) as reader:
            stored = [event.seq for event in reader.events()]
            assert stored in ([1, 2, 3], list(range(1, 21)))
            assert not outcomes[-1] or len(stored) == 20
            assert [reader.has_row(row.address) for row in rows] == [n < len(stored) for n in range(20)]
            assert reader.damage() == []
        if outcomes[-1]:
            break
    assert outcomes == [False] * (len(outcomes) - 1) + [True]
    assert len(outcomes) > 3


def test_events_are_found_by_what_they_are_about(tmp_path: Path) -> None:
    async def work() -> None:
        journal = journal_of(tmp_path)
        for key in ("train.1", "train.10", "train.1.0", "train.1/x", "train.1#2", "train.2"):
            journal.append(TaskDrawn(address_of(b""), "s", "e"), key=key)
        journal.append(IDLE, key="train.1")
        await journal.close()
        with open_reader(tmp_path) as reader:
            assert [event.key for event in reader.events_about("task_drawn", "train.1")] == [
                "train.1",
                "train.1/x",
                "train.1#2",
            ]
            assert [event.seq for event in reader.events_of_kind("task_drawn", after=4)] == [5, 6]
            assert [event.seq for event in reader.events_of_kind("worker_state_changed", is_once=False)] == [7]

    run(work())


def test_the_index_serves_the_look_up_by_kind_and_key(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path)
    query = "EXPLAIN QUERY PLAN SELECT seq FROM events WHERE is_once AND kind = ? AND key >= ? AND key < ? ORDER BY seq"
    plan = str(storage._reader._connection.execute(query, ("a", "b", "c")).fetchall())
    storage.close()
    assert "USING COVERING INDEX once" in plan or "USING INDEX once" in plan


def test_the_whole_lawful_run_survives_the_disk(tmp_path: Path) -> None:
    async def work() -> None:
        journal, steps = journal_of(tmp_path), lawful_steps()
        await journal.durable(write_run(journal, steps))
        await journal.close()
        events, read = as_log(steps)
        with open_reader(tmp_path) as reader:
            assert [(e.seq, e.key, e.payload) for e in reader.events()] == [(e.seq, e.key, e.payload) for e in events]
            for row in (row for step in steps for row in step.rows):
                assert reader.read(row.address) == read(row.address)

    run(work())
