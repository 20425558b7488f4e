"""Makes a journal shorter in one transaction: lists of what goes, the event that names them, shorter turns, rows gone.

Invariant: the database holds the run as it was or as it is afterwards, whatever crashed when. The hash chain is made again
over the shortened turns only where it holds over what was there, so damage is never covered up.
"""

import dataclasses
import os
from collections.abc import Collection, Iterator
from pathlib import Path

import apsw
import msgspec

from headrace.errors import IntegrityError, StoreError
from headrace.ports import Row
from headrace.records.compaction import RunCompacted
from headrace.records.events import Event, is_once, kind_of
from headrace.records.ids import Address
from headrace.records.provenance import canonical_bytes
from headrace.records.segment import TurnGenerated
from headrace.store.group_commit import GENESIS, chain
from headrace.store.reader import StoredEvent, decode_event
from headrace.store.schema import FILE_NAME, close_anyway, fold_log, open_writer

_PAGE = "SELECT * FROM events WHERE seq > ? ORDER BY seq LIMIT 1000"


@dataclasses.dataclass(frozen=True)
class Shortening:
    """What becomes of a journal.

    Attributes:
        rows: addresses of rows that go.
        lists: rows that name everything that goes.
        turns: events whose turns lose their tokens and log-probs.
    """

    rows: Collection[Address]
    lists: tuple[Row, ...]
    turns: Collection[int]


def shorten_journal(folder: Path, shortening: Shortening, compacted: RunCompacted, vfs: str | None = None) -> None:
    """Does it, in one transaction, under a new epoch; the caller holds the writer's lock.

    Args:
        folder: of the run.
        shortening: what goes.
        compacted: the event, whose `head` is set here.
        vfs: name of a registered SQLite file system; the default one by default.

    Raises:
        IntegrityError: when the hash chain does not hold; nothing has changed.
        StoreError: when it could not be made durable; nothing has changed.
    """
    path = folder / FILE_NAME
    connection = open_writer(path, vfs)
    try:
        fold_log(connection, path)
        with connection:
            _write(connection, shortening, compacted)
    except apsw.Error as error:
        raise StoreError(f"{path} could not be made shorter, and is as it was: {error}") from error
    finally:
        close_anyway(connection)


def give_back(folder: Path, vfs: str | None = None, *, is_sparse: bool) -> None:
    """Pages that hold nothing go back to the file system; the caller holds the writer's lock.

    Args:
        folder: of the run.
        vfs: as for `shorten_journal`.
        is_sparse: whether pages have become partly empty, so that it is worth it also where no whole page is free.

    Raises:
        StoreError: when it could not be done; the journal is sound, and a second call does it.
    """
    path = folder / FILE_NAME
    connection = open_writer(path, vfs)
    try:
        if is_sparse or connection.execute("PRAGMA freelist_count").get:
            connection.execute("VACUUM")
        fold_log(connection, path)
    except apsw.Error as error:
        raise StoreError(
            f"{path} is sound, but its free pages stay: {error}; it needs as much space again, make room and run it again"
        ) from error
    finally:
        close_anyway(connection)


def shorten(event: Event) -> Event:
    """The event of a turn without the turn's tokens and log-probs; any other event as it is."""
    if not isinstance(event.payload, TurnGenerated) or not event.payload.segments:
        return event
    return msgspec.structs.replace(event, payload=event.payload.shorten())


def _write(connection: apsw.Connection, shortening: Shortening, compacted: RunCompacted) -> None:
    epoch: int = connection.execute("UPDATE writer SET epoch = epoch + 1 RETURNING epoch").get
    old, head, seq, t_ns = GENESIS, GENESIS, 0, 0
    for page in _pages(connection):
        changed: list[tuple[bytes, bytes, int]] = []
        for stored in page:
            seq, t_ns = stored.seq, stored.t_ns
            if chain(old, stored.data) != stored.head:
                raise IntegrityError(
                    f"event {seq}: its bytes and the hash chain disagree, so nothing was dropped; see `headrace repair`"
                )
            data = stored.data
            if seq in shortening.turns:
                data = canonical_bytes(shorten(decode_event(stored, "the journal")))
            old, head = stored.head, chain(head, data)
            if (data, head) != (stored.data, stored.head):
                changed.append((data, head, seq))
        connection.executemany("UPDATE events SET bytes = ?, head = ? WHERE seq = ?", changed)
    payload = msgspec.structs.replace(compacted, head=old.hex())
    event = Event(seq + 1, epoch, f"compact-{os.getpid()}", t_ns, str(epoch), 0, payload)
    data = canonical_bytes(event)
    line = (seq + 1, epoch, kind_of(payload), event.key, t_ns, 0, int(is_once(payload)), data, chain(head, data))
    connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", line)
    lists = [(row.address, row.kind, row.data) for row in shortening.lists]
    connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", lists)
    connection.executemany("DELETE FROM rows WHERE address = ?", [(address,) for address in shortening.rows])


def _pages(connection: apsw.Connection) -> Iterator[list[StoredEvent]]:
    after = 0
    while page := [msgspec.convert(tuple(line), StoredEvent) for line in connection.execute(_PAGE, (after,))]:
        yield page
        after = page[-1].seq
