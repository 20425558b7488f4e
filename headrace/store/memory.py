"""A journal in memory, for simulation and measurement. Same order, same hashes, same errors as the one on disk.

The storage is the disk and the journal the process: a second journal over the same storage is a restart, and finds what
the first had committed and nothing else.
"""

from collections.abc import Callable, Iterator, Sequence

from headrace.errors import Outcome, StoreError
from headrace.records.events import Event, Payload, is_once, kind_of
from headrace.records.ids import Address
from headrace.store.group_commit import (
    DEFAULT_POLICY,
    GENESIS,
    CommitPolicy,
    CommitRunner,
    Entry,
    GroupCommitJournal,
    InlineCommit,
    Storage,
    Tail,
)


class MemoryStorage:
    """Committed entries in lists; implements `group_commit.Storage`. Outlives the journals over it."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._rows: dict[Address, bytes] = {}
        self._once: set[tuple[type[Payload], str]] = set()
        self._head = GENESIS
        self._epoch = 0

    def claim(self) -> Tail:
        self._epoch += 1
        last = self._events[-1] if self._events else None
        return Tail(self._epoch, last.seq if last else 0, last.t_ns if last else 0, self._head)

    def commit(self, epoch: int, entries: Sequence[Entry]) -> None:
        if epoch != self._epoch:
            message = f"epoch {epoch} is fenced: epoch {self._epoch} has taken over the journal"
            raise StoreError(message, Outcome.REJECTED)
        once: set[tuple[type[Payload], str]] = set()
        for entry in entries:
            event = entry.event
            if is_once(event.payload):
                name = type(event.payload), event.key
                if name in self._once or name in once:
                    kind = kind_of(event.payload)
                    message = f"event {event.seq}: {kind} {event.key!r} is in the journal already"
                    raise StoreError(message, Outcome.REJECTED)
                once.add(name)
        self._once |= once
        for entry in entries:
            self._events.append(entry.event)
            for row in entry.rows:
                self._rows.setdefault(row.address, row.data)
        self._head = entries[-1].head

    def read(self, address: Address) -> bytes:
        return self._rows[address]

    def events(self, after: int) -> Iterator[Event]:
        position = after
        while position < len(self._events):
            yield self._events[position]
            position += 1

    def close(self) -> None:
        """Keeps everything."""


class MemoryJournal(GroupCommitJournal):
    """A journal whose storage is memory.

    Args:
        storage: the simulated disk; a fresh one by default.
        incarnation: name of this process's life.
        runner: how commits are run; inline without delay by default.
        clock_s: the control plane's clock; the running event loop's by default.
        policy: when to commit what nobody waits for.
    """

    def __init__(
        self,
        storage: Storage | None = None,
        *,
        incarnation: str = "memory",
        runner: CommitRunner | None = None,
        clock_s: Callable[[], float] | None = None,
        policy: CommitPolicy = DEFAULT_POLICY,
    ) -> None:
        super().__init__(
            MemoryStorage() if storage is None else storage,
            incarnation=incarnation,
            runner=InlineCommit() if runner is None else runner,
            clock_s=clock_s,
            policy=policy,
        )
