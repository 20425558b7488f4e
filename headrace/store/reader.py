"""Reads a journal without writing it: other processes look up sealed rows, reports and checks walk the events.

Invariant: a row is handed out only when it hashes to its address. Long walks are cut into short statements, so that no
reader keeps the writer's log from being folded back into the database.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, TypeVar

import apsw
import msgspec

from headrace.errors import IntegrityError, StoreError
from headrace.records.events import Event, is_once, kind_of
from headrace.records.ids import Address
from headrace.records.provenance import check_address
from headrace.store.drops import Drops
from headrace.store.schema import FILE_NAME, open_read_only

T = TypeVar("T")

_EVENTS_PAGE = 1_000
_ROWS_PAGE = 64

_COLUMNS = "SELECT seq, epoch, kind, key, t_ns, cause_seq, is_once, bytes, head FROM events"
_EVENTS = f"{_COLUMNS} WHERE seq > ? ORDER BY seq LIMIT ?"
_ABOUT = f"{_COLUMNS} WHERE is_once AND kind = ? AND key >= ? AND key < ? ORDER BY seq"
_ROWS = "SELECT rowid, address, kind, data FROM rows WHERE rowid > ? ORDER BY rowid LIMIT ?"
# The first repeats the condition of the partial index, or the index would not serve it.
_ONCE_OF_KIND = "SELECT seq FROM events WHERE is_once AND kind = ? AND seq > ?"
_REPEATED_OF_KIND = "SELECT seq FROM events WHERE NOT is_once AND kind = ? AND seq > ?"

_DECODER = msgspec.msgpack.Decoder(Event)


class StoredEvent(NamedTuple):
    """One line of `events` as it lies in the database.

    Attributes:
        seq: position.
        epoch: as a column.
        kind: as a column.
        key: as a column.
        t_ns: as a column.
        cause_seq: as a column.
        is_once: as a column.
        data: canonical bytes of the event.
        head: hash chain after it.
    """

    seq: int
    epoch: int
    kind: str
    key: str
    t_ns: int
    cause_seq: int
    is_once: int
    data: bytes
    head: bytes

    @classmethod
    def of(cls, event: Event, data: bytes, head: bytes) -> "StoredEvent":
        """The line of an event: its columns say what it says."""
        payload = event.payload
        once = int(is_once(payload))
        return cls(event.seq, event.epoch, kind_of(payload), event.key, event.t_ns, event.cause_seq, once, data, head)


class StoredRow(NamedTuple):
    """One line of `rows` as it lies in the database.

    Attributes:
        rowid: position in the table.
        address: as a column.
        kind: as a column.
        data: bytes, unchecked.
    """

    rowid: int
    address: str
    kind: str
    data: bytes


class StoredLate(NamedTuple):
    """What a writer that was taken over wanted to append, and was refused.

    Attributes:
        epoch: of the writer.
        kind: of the events.
        writes: how many.
    """

    epoch: int
    kind: str
    writes: int


class JournalReader:
    """Read access to a journal. Owns its connection.

    Args:
        connection: an open one.
        name: what messages call it.
    """

    def __init__(self, connection: apsw.Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._drops: Drops | None = None

    def __enter__(self) -> "JournalReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, address: Address) -> bytes:
        """Bytes of a durable row, checked against the address.

        Raises:
            RecordDropped: when a compaction dropped it.
            KeyError: when there is no such row.
            IntegrityError: when the bytes do not hash to the address.
            StoreError: when the database cannot be read.
        """
        data = self.read_unchecked(address)
        check_address(address, data, f"row {address} of {self._name}")
        return data

    def read_unchecked(self, address: Address) -> bytes:
        """Bytes of a durable row. Raises as `read` does, and IntegrityError only when they are no bytes."""
        for (found,) in self._lines("SELECT data FROM rows WHERE address = ?", (address,)):
            if not isinstance(found, bytes):
                raise IntegrityError(f"row {address} of {self._name} holds {type(found).__name__}; the line is damaged")
            return found
        if self._drops is None:
            self._drops = Drops((), self.read)  # so that a list that is absent itself is not looked for in the lists
            self._drops = self.drops()
        raise self._drops.refusal(address) or KeyError(f"no row {address} in {self._name}")

    def drops(self) -> Drops:
        """What compactions dropped. Raises IntegrityError when a list of it is damaged or gone, and StoreError."""
        kinds = ("run_compacted", "record_quarantined")
        return Drops((event for kind in kinds for event in self.events_of_kind(kind)), self.read)

    def has_row(self, address: Address) -> bool:
        """Whether a row of this address is stored; says nothing of its bytes. Raises StoreError."""
        return bool(self._lines("SELECT 1 FROM rows WHERE address = ?", (address,)))

    def events(self, after: int = 0) -> Iterator[Event]:
        """Durable events with seq > after, in order.

        Raises:
            IntegrityError: when one cannot be decoded.
            StoreError: when the database cannot be read.
        """
        for stored in self.stored_events(after):
            yield decode_event(stored, self._name)

    def events_about(self, kind: str, key: str) -> list[Event]:
        """Events of the kind, which occurs once per key, whose key is `key` or goes on after a sign: `key/2`, `key#1`.

        Raises:
            IntegrityError: when one cannot be decoded.
            StoreError: when the database cannot be read.
        """
        lines = self._lines(_ABOUT, (kind, key, key + "\x7f"))
        stored = (self._typed(line, StoredEvent) for line in lines)
        return [decode_event(line, self._name) for line in stored if _is_about(line.key, key)]

    def events_of_kind(self, kind: str, after: int = 0, *, is_once: bool = True) -> Iterator[Event]:
        """Events of one kind with seq > after, in order; kinds that may repeat under a key are found by a scan.

        Raises:
            IntegrityError: when one cannot be decoded.
            StoreError: when the database cannot be read.
        """
        query = _ONCE_OF_KIND if is_once else _REPEATED_OF_KIND
        found = sorted(int(str(seq)) for (seq,) in self._lines(query, (kind, after)))
        for seq in found:
            for line in self._lines(_EVENTS, (seq - 1, 1)):
                yield decode_event(self._typed(line, StoredEvent), self._name)

    def last_seq(self) -> int:
        """Sequence number of the newest durable event; 0 when there is none. Raises StoreError."""
        newest = self._lines("SELECT seq FROM events ORDER BY seq DESC LIMIT 1", ())
        return int(str(newest[0][0])) if newest else 0

    def stored_events(self, after: int = 0) -> Iterator[StoredEvent]:
        """Undecoded events with seq > after, in order. Raises StoreError, IntegrityError."""
        while lines := self._lines(_EVENTS, (after, _EVENTS_PAGE)):
            for line in lines:
                stored = self._typed(line, StoredEvent)
                after = stored.seq
                yield stored

    def stored_rows(self) -> Iterator[StoredRow]:
        """Every row, unchecked, by position. Raises StoreError, IntegrityError."""
        after = 0
        while lines := self._lines(_ROWS, (after, _ROWS_PAGE)):
            for line in lines:
                stored = self._typed(line, StoredRow)
                after = stored.rowid
                yield stored

    def stored_event_lines(self, after: int, limit: int) -> list[StoredEvent]:
        """At most so many undecoded events with seq > after. Raises StoreError, IntegrityError."""
        return [self._typed(line, StoredEvent) for line in self._lines(_EVENTS, (after, limit))]

    def stored_row_lines(self, after: int, limit: int) -> list[StoredRow]:
        """At most so many unchecked rows with rowid > after. Raises StoreError, IntegrityError."""
        return [self._typed(line, StoredRow) for line in self._lines(_ROWS, (after, limit))]

    def largest_seq(self) -> int:
        """Largest sequence number that is stored, 0 where none can be read."""
        return self._number("SELECT max(seq) FROM events")

    def writer_epoch(self) -> int:
        """Epoch of the newest writer, 0 where it cannot be read."""
        return self._number("SELECT epoch FROM writer")

    def late_writes(self) -> dict[str, int]:
        """Events by kind that writers wanted to append after they were taken over, and were refused. Raises StoreError."""
        counts: Counter[str] = Counter()
        for line in self.stored_late():
            counts[line.kind] += line.writes
        return dict(sorted(counts.items()))

    def stored_late(self) -> list[StoredLate]:
        """The counts of late writes as they are stored. Raises StoreError."""
        if not self._lines("SELECT 1 FROM sqlite_schema WHERE name = 'late'", ()):
            return []
        lines = self._lines("SELECT epoch, kind, writes FROM late ORDER BY epoch, kind", ())
        return [StoredLate(int(str(epoch)), str(kind), int(str(writes))) for epoch, kind, writes in lines]

    def count_kinds(self, after: int) -> dict[str, int]:
        """Events with seq > after by kind; empty where they cannot be read."""
        try:
            lines = self._lines("SELECT kind, count(*) FROM events WHERE seq > ? GROUP BY kind ORDER BY kind", (after,))
        except StoreError:
            return {}
        return {str(kind): int(str(count)) for kind, count in lines}

    def damage(self) -> list[str]:
        """What SQLite's own check of pages, indices and constraints objects to; empty when it is sound."""
        try:
            lines = [str(line) for (line,) in self._lines("PRAGMA integrity_check", ())]
        except StoreError as error:
            return [f"integrity_check could not finish: {error}"]
        return [] if lines == ["ok"] else lines

    def close(self) -> None:
        """Frees the connection. Safe to call twice."""
        self._connection.close()

    def _number(self, query: str) -> int:
        try:
            lines = self._lines(query, ())
        except StoreError:
            return 0
        return lines[0][0] if lines and isinstance(lines[0][0], int) else 0

    def _lines(self, query: str, values: tuple[str | int, ...]) -> list[tuple[object, ...]]:
        try:
            return [tuple(line) for line in self._connection.execute(query, values)]
        except (apsw.Error, UnicodeDecodeError) as error:
            raise StoreError(f"{self._name} cannot be read ({query!r}, {values}): {error}") from error

    def _typed(self, line: tuple[object, ...], kind: type[T]) -> T:
        """The line with the types of its columns; a flipped bit can turn text into a number."""
        try:
            return msgspec.convert(line, kind)
        except msgspec.ValidationError as error:
            raise IntegrityError(f"line {line[0]} of {self._name} has a column of another type: {error}") from error


def open_reader(path: Path) -> JournalReader:
    """A reader of the journal in a run's folder, or of the database file itself.

    Raises:
        StoreError: when there is no journal.
    """
    file = path / FILE_NAME if path.is_dir() else path
    return JournalReader(open_read_only(file), str(file))


def decode_event(stored: StoredEvent, name: str) -> Event:
    """The event of a stored line. Raises IntegrityError."""
    try:
        return _DECODER.decode(stored.data)
    except (msgspec.DecodeError, ValueError) as error:
        raise IntegrityError(f"event {stored.seq} of {name} cannot be decoded: {error}") from error


def _is_about(key: str, subject: str) -> bool:
    """Whether the key is the subject or names a part of it; `train.1.0.10` is no part of `train.1.0.1`."""
    rest = key[len(subject) :]
    return key.startswith(subject) and (not rest or not (rest[0].isalnum() or rest[0] == "."))
