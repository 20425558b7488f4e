"""A journal for runs whose log nobody keeps: it numbers events and serves transcripts while the trainer may still ask.

Invariant: the same order of events as any journal gives; `head` names their kinds, keys and times, not their payloads.
Everything else that a journal promises (bytes, a disk, a second reader) is left out, and with it most of its cost.
"""

import asyncio
import hashlib
from collections.abc import Iterator, Sequence

from headrace.ports import Row
from headrace.records.events import Event, Payload, kind_of
from headrace.records.ids import Address
from headrace.records.provenance import canonical_bytes

_KEPT_KIND = "transcript"
_MOST_KEPT = 1 << 16
"""Transcripts that are kept; a simulated run has fewer in flight."""
_HASHED_AT_ONCE = 512


class CountingJournal:
    """`Journal` that keeps no event."""

    epoch = 1

    def __init__(self) -> None:
        self._seq = 0
        self._rows: dict[Address, bytes] = {}
        self._hash = hashlib.sha256()
        self._unhashed: list[tuple[str, str, float]] = []
        self._time = asyncio.get_running_loop().time

    def append(self, payload: Payload, *, key: str, cause: int = 0, rows: Sequence[Row] = ()) -> int:
        self._seq += 1
        for row in rows:
            if row.kind == _KEPT_KIND:
                self._keep(row)
        self._unhashed.append((kind_of(payload), key, self._time()))
        if len(self._unhashed) == _HASHED_AT_ONCE:
            self._hash.update(canonical_bytes(self._unhashed))
            self._unhashed.clear()
        return self._seq

    async def durable(self, seq: int) -> None:
        """Returns at once: there is no disk."""

    def read(self, address: Address) -> bytes:
        return self._rows[address]

    def events(self, after: int = 0) -> Iterator[Event]:
        return iter(())

    def head(self) -> str:
        whole = self._hash.copy()
        whole.update(canonical_bytes(self._unhashed))
        return whole.hexdigest()

    def _keep(self, row: Row) -> None:
        self._rows[row.address] = row.data
        if len(self._rows) > _MOST_KEPT:
            del self._rows[next(iter(self._rows))]
