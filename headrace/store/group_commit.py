"""The journal's order and its group commit; where the bytes end up is the storage's business.

Invariant: an event has its place in the order, and in the hash chain, from `append` on; it is acknowledged by `durable`
only after it and everything before it has been committed, in one transaction with its rows. Once a commit has failed,
nothing more is accepted: whoever appended after the failed one might otherwise believe in a gap.

`append` never blocks. What is pending is committed together: at once when something waits for it, otherwise within a
bounded delay. How a commit is run is injected: on a writer thread, so that the event loop never waits for a disk, or
inline after a simulated delay, so that a virtual clock decides.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, Protocol

import msgspec

from headrace.errors import IntegrityError, Outcome, StoreError
from headrace.ports import Row
from headrace.records.events import Durability, Event, Payload, durability
from headrace.records.ids import Address
from headrace.records.provenance import canonical_bytes, check_address

GENESIS = hashlib.sha256(b"headrace journal 1").digest()
"""Hash chain of a journal without events."""


def chain(head: bytes, data: bytes) -> bytes:
    """Head of the hash chain once the event bytes are appended."""
    return hashlib.sha256(head + data).digest()


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One event on its way to the storage.

    Attributes:
        event: the envelope.
        data: its canonical bytes.
        head: hash chain after it.
        rows: sealed rows that become durable with it.
    """

    event: Event
    data: bytes
    head: bytes
    rows: tuple[Row, ...]


class Tail(NamedTuple):
    """Where a stored journal ends, as its next writer finds it.

    Attributes:
        epoch: of the writer that asks; higher than every one before.
        seq: sequence number of the last event, 0 when there is none.
        t_ns: its time.
        head: hash chain after it.
    """

    epoch: int
    seq: int
    t_ns: int
    head: bytes


class Storage(Protocol):
    """Where committed entries live. `commit` may run on another thread than the rest, never two at a time."""

    def claim(self) -> Tail:
        """Takes over the journal under a new epoch; an older writer's commits are refused from here on."""
        ...

    def commit(self, epoch: int, entries: Sequence[Entry]) -> None:
        """Makes all entries durable, or none.

        Raises:
            StoreError: when it did not, with the reason.
        """
        ...

    def read(self, address: Address) -> bytes:
        """Bytes of a committed row. Raises KeyError when there is none."""
        ...

    def events(self, after: int) -> Iterator[Event]:
        """Committed events with seq > after, in order."""
        ...

    def close(self) -> None:
        """Frees everything; what was committed stays."""
        ...


class CommitRunner(Protocol):
    """How a synchronous commit is run."""

    def __call__(self, commit: Callable[[], None]) -> Awaitable[None]:
        """Returns once the commit has returned; raises what it raised."""
        ...

    def close(self) -> None:
        """Frees everything; no commit is running."""
        ...


class InlineCommit:
    """Commits on the event loop, after a delay on its clock; deterministic, and threadless.

    Args:
        sync_s: seconds that the simulated disk takes; 0 commits at the next turn of the loop.
    """

    def __init__(self, sync_s: float = 0.0) -> None:
        self._sync_s = sync_s

    async def __call__(self, commit: Callable[[], None]) -> None:
        if self._sync_s > 0:
            await asyncio.sleep(self._sync_s)
        commit()

    def close(self) -> None:
        """Holds nothing."""


class WriterThread:
    """Commits on one thread of its own; the event loop goes on meanwhile."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal-writer")

    async def __call__(self, commit: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, commit)

    def close(self) -> None:
        self._executor.shutdown(wait=True)


class CommitPolicy(msgspec.Struct, frozen=True):
    """When pending events are committed although nothing waits for them.

    Attributes:
        max_delay_s: seconds after which the oldest pending event is committed.
        max_pending: number of pending events that are committed at once.
    """

    max_delay_s: float = 0.05
    max_pending: int = 512


DEFAULT_POLICY = CommitPolicy()
_DURABLE: Final = Durability.DURABLE


class _Batch:
    """Entries that will be committed together, and who waits for them."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.rows: dict[Address, bytes] = {}
        self.waiters: list[asyncio.Future[None]] = []

    def finish(self, failure: StoreError | None) -> None:
        for waiter in self.waiters:
            if waiter.done():  # its owner was cancelled
                continue
            if failure is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(StoreError(str(failure), failure.outcome))
        self.waiters.clear()


