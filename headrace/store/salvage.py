"""What of a damaged journal can be proven to be as it was written, and what cannot.

Invariant: an event is taken only when the hash chain up to it holds, a row only when its bytes hash to the address by which
something names it. One flipped bit is put right where the hash proves which one; nothing else is guessed.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from headrace.errors import IntegrityError, StoreError
from headrace.records.events import Event
from headrace.records.ids import Address
from headrace.records.provenance import address_of
from headrace.records.trajectory import Transcript
from headrace.store.group_commit import GENESIS, chain
from headrace.store.reader import JournalReader, StoredEvent, StoredLate, StoredRow, decode_event
from headrace.store.references import Named, decode_row, named_by_event, named_by_row

T = TypeVar("T", StoredEvent, StoredRow)

MOST_HEALED_BYTES = 16_384
"""Longest bytes in which every single bit is tried."""
_GIVE_UP_AFTER = 4_096
"""Positions without a readable line after which a damaged table is taken to end."""

_KINDS = {
    "first verdict": "verdict",
    "graded transcript": "transcript",
    "member transcript": "transcript",
    "member verdict": "verdict",
    "planned transcript": "transcript",
    "second verdict": "verdict",
    "side record": "side",
}
"""Kind of row for what an address is to whoever names it, where that is another word."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was not as it was written, and what is done about it.

    Attributes:
        where: event, row or blob.
        wrong: what is wrong with it.
        remedy: `rebuilt` from what proves it, `quarantined`, or `none`.
    """

    where: str
    wrong: str
    remedy: str


@dataclasses.dataclass(frozen=True)
class Break:
    """Where the hash chain ends that can be proven, although something follows.

    Attributes:
        good_seq: the last good event.
        wrong: what is wrong with the next one.
        lost: events after it by kind, as far as they can be read.
    """

    good_seq: int
    wrong: str
    lost: dict[str, int]


class SalvagedEvents:
    """The provable beginning of the events, with their columns made again.

    Args:
        reader: of the damaged journal.
        until: the last event that is wanted; None wants all.

    Attributes:
        findings: what was rebuilt on the way; complete once iterated.
        break_: where it ends before the end, if it does.
        named: every address that an event names, with its kind of row.
        last: the last good event as stored; None without any.
    """

    def __init__(self, reader: JournalReader, until: int | None = None) -> None:
        self._reader = reader
        self._until = until
        self.findings: list[Finding] = []
        self.break_: Break | None = None
        self.named: dict[Address, str] = {}
        self.last: StoredEvent | None = None

    def __iter__(self) -> Iterator[tuple[Event, StoredEvent]]:
        """Events with what is to be stored of each."""
        head, seq = GENESIS, 0
        lines = _Lookahead(tolerant(self._reader.stored_event_lines))
        for stored in lines:
            if seq == self._until:
                return
            proven = self._proven(stored, head, lines.next) if stored.seq == seq + 1 else None
            if proven is None:
                wrong = "is missing" if stored.seq != seq + 1 else "its bytes are not those of the hash chain"
                self._end(seq, f"event {seq + 1} {wrong}")
                return
            event, made = proven
            if made != stored:
                self.findings.append(Finding(f"event {made.seq}", _difference(stored, made), "rebuilt"))
            seq, head, self.last = made.seq, made.head, made
            for role, address in named_by_event(event):
                self.named.setdefault(address, _KINDS.get(role, role))
            yield event, made
        if self._reader.largest_seq() > seq:
            self._end(seq, f"events from {seq + 1} on cannot be read")

    def _proven(
        self, stored: StoredEvent, head: bytes, following: StoredEvent | None
    ) -> tuple[Event, StoredEvent] | None:
        """The event and its line, when the chain proves it."""
        data: bytes | None = stored.data
        made = chain(head, stored.data)
        if made != stored.head and (following is None or chain(made, following.data) != following.head):
            data = heal(stored.data, lambda flipped: chain(head, flipped) == stored.head)
            made = stored.head
        if data is None:
            return None
        event = decode_event(stored._replace(data=data), "the journal")
        return event, StoredEvent.of(event, data, made)

    def _end(self, seq: int, wrong: str) -> None:
        self.break_ = Break(seq, wrong, self._reader.count_kinds(seq))


class SalvagedRows:
    """Rows that hash to the address by which they are named.

    Attributes:
        findings: what was rebuilt or set aside; complete once iterated.
        found: addresses of good rows.
        parents: the transcript that names an artifact or an attachment.
        named: addresses that events or good rows name, with their kind.
        broken: what is wrong with rows that were set aside.
    """

    def __init__(self, reader: JournalReader, named: dict[Address, str]) -> None:
        self._reader = reader
        self.findings: list[Finding] = []
        self.found: set[Address] = set()
        self.parents: dict[Address, Address] = {}
        self.named = named
        self.broken: dict[Address, str] = {}

    def __iter__(self) -> Iterator[tuple[StoredRow, Named]]:
        """Good rows as they are to be stored, with what each names."""
        for stored in tolerant(self._reader.stored_row_lines):
            made = self._proven(stored)
            if made is None or made.address in self.found:
                continue
            try:
                record = decode_row(made.kind, made.data)
            except ValueError as error:
                self._aside(stored, str(error))
                continue
            if made != stored:
                self.findings.append(Finding(f"row {made.address}", _difference(stored, made), "rebuilt"))
            names = named_by_row(record)
            if isinstance(record, Transcript):
                for role, address in names:
                    if role == "task":
                        continue
                    self.parents.setdefault(address, Address(made.address))
                    if made.address in self.named:
                        self.named.setdefault(address, role)
            self.found.add(Address(made.address))
            yield made, names

    def _proven(self, stored: StoredRow) -> StoredRow | None:
        address, data = Address(stored.address), stored.data
        actual = address_of(data)
        if actual != address:
            if actual in self.named:
                address = actual  # the bytes are right, and the column that names them is not
            else:
                healed = heal(data, lambda flipped: address_of(flipped) == address)
                if healed is None:
                    self._aside(stored, f"its bytes hash to {actual}")
                    return None
                data = healed
        return StoredRow(stored.rowid, address, self.named.get(address, stored.kind), data)

    def _aside(self, stored: StoredRow, wrong: str) -> None:
        self.broken[Address(stored.address)] = wrong
        self.findings.append(Finding(f"row {stored.address} ({stored.kind})", wrong, "quarantined"))


def salvaged_late(reader: JournalReader) -> tuple[list[StoredLate], list[Finding]]:
    """The counts of late writes beside the journal; none, and a finding, where they cannot be read."""
    try:
        return reader.stored_late(), []
    except StoreError as error:
        return [], [Finding("counts of late writes", str(error), "quarantined")]


def heal(data: bytes, is_right: Callable[[bytes], bool]) -> bytes | None:
    """The bytes with the one bit flipped that makes them right; None when no single bit does, or they are too long."""
    if len(data) > MOST_HEALED_BYTES:
        return None
    tried = bytearray(data)
    for position in range(len(tried)):
        for bit in range(8):
            tried[position] ^= 1 << bit
            if is_right(bytes(tried)):
                return bytes(tried)
            tried[position] ^= 1 << bit
    return None


def tolerant(lines: Callable[[int, int], list[T]]) -> Iterator[T]:
    """Lines of a table in order; where a page cannot be read, those around it that can."""
    after, missed = 0, 0
    while missed < _GIVE_UP_AFTER:
        try:
            page = lines(after, 64)
            if not page:
                return
        except (StoreError, IntegrityError):
            try:
                page = [item for item in lines(after, 1) if _position(item) == after + 1]
            except (StoreError, IntegrityError):
                page = []
            if not page:
                after, missed = after + 1, missed + 1
                continue
        missed = 0
        yield from page
        after = _position(page[-1])


def _position(line: StoredEvent | StoredRow) -> int:
    return line.seq if isinstance(line, StoredEvent) else line.rowid


class _Lookahead:
    """Iterates, and knows the line after the present one."""

    def __init__(self, lines: Iterator[StoredEvent]) -> None:
        self._lines = lines
        self.next: StoredEvent | None = next(lines, None)

    def __iter__(self) -> Iterator[StoredEvent]:
        while self.next is not None:
            present, self.next = self.next, next(self._lines, None)
            yield present


def _difference(stored: StoredEvent | StoredRow, made: StoredEvent | StoredRow) -> str:
    names = [name for name, old, new in zip(stored._fields, stored, made, strict=True) if old != new]
    return f"{', '.join(names)} differed from what the hashes prove"
