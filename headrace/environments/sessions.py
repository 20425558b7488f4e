"""What every executor of ours keeps: open episodes, receipts by action id, and the highest lease token seen.

Invariants: an action id runs at most once per session unless its executor was lost; a lease token lower than the highest
seen for the episode changes nothing; an action goes on when its caller stops waiting, and its receipt is kept.
"""

import abc
import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from headrace.errors import EnvironmentFault, EnvironmentFenced, Outcome
from headrace.ports import UNKNOWN_INCARNATION, Handle
from headrace.records.action import Action, EffectClass
from headrace.records.execution import ExecutionStatus, IncarnationLost, Lease, Metering, Receipt
from headrace.records.harness import ToolSchema
from headrace.records.ids import ActionId, Address, EpisodeId
from headrace.records.provenance import address_of
from headrace.records.task import Task
from headrace.records.terminal import Failure, Success, Terminal

MAX_REMEMBERED_FENCES = 65_536
"""Episodes, closed ones included, whose highest token is remembered; the longest unused is forgotten first."""

EMPTY_REVISION = address_of(b"")
"""Revision of an environment that keeps nothing between its actions."""

_CLOSED = "its episode was closed under it"


class Ended(msgspec.Struct, frozen=True):
    """How a call ended: a receipt without its names.

    Attributes:
        status: how.
        output: what the policy sees.
        output_bytes: true size.
        metering: what it used.
    """

    status: ExecutionStatus
    output: bytes
    output_bytes: int
    metering: Metering

    def receipt(self, action: Action, lease: Lease, revision: Address | None = None) -> Receipt:
        """The receipt of an action that ran under the lease."""
        return Receipt(
            action.id,
            lease.token,
            action.arguments_hash,
            self.status,
            self.output,
            self.output_bytes,
            revision=revision,
            metering=self.metering,
        )


Judge = Callable[[str, bytes | None], Terminal]
"""The claim on a final text, given the output of the episode's last successful call, None when there was none."""


def claim_last_result(final_text: str, last_output: bytes | None) -> Terminal:
    """Success when the answer is what the last successful call gave: the one thing that a tool knows of the task.

    It is a claim of its own and may be wrong both ways: the tool may have computed something else than was asked, and
    the policy may know an answer that no tool gave. The result of an output of several lines is its last line.

    Example: after a calculator said `14`, the answer `14` is claimed as success and `15` as failure.
    """
    answer = final_text.strip()
    if not answer:
        return Failure("no answer")
    if last_output is None:
        return Failure("no call succeeded")
    lines = last_output.decode("utf-8", "replace").split("\n")
    result = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return Success() if answer == result else Failure("the answer is not the last result")


