"""The journal of one run in one SQLite database: events and sealed rows become durable in one transaction.

Invariant: one writer. A lock that dies with its process keeps a second one out, and the epoch, compared inside every
transaction, refuses a writer that lost the lock without noticing.
"""

import contextlib
import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apsw

from headrace.errors import Outcome, StoreError
from headrace.records.events import Event, is_once, kind_of
from headrace.records.ids import Address
from headrace.store.disk import Disk
from headrace.store.group_commit import (
    DEFAULT_POLICY,
    GENESIS,
    CommitPolicy,
    CommitRunner,
    Entry,
    GroupCommitJournal,
    Tail,
    WriterThread,
)
from headrace.store.reader import JournalReader, StoredEvent
from headrace.store.schema import CREATE_LATE, FILE_NAME, close_anyway, fold_log, open_read_only, open_writer

LOCK_NAME = "journal.lock"
"""Name of the lock file within a run's folder."""


class _Fenced(StoreError):
    """Another writer has taken the journal over."""


class WriterLock:
    """The right to write a run's journal; ends with the process at the latest.

    Args:
        folder: the run's folder.

    Raises:
        StoreError: when another writer holds it; names the run and the process.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK_NAME
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, 4096, 0).decode(errors="replace").strip()
            self.release()
            raise StoreError(
                f"run {folder.name} is being written already, by {holder or 'an unknown process'}"
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps({"run": folder.name, "pid": os.getpid()}).encode(), 0)

    def release(self) -> None:
        """Lets the next writer in. Safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def has_writer(folder: Path) -> bool:
    """Whether a living process writes the run; a lock dies with its process."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class SqliteStorage:
    """Implements `group_commit.Storage`.

    Args:
        folder: the run's folder; created when missing.
        vfs: name of a registered SQLite file system; the default one by default.
        disk: file operations on the folder.

    Raises:
        StoreError: when another writer holds the run, or the file is no journal.
    """

    def __init__(self, folder: Path, vfs: str | None = None, disk: Disk | None = None) -> None:
        disk = Disk() if disk is None else disk
        try:
            disk.make_folder(folder)
        except OSError as error:
            raise StoreError(f"{folder} cannot be created: {error}") from error
        path = folder / FILE_NAME
        self._path = path
        self._lock = WriterLock(folder)
        try:
            self._writer = open_writer(path, vfs)
        except BaseException:
            self._lock.release()
            raise
        try:
            fold_log(self._writer, path)
            disk.sync_folder(folder)  # SQLite syncs the folder of a new log, and not that of a new database
            self._reader = JournalReader(open_read_only(path, vfs), str(path))
        except BaseException as error:
            close_anyway(self._writer)
            self._lock.release()
            if isinstance(error, OSError):
                raise StoreError(f"{path} is not durable: {error}") from error
            raise

    def claim(self) -> Tail:
        try:
            return self._claim()
        except apsw.Error as error:
            raise StoreError(f"{self._path} cannot be taken over: {error}") from error

    def commit(self, epoch: int, entries: Sequence[Entry]) -> None:
        try:
            with self._writer:
                self._insert(epoch, entries)
        except _Fenced:
            self._count_late(epoch, entries)
            raise
        except apsw.ConstraintError as error:
            raise StoreError(self._explain(entries, error), Outcome.REJECTED) from error
        except apsw.Error as error:
            first, last = entries[0].event.seq, entries[-1].event.seq
            raise StoreError(f"events {first} to {last} may not be on disk: {type(error).__name__}: {error}") from error

    def read(self, address: Address) -> bytes:
        return self._reader.read_unchecked(address)

    def events(self, after: int) -> Iterator[Event]:
        return self._reader.events(after)

    def close(self) -> None:
        try:
            self._reader.close()
            close_anyway(self._writer)  # the last connection folds the write-ahead log into the database
        finally:
            self._lock.release()

    def _claim(self) -> Tail:
        # One statement is a transaction of its own, and nobody appends between the two: the lock is held.
        epoch: int = self._writer.execute("UPDATE writer SET epoch = epoch + 1 RETURNING epoch").get
        last = self._writer.execute("SELECT seq, t_ns, head FROM events ORDER BY seq DESC LIMIT 1").get
        seq, t_ns, head = last or (0, 0, GENESIS)
        return Tail(epoch, seq, t_ns, head)

    def _insert(self, epoch: int, entries: Sequence[Entry]) -> None:
        newest: int = self._writer.execute("SELECT epoch FROM writer").get
        if newest != epoch:
            message = f"epoch {epoch} is fenced: epoch {newest} has taken over {self._path}"
            raise _Fenced(message, Outcome.REJECTED)
        self._writer.executemany(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (StoredEvent.of(entry.event, entry.data, entry.head) for entry in entries),
        )
        rows = [(row.address, row.kind, row.data) for entry in entries for row in entry.rows]
        if rows:
            self._writer.executemany("INSERT INTO rows VALUES (?, ?, ?) ON CONFLICT (address) DO NOTHING", rows)

    def _count_late(self, epoch: int, entries: Sequence[Entry]) -> None:
        """Leaves the owner a count of what was refused; where even that cannot be written, the refusal stands alone."""
        counts = Counter(kind_of(entry.event.payload) for entry in entries)
        with contextlib.suppress(apsw.Error), self._writer:
            self._writer.execute(CREATE_LATE)
            self._writer.executemany(
                "INSERT INTO late VALUES (?, ?, ?)"
                " ON CONFLICT (epoch, kind) DO UPDATE SET writes = writes + excluded.writes",
                [(epoch, kind, count) for kind, count in sorted(counts.items())],
            )

    def _explain(self, entries: Sequence[Entry], error: apsw.ConstraintError) -> str:
        """Which event of a refused transaction was there already."""
        query = "SELECT seq FROM events WHERE is_once AND kind = ? AND key = ?"
        seen: dict[tuple[str, str], int] = {}
        for event in (entry.event for entry in entries):
            name = (kind_of(event.payload), event.key)
            if not is_once(event.payload):
                continue
            earlier = seen.get(name) or self._writer.execute(query, name).get
            if earlier is not None:
                return f"event {event.seq}: {name[0]} {name[1]!r} is in the journal already, as event {earlier}"
            seen[name] = event.seq
        return f"{self._path} refused events from {entries[0].event.seq} on: {error}"


class SqliteJournal(GroupCommitJournal):
    """The journal of a run's folder; implements `ports.Journal`. One writer at a time.

    Args:
        folder: the run's folder; created when missing.
        incarnation: name of this process's life.
        runner: how commits are run; a writer thread by default, so that the event loop never waits for the disk.
        clock_s: the control plane's clock; the running event loop's by default.
        policy: when to commit what nobody waits for.
        vfs: name of a registered SQLite file system; the default one by default.

    Raises:
        StoreError: when another writer holds the run, or the file is no journal.
    """

    def __init__(
        self,
        folder: Path,
        *,
        incarnation: str,
        runner: CommitRunner | None = None,
        clock_s: Callable[[], float] | None = None,
        policy: CommitPolicy = DEFAULT_POLICY,
        vfs: str | None = None,
    ) -> None:
        super().__init__(
            SqliteStorage(folder, vfs),
            incarnation=incarnation,
            runner=WriterThread() if runner is None else runner,
            clock_s=clock_s,
            policy=policy,
        )
