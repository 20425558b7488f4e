"""Appends what happened, and tells observers. What happened is an event before anyone acts on it.

Observers (live progress, invariant checks) are plain functions over events; they see each one in the journal's order.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from headrace.errors import Outcome, OwnerFenced
from headrace.ports import Journal, Row
from headrace.records.events import Event, Payload, kind_of
from headrace.records.ids import Address, EpisodeId, LeaseToken
from headrace.records.provenance import canonical_bytes
from headrace.records.run import LateWriteRefused, WeightsHeld, WorkerState, WorkerStateChanged
from headrace.records.update import UpdateCompleted

Observer = Callable[[Event], None]
NOTHING: Mapping[tuple[str, str], int] = {}


class _Owner(msgspec.Struct):
    """Token of the newest owner of an attempt; every pen of the attempt looks at the same one."""

    token: LeaseToken


def sealed_row(kind: str, record: Any) -> Row:
    """The content-addressed row of a record."""
    return Row(kind, canonical_bytes(record))


class Recorder:
    """The control plane's pen.

    Args:
        journal: where events go.
        observers: called with every event, in order, before `record` returns.
        start_ns: time of the last event of the processes before this one.
        recorded: steps of theirs, by kind and key, that are done again and not recorded again.

    Attributes:
        updates: number of the newest completed update.
        last_seq: sequence number of the newest event.
    """

    def __init__(
        self,
        journal: Journal,
        observers: Sequence[Observer] = (),
        *,
        start_ns: int = 0,
        recorded: Mapping[tuple[str, str], int] = NOTHING,
    ) -> None:
        self._journal = journal
        self._observers = tuple(observers)
        self._recorded = recorded
        self._time = asyncio.get_running_loop().time
        self._start_s = self._time() - start_ns / 1e9
        self._owners: dict[EpisodeId, _Owner] = {}
        self.updates = 0
        self.last_seq = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds of the run on the control plane's clock; those between two processes do not count."""
        return self._time() - self._start_s

    def record(self, payload: Payload, *, key: str, cause: int = 0, rows: Sequence[Row] = ()) -> int:
        """Sequence number of the event."""
        if type(payload) is UpdateCompleted:
            self.updates = payload.result.update
        if self._recorded and (known := self._recorded.get((kind_of(payload), key))) is not None:
            return known
        seq = self.last_seq = self._journal.append(payload, key=key, cause=cause, rows=rows)
        if self._observers:
            t_ns = round((self._time() - self._start_s) * 1e9)
            event = Event(seq, self._journal.epoch, "", t_ns, key, cause, payload)
            for observer in self._observers:
                observer(event)
        return seq

    def claim(self, episode: EpisodeId, token: LeaseToken) -> _Owner:
        """The attempt's owner, which is this one from now on, unless a newer one was known."""
        owner = self._owners.setdefault(episode, _Owner(token))
        owner.token = max(token, owner.token)
        return owner

    def forget(self, episode: EpisodeId) -> None:
        """The attempt is over."""
        self._owners.pop(episode, None)

    async def durable(self, seq: int) -> None:
        """Returns once the event is on disk."""
        await self._journal.durable(seq)

    def read(self, address: Address) -> bytes:
        """Bytes of a sealed row."""
        return self._journal.read(address)

    def hold_weights(self, held: WeightsHeld) -> None:
        """Notes one copy of weights."""
        self.record(held, key=f"{held.worker}/{held.role}")


class OwnerPen:
    """The recorder in the hand of an attempt's owner: it writes only while no newer one has claimed the attempt.

    Args:
        recorder: what it writes with.
        episode: which attempt.
        token: of the owner's lease.
    """

    __slots__ = ("_episode", "_owner", "_recorder", "_token")

    def __init__(self, recorder: Recorder, episode: EpisodeId, token: LeaseToken) -> None:
        self._recorder = recorder
        self._episode = episode
        self._token = token
        self._owner = recorder.claim(episode, token)

    @property
    def elapsed_s(self) -> float:
        """Seconds of the run."""
        return self._recorder.elapsed_s

    def record(self, payload: Payload, *, key: str, cause: int = 0, rows: Sequence[Row] = ()) -> int:
        """Sequence number of the event. Raises OwnerFenced."""
        if self._owner.token > self._token:
            self.require(payload)
        return self._recorder.record(payload, key=key, cause=cause, rows=rows)

    def require(self, what: Payload | str) -> None:
        """Raises OwnerFenced, with a record of it, when the attempt has a newer owner."""
        newest = self._owner.token
        if newest > self._token:
            detail, kind = f"token {self._token} after {newest}", what if isinstance(what, str) else kind_of(what)
            self.refused("journal", kind, detail)
            raise OwnerFenced(f"{self._episode}: {kind} under {detail}", Outcome.REJECTED)

    def refused(self, where: str, what: str, detail: str) -> None:
        """Notes a write of this owner's that came too late."""
        self._recorder.record(LateWriteRefused(where, what, detail), key=str(self._episode))

    def release(self) -> None:
        """The attempt is sealed, which no later owner may change."""
        self._recorder.forget(self._episode)

    async def durable(self, seq: int) -> None:
        """Returns once the event is on disk."""
        await self._recorder.durable(seq)

    def read(self, address: Address) -> bytes:
        """Bytes of a sealed row."""
        return self._recorder.read(address)


class WorkerClock:
    """Times of one worker as the control plane sees them: busy while at least one call is out, paused while it is held.

    The recorded states partition the worker's wall time: each begins where the last one ends.
    """

    def __init__(self, recorder: Recorder, worker: str) -> None:
        self._recorder = recorder
        self._worker = worker
        self._calls = 0
        self._is_held = False
        self._state = WorkerState.IDLE
        self._become(WorkerState.IDLE, "")

    def enter(self, detail: str = "", state: WorkerState = WorkerState.BUSY) -> None:
        """A call goes out."""
        self._calls += 1
        if self._calls == 1 and not self._is_held:
            self._become(state, detail)

    def leave(self) -> None:
        """A call came back."""
        self._calls -= 1
        if self._calls == 0 and not self._is_held:
            self._become(WorkerState.IDLE, "")

    def hold(self) -> None:
        """It stands still until `release`, whatever goes out."""
        self._is_held = True
        self._become(WorkerState.PAUSED, "")

    def release(self) -> None:
        """It goes on with what is out."""
        self._is_held = False
        self._become(WorkerState.BUSY if self._calls else WorkerState.IDLE, "")

    def _become(self, state: WorkerState, detail: str) -> None:
        self._recorder.record(WorkerStateChanged(self._worker, state, detail), key=self._worker)