class GroupCommitJournal:
    """Implements `ports.Journal` over a storage.

    Args:
        storage: where entries are committed.
        incarnation: name of this process's life.
        runner: how commits are run.
        clock_s: the control plane's clock; the running event loop's by default. Times go on from the last stored event.
        policy: when to commit what nobody waits for.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        incarnation: str,
        runner: CommitRunner,
        clock_s: Callable[[], float] | None = None,
        policy: CommitPolicy = DEFAULT_POLICY,
    ) -> None:
        self._storage = storage
        self._runner = runner
        self._policy = policy
        self._incarnation = incarnation
        tail = storage.claim()
        self._epoch, self._seq, self._base_ns, self._head = tail
        self._durable_seq = tail.seq
        self._wanted_seq = 0
        self._clock_s = clock_s
        self._start_s: float | None = None
        self._pending = _Batch()
        self._in_flight: _Batch | None = None
        self._committer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failure: StoreError | None = None

    @property
    def epoch(self) -> int:
        """Epoch of this writer."""
        return self._epoch

    @property
    def last_seq(self) -> int:
        """Sequence number of the last event appended; 0 when there is none."""
        return self._seq

    @property
    def durable_seq(self) -> int:
        """Sequence number up to which everything is on disk."""
        return self._durable_seq

    def append(self, payload: Payload, *, key: str, cause: int = 0, rows: Sequence[Row] = ()) -> int:
        """Sequence number of the event; see `ports.Journal`.

        Raises:
            StoreError: when an earlier commit failed or the journal is closed.
            IntegrityError: when the cause does not precede the event.
        """
        if self._failure is not None:
            raise StoreError(f"event {key!r} refused: {self._failure}", Outcome.REJECTED)
        seq = self._seq + 1
        if not 0 <= cause < seq:
            raise IntegrityError(f"event {seq} names {cause} as its cause; a cause comes before its effect")
        event = Event(seq, self._epoch, self._incarnation, self._now_ns(), key, cause, payload)
        data = canonical_bytes(event)
        self._seq = seq
        self._head = head = chain(self._head, data)
        batch = self._pending
        batch.entries.append(Entry(event, data, head, tuple(rows)))
        for row in rows:
            batch.rows[row.address] = row.data
        # A full batch is wanted once: what comes after it goes with it.
        if durability(payload) is _DURABLE or len(batch.entries) == self._policy.max_pending:
            self._want(seq)
        elif self._timer is None and self._committer is None:
            self._arm()
        return seq

    async def durable(self, seq: int) -> None:
        if seq <= self._durable_seq:
            return
        if seq > self._seq:
            raise StoreError(f"event {seq} was never appended; the last one is {self._seq}", Outcome.REJECTED)
        if self._failure is not None:
            raise StoreError(f"event {seq} is not acknowledged: {self._failure}", self._failure.outcome)
        in_flight = self._in_flight
        batch = self._pending
        if in_flight is not None and seq <= in_flight.entries[-1].event.seq:
            batch = in_flight
        else:
            self._want(seq)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        batch.waiters.append(waiter)
        await waiter

    def read(self, address: Address) -> bytes:
        for batch in (self._pending, self._in_flight):
            if batch is not None and address in batch.rows:
                return batch.rows[address]
        data = self._storage.read(address)
        check_address(address, data, f"row {address}")
        return data

    def events(self, after: int = 0) -> Iterator[Event]:
        return self._storage.events(after)

    def head(self) -> str:
        return self._head.hex()

    async def close(self) -> None:
        """Commits what is pending and frees everything; nothing is accepted, and nothing on disk read, afterwards.

        Safe to call twice.

        Raises:
            StoreError: when the last commit failed.
        """
        is_open = self._failure is None
        try:
            if is_open:
                await self.durable(self._seq)
        finally:
            if self._committer is not None:
                await asyncio.gather(self._committer, return_exceptions=True)
            self._fail(StoreError("the journal is closed"))
            self._runner.close()
            self._storage.close()

    def abandon(self) -> None:
        """Frees everything and commits nothing more, as a crash would; whoever waits gets a `StoreError`."""
        self._fail(StoreError("the journal was abandoned"))
        if self._committer is not None:
            self._committer.cancel()
        self._runner.close()
        self._storage.close()

    def _now_ns(self) -> int:
        if self._clock_s is None:
            self._clock_s = asyncio.get_running_loop().time
        now_s = self._clock_s()
        if self._start_s is None:
            self._start_s = now_s
        return self._base_ns + round((now_s - self._start_s) * 1e9)

    def _arm(self) -> None:
        with contextlib.suppress(RuntimeError):  # without a running loop, pending events wait for `durable` or `close`
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._policy.max_delay_s, self._want, self._seq)

    def _want(self, seq: int) -> None:
        """Has everything up to `seq` committed as soon as the disk is free."""
        self._wanted_seq = max(self._wanted_seq, seq)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._committer is None and self._failure is None:
            with contextlib.suppress(RuntimeError):
                loop = asyncio.get_running_loop()
                self._committer = loop.create_task(self._commit_wanted(), name="journal commit")

    async def _commit_wanted(self) -> None:
        try:
            while self._wanted_seq > self._durable_seq:
                batch, self._pending = self._pending, _Batch()
                self._in_flight = batch
                await self._runner(lambda batch=batch: self._storage.commit(self._epoch, batch.entries))
                self._durable_seq = batch.entries[-1].event.seq
                self._in_flight = None
                batch.finish(None)
        except asyncio.CancelledError:
            self._fail(StoreError("the commit was cancelled; nobody knows whether it is on disk"))
            raise
        except Exception as error:  # boundary: whatever stops the committer must reach those who wait for it
            self._fail(error if isinstance(error, StoreError) else StoreError(f"commit failed: {error!r}"))
        finally:
            self._committer = None
        if self._pending.entries and self._failure is None:
            self._arm()

    def _fail(self, failure: StoreError) -> None:
        """From here on nothing is accepted, and nobody waits for ever."""
        self._failure = self._failure or failure
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._in_flight is not None:
            self._in_flight.finish(self._failure)
        self._pending.finish(StoreError(str(self._failure), Outcome.REJECTED))  # it was handed to no disk
        self._in_flight = None
        self._pending = _Batch()