class _Taken:
    """An action that the session took: its receipt once it has ended, or what left it without one.

    Attributes:
        action: what was asked.
        task: runs it; None for one that an earlier executor ran.
        outcome: None while it runs.
    """

    def __init__(self, action: Action, outcome: Receipt | None = None) -> None:
        self.action = action
        self.task: asyncio.Task[None] | None = None
        self.outcome: Receipt | BaseException | None = outcome
        self._waiters: list[asyncio.Future[None]] = []

    def end(self, outcome: Receipt | BaseException) -> None:
        """Tells whoever waits; the first outcome stands."""
        if self.outcome is None:
            self.outcome = outcome
            for waiter in self._waiters:
                if not waiter.done():  # its owner was cancelled
                    waiter.set_result(None)

    def ending(self) -> "asyncio.Future[None]":
        """Is done once the running action has ended, which goes on when whoever waits is cancelled."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def receipt(self) -> Receipt:
        """The receipt of an ended action; raises what left it without one."""
        assert self.outcome is not None
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


class Session:
    """One open episode.

    Attributes:
        episode: whose.
        task: what it is asked.
        opened_as: incarnation that the handle carries.
        incarnation: present one; another than `opened_as` once the executor was lost under an action.
        last_output: output of the last call that succeeded; None before the first.
    """

    def __init__(self, episode: EpisodeId, task: Task, incarnation: str) -> None:
        self.episode = episode
        self.task = task
        self.opened_as = incarnation
        self.incarnation = incarnation
        self.taken: dict[ActionId, _Taken] = {}
        self.last_output: bytes | None = None
        self._losses = 0

    def lose(self) -> None:
        """The executor of this session is gone, and with it what it held."""
        self._losses += 1
        self.incarnation = f"{self.opened_as}+{self._losses}"

    def forget(self, taken: _Taken) -> None:
        """The action left no receipt; unless it was taken anew since, its id is free."""
        if self.taken.get(taken.action.id) is taken:
            del self.taken[taken.action.id]

    def interrupt(self, why: str) -> "list[asyncio.Task[None]]":
        """Ends what is running without a receipt; the tasks, which are being cancelled."""
        running: list[asyncio.Task[None]] = []
        for taken in self.taken.values():
            if taken.outcome is None and taken.task is not None:
                taken.task.cancel()
                taken.end(EnvironmentFault(f"{taken.action.id}: {why}"))
                running.append(taken.task)
        return running


class SessionEnvironment(abc.ABC):
    """The part of the Environment port that does not depend on where tools run."""

    def __init__(self, incarnation: str, judge: Judge = claim_last_result) -> None:
        self.incarnation = incarnation
        self._judge = judge
        self._sessions: dict[EpisodeId, Session] = {}
        self._highest: OrderedDict[EpisodeId, int] = OrderedDict()
        self._opens = itertools.count(1)

    @property
    @abc.abstractmethod
    def effect(self) -> EffectClass: ...

    @property
    @abc.abstractmethod
    def version(self) -> Address: ...

    @property
    @abc.abstractmethod
    def tools(self) -> tuple[ToolSchema, ...]: ...

    @abc.abstractmethod
    async def _run(self, session: Session, action: Action, lease: Lease, timeout_s: float) -> Receipt:
        """The receipt of an action that was never taken before; ends within `timeout_s`.

        Raises:
            EnvironmentFault: LOST after `session.lose()`, REJECTED when nothing was executed.
        """

    @abc.abstractmethod
    async def _opened(self, session: Session, timeout_s: float) -> None:
        """Prepares a new session. Raises EnvironmentFault."""

    @abc.abstractmethod
    async def _closed(self, session: Session) -> None:
        """Frees what the session holds."""

    async def open(self, task: Task, episode: EpisodeId, lease: Lease, timeout_s: float) -> Handle:
        self._fence(episode, lease)
        if (old := self._sessions.pop(episode, None)) is not None:
            await self._end(old)
        session = Session(episode, task, f"{self.incarnation}.{next(self._opens)}")
        await self._opened(session, timeout_s)
        self._sessions[episode] = session
        return Handle(episode, session.opened_as)

    async def adopt(self, handle: Handle, done: Sequence[tuple[Action, Receipt]], timeout_s: float) -> None:
        session = self._session(handle)
        if session is None or self.effect is not EffectClass.PURE:
            reason = (
                "is not open" if session is None else f"is {self.effect.value}; only receipts of a pure one say all"
            )
            raise EnvironmentFault(f"{handle.episode} as {handle.incarnation} {reason}", Outcome.REJECTED)
        self._remember(session, done)

    def _remember(self, session: Session, done: Sequence[tuple[Action, Receipt]]) -> None:
        """Takes receipts of an earlier executor as its own."""
        for action, receipt in done:
            session.taken[action.id] = _Taken(action, receipt)
            if receipt.status is ExecutionStatus.OK:
                session.last_output = receipt.output

    async def execute(self, handle: Handle, action: Action, lease: Lease, timeout_s: float) -> Receipt:
        session = self._session(handle)
        if session is None:
            raise EnvironmentFault(f"{handle.episode} is not open as {handle.incarnation}", Outcome.REJECTED)
        self._fence(handle.episode, lease)
        taken = session.taken.get(action.id)
        if taken is None:
            if session.incarnation != session.opened_as and self.effect is not EffectClass.PURE:
                raise EnvironmentFault(f"{handle.episode}: state lost with {handle.incarnation}", Outcome.REJECTED)
            taken = session.taken[action.id] = _Taken(action)
            taken.task = asyncio.create_task(self._act(session, taken, lease, timeout_s), name=f"action {action.id}")
        elif taken.action != action:
            raise EnvironmentFault(f"{action.id} was taken with other arguments", Outcome.REJECTED)
        if taken.outcome is None:
            await taken.ending()
        return taken.receipt()

    async def probe(self, handle: Handle, action_id: ActionId, timeout_s: float) -> Receipt | IncarnationLost | None:
        session = self._session(handle)
        if session is None:
            return IncarnationLost(handle.incarnation, self.incarnation)
        taken = session.taken.get(action_id)
        if taken is not None:
            try:
                if taken.outcome is None:
                    async with asyncio.timeout(timeout_s):
                        await taken.ending()
                return taken.receipt()
            except TimeoutError:
                raise EnvironmentFault(f"{action_id} is still running after {timeout_s} s") from None
            except EnvironmentFault as fault:
                if fault.outcome is Outcome.REJECTED:
                    return None
        if session.incarnation != session.opened_as:
            return IncarnationLost(session.opened_as, session.incarnation)
        return None

    async def snapshot(self, handle: Handle, timeout_s: float) -> Address | None:
        return EMPTY_REVISION if self.effect is EffectClass.PURE else None

    async def restore(self, handle: Handle, revision: Address, timeout_s: float) -> Handle:
        if self.effect is EffectClass.PURE and revision == EMPTY_REVISION and self._session(handle) is not None:
            return handle
        raise EnvironmentFault(f"{handle.episode}: no revision {revision} to restore", Outcome.REJECTED)

    async def artifact(self, handle: Handle, timeout_s: float) -> bytes:
        return b""

    async def claim(self, handle: Handle, final_text: str, timeout_s: float) -> Terminal:
        session = self._session(handle)
        return self._judge(final_text, None if session is None else session.last_output)

    async def close(self, handle: Handle) -> None:
        session = self._sessions.get(handle.episode)
        if session is not None and handle.incarnation in (session.opened_as, UNKNOWN_INCARNATION):
            del self._sessions[handle.episode]
            await self._end(session)

    async def stop(self) -> None:
        """Closes every session."""
        while self._sessions:
            _, session = self._sessions.popitem()
            await self._end(session)

    def _session(self, handle: Handle) -> Session | None:
        session = self._sessions.get(handle.episode)
        return session if session is not None and session.opened_as == handle.incarnation else None

    def _fence(self, episode: EpisodeId, lease: Lease) -> None:
        highest = self._highest.get(episode, lease.token)
        if lease.token < highest:
            raise EnvironmentFenced(f"{episode}: lease {lease.token} is fenced by {highest}", Outcome.REJECTED)
        self._highest[episode] = lease.token
        self._highest.move_to_end(episode)
        if len(self._highest) > MAX_REMEMBERED_FENCES:
            self._highest.popitem(last=False)

    async def _act(self, session: Session, taken: _Taken, lease: Lease, timeout_s: float) -> None:
        """Runs an action to its receipt, whoever waits for it.

        One that leaves no receipt is forgotten, so that the same id may run again where that is allowed.
        """
        try:
            receipt = await self._run(session, taken.action, lease, timeout_s)
        except asyncio.CancelledError:
            session.forget(taken)
            taken.end(EnvironmentFault(f"{taken.action.id}: {_CLOSED}"))
            raise
        except BaseException as error:  # boundary: whatever it is, it is for whoever waits
            session.forget(taken)
            taken.end(error)
            return
        if receipt.status is ExecutionStatus.OK:
            session.last_output = receipt.output
        taken.end(receipt)

    def _renew(self, session: Session, revision: Address) -> Handle:
        """A new incarnation of a session that stands at the revision.

        Receipts up to the last one that tells of this revision are part of its state; those after it never were.
        """
        kept = session.taken
        for action_id, taken in reversed(list(kept.items())):
            if isinstance(taken.outcome, Receipt) and taken.outcome.revision == revision:
                break
            del kept[action_id]
        receipts = [taken.outcome for taken in kept.values() if isinstance(taken.outcome, Receipt)]
        outputs = [receipt.output for receipt in receipts if receipt.status is ExecutionStatus.OK]
        session.last_output = outputs[-1] if outputs else None
        session.opened_as = session.incarnation = f"{self.incarnation}.{next(self._opens)}"
        return Handle(session.episode, session.opened_as)

    async def _end_running(self, session: Session) -> None:
        """Returns once no action of the session runs."""
        running = session.interrupt(_CLOSED)
        if running:
            await asyncio.gather(*running, return_exceptions=True)

    async def _end(self, session: Session) -> None:
        await self._end_running(session)
        await self._closed(session)
