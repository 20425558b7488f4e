"""The ports of what lasts: the journal of events with its sealed rows, and files by content address."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from headrace.records.events import Event, Payload
from headrace.records.ids import Address
from headrace.records.provenance import address_of


class Row:
    """A content-addressed row that becomes durable together with the event that names it.

    It makes its address itself, so none can lie under the address of other bytes.

    Attributes:
        kind: `task`, `transcript`, `side`, `verdict`, `plan`, `config`, `artifact`, `receipt`.
        data: canonical bytes.
        address: SHA-256 of `data`.
    """

    __slots__ = ("address", "data", "kind")

    def __init__(self, kind: str, data: bytes) -> None:
        self.kind: Final = kind
        self.data: Final = data
        self.address: Final = address_of(data)


class Journal(Protocol):
    """The append-only event log of one run, with its sealed rows."""

    @property
    def epoch(self) -> int:
        """Epoch of this writer: 1 for the first process of the run."""
        ...

    def append(self, payload: Payload, *, key: str, cause: int = 0, rows: Sequence[Row] = ()) -> int:
        """Sequence number of the event, which has its place in the order at once and is durable later.

        Raises:
            StoreError: REJECTED when an earlier write failed; nothing more is accepted.
        """
        ...

    async def durable(self, seq: int) -> None:
        """Returns once the event and all before it are on disk.

        Raises:
            StoreError: REJECTED when another process has taken over, or a once-only (kind, key) was there already;
                LOST when the disk failed, which may have written them all the same.
        """
        ...

    def read(self, address: Address) -> bytes:
        """Bytes of a sealed row, appended by this process or durable, checked against the address.

        Raises:
            IntegrityError: when the bytes do not hash to the address.
            KeyError: when there is no such row.
        """
        ...

    def events(self, after: int = 0) -> Iterator[Event]:
        """Durable events with seq > after, in order."""
        ...

    def head(self) -> str:
        """Hash over all events so far: two runs that did the same have the same."""
        ...


class Blobs(Protocol):
    """Large immutable bytes by content address, as files."""

    def put(self, data: bytes) -> Address:
        """Stores the bytes; returns once they are durable.

        Raises:
            StoreError: LOST when the disk failed: they are stored whole or not at all.
        """
        ...

    def path(self, address: Address) -> Path:
        """Where the file lies.

        Raises:
            KeyError: when it is not stored.
        """
        ...
