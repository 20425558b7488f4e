"""Which addresses compactions dropped: what a look-up of absent bytes is answered with.

Invariant: only a list that a durable `RunCompacted` event names is taken; bytes that are stored are never asked for here.
"""

from collections.abc import Iterable

from headrace.errors import IntegrityError
from headrace.records.checkpoint import RecordQuarantined
from headrace.records.compaction import DropList, DroppedRecord, RecordDropped, RunCompacted
from headrace.records.events import Event
from headrace.records.ids import Address
from headrace.records.provenance import Read, read_record


class Drops:
    """Dropped records by address.

    Args:
        events: with every `RunCompacted` among them, and every `RecordQuarantined`: a list that was set aside is not read,
            and what it named was set aside with it.
        read: looks up the lists.

    Raises:
        IntegrityError: when a list is damaged or gone.
    """

    def __init__(self, events: Iterable[Event], read: Read) -> None:
        self._found: dict[Address, tuple[DroppedRecord, int, RunCompacted]] = {}
        compacted: list[tuple[int, RunCompacted]] = []
        lost: set[Address] = set()
        for event in events:
            if isinstance(event.payload, RunCompacted):
                compacted.append((event.seq, event.payload))
            elif isinstance(event.payload, RecordQuarantined):
                lost.add(event.payload.address)
        for seq, payload in compacted:
            for address in (item for item in payload.lists if item not in lost):
                self._found |= {item.address: (item, seq, payload) for item in _records(address, seq, read)}

    def __contains__(self, address: Address) -> bool:
        return address in self._found

    def refusal(self, address: Address) -> RecordDropped | None:
        """What to raise for an address that is not stored; None when no compaction dropped it."""
        found = self._found.get(address)
        return None if found is None else RecordDropped(*found)


def _records(address: Address, seq: int, read: Read) -> tuple[DroppedRecord, ...]:
    try:
        return read_record(read, address, DropList).records
    except KeyError as error:
        raise IntegrityError(
            f"list {address} of what event {seq} dropped is gone; see `headrace repair RUN --dry-run`"
        ) from error
