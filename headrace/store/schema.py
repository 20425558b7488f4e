"""The SQLite schema of a journal, and how a connection to it is opened.

`events` repeats a few fields of the encoded event as columns for look-up; verification compares them. `head` is the hash
chain after the event. The partial unique index refuses a second event of a (kind, key) that names the first for good.
"""

import contextlib
from pathlib import Path

import apsw

from headrace.errors import StoreError

FILE_NAME = "journal.db"
"""Name of the database within a run's folder."""

APPLICATION_ID = 0x48524A31
"""`HRJ1`: tells a journal from any other SQLite file, and its format version from any other."""

CREATE = """
CREATE TABLE IF NOT EXISTS events(
    seq INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    t_ns INTEGER NOT NULL,
    cause_seq INTEGER NOT NULL,
    is_once INTEGER NOT NULL,
    bytes BLOB NOT NULL,
    head BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS once ON events(kind, key) WHERE is_once;
CREATE TABLE IF NOT EXISTS rows(
    address TEXT NOT NULL,
    kind TEXT NOT NULL,
    data BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS row_address ON rows(address);
CREATE TABLE IF NOT EXISTS writer(only INTEGER PRIMARY KEY CHECK (only = 1), epoch INTEGER NOT NULL) STRICT;
INSERT OR IGNORE INTO writer VALUES (1, 0);
"""

CREATE_LATE = """
CREATE TABLE IF NOT EXISTS late(
    epoch INTEGER NOT NULL,
    kind TEXT NOT NULL,
    writes INTEGER NOT NULL,
    PRIMARY KEY (epoch, kind)
) STRICT;
"""
"""Made by the first refusal of a writer that was taken over: how many events of which kind it would have written."""

_BUSY_MS = 10_000


def open_writer(path: Path, vfs: str | None) -> apsw.Connection:
    """A connection that writes with WAL and synchronous FULL: a committed transaction is on disk.

    Raises:
        StoreError: when the file is no journal of this format, or cannot be opened.
    """
    try:
        connection = apsw.Connection(str(path), vfs=vfs)
    except apsw.Error as error:
        raise StoreError(f"{path} cannot be opened as a journal: {error}") from error
    try:
        _prepare(connection, path)
    except (apsw.Error, StoreError) as error:
        close_anyway(connection)
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{path} cannot be opened as a journal: {error}") from error
    return connection


def close_anyway(connection: apsw.Connection) -> None:
    """Frees a connection also where its disk refuses to fold the log; the next writer does it."""
    with contextlib.suppress(apsw.Error):
        connection.close()


def _prepare(connection: apsw.Connection, path: Path) -> None:
    connection.set_busy_timeout(_BUSY_MS)
    mode = connection.execute("PRAGMA journal_mode = WAL").get
    if mode != "wal":
        raise StoreError(
            f"{path}: the file system allows journal mode {mode} only; put the run on one that can map memory"
        )
    connection.execute("PRAGMA synchronous = FULL")
    found = connection.execute("PRAGMA application_id").get
    is_empty = connection.execute("SELECT count(*) FROM sqlite_schema").get == 0
    if found != APPLICATION_ID and not is_empty:
        raise StoreError(f"{path}: application id {found:#x} is not that of a journal, {APPLICATION_ID:#x}")
    with connection:
        connection.execute(CREATE)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def fold_log(connection: apsw.Connection, path: Path) -> None:
    """Moves everything in the write-ahead log into the database, synced, and starts the log anew.

    After a failed sync the kernel may show bytes that it will never write. Whoever takes a journal over reads them as
    committed; before anything is built on them they are written once more, where a sync can be trusted again.

    Raises:
        StoreError: when it could not be done, or a reader holds on to the log.
    """
    try:
        is_busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
    except apsw.Error as error:
        raise StoreError(f"{path}: its write-ahead log cannot be folded in: {error}") from error
    if is_busy:
        raise StoreError(f"{path}: another process has been reading for {_BUSY_MS / 1000:.0f} s; end it and try again")


def open_read_only(path: Path, vfs: str | None = None) -> apsw.Connection:
    """A connection that cannot write. It sees every transaction that is committed when a statement begins.

    A finished run in a folder that this user cannot write is read as it stands.

    Raises:
        StoreError: when there is no journal of this format.
    """
    if not path.is_file():
        raise StoreError(f"{path}: no such journal; name the folder of a run")
    try:
        connection = _connect_read_only(path, vfs)
        connection.set_busy_timeout(_BUSY_MS)
        found = connection.execute("PRAGMA application_id").get
    except apsw.Error as error:
        raise StoreError(f"{path} cannot be read as a journal: {error}") from error
    if found != APPLICATION_ID:
        raise StoreError(f"{path}: application id {found:#x} is not that of a journal, {APPLICATION_ID:#x}")
    return connection


def _connect_read_only(path: Path, vfs: str | None) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs)
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except (apsw.CantOpenError, apsw.ReadOnlyError):
        connection.close()
        if path.with_name(path.name + "-wal").exists():
            raise
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        return apsw.Connection(f"{path.resolve().as_uri()}?immutable=1", flags=flags, vfs=vfs)
    return connection
