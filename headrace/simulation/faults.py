"""Faults as data, put into the way of any port.

A plan is a list of faults; each names a worker, a method, and either the n-th call or a time. `Faulty…` wraps a port and
lets the plan act on every asynchronous call. The wrapped port may be simulated or real.

| kind | what happens | what the caller sees |
|---|---|---|
| reject | nothing | REJECTED at once |
| lose | the call runs to its end | LOST |
| delay | the call runs to its end | its answer `delay_s` later, or LOST at the deadline |
| crash | the worker crashes `delay_s` after the call began | LOST, or REJECTED where the crashed worker says so |
| duplicate | the call is delivered twice, one after the other | one answer; of a grader, both |
| kill | the control process dies as the call begins, or `delay_s` into it | nobody is left to see anything |
| kill_after | the call runs to its end, then the control process dies | the same |
| stop | the control process is told to end (SIGTERM) as the call begins | the call runs, cancelled |

Invariant: a fault fires at most `times` times, and each firing is recorded.
"""

import asyncio
import dataclasses
import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NoReturn, TypeVar

from headrace.config import Section
from headrace.errors import BoundaryError, Outcome

T = TypeVar("T")
P = TypeVar("P")


class FaultKind(enum.Enum):
    """What goes wrong; see the table above."""

    REJECT = "reject"
    LOSE = "lose"
    DELAY = "delay"
    CRASH = "crash"
    DUPLICATE = "duplicate"
    KILL = "kill"
    KILL_AFTER = "kill_after"
    STOP = "stop"


ENDINGS = frozenset({FaultKind.KILL, FaultKind.KILL_AFTER, FaultKind.STOP})
"""Faults of the control process itself; they may hit calls that have no outcome to lose."""


class Fault(Section, frozen=True):
    """One fault.

    Attributes:
        worker: name of the wrapped port: `inference`, `environment`, `grader`, `trainer` unless named otherwise, `tasks`,
            and `journal`, whose methods are `commit` and the kinds of events that a commit makes durable.
        kind: what goes wrong.
        method: which method of the port; empty is any.
        call: the n-th matching call, from 1; 0 is any.
        at_s: only calls that begin at or after this time.
        times: how often it fires.
        delay_s: seconds, for `delay`, `crash` and `kill`.
    """

    worker: str
    kind: FaultKind
    method: str = ""
    call: int = 0
    at_s: float = 0.0
    times: int = 1
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        if self.call < 0 or self.times < 1 or self.delay_s < 0.0 or self.at_s < 0.0:
            raise ValueError(f"{self}: call, at_s and delay_s must be >= 0, times >= 1")


class FaultPlan(Section, frozen=True):
    """Attributes:
    faults: in order of precedence; the first that matches a call acts on it.
    """

    faults: tuple[Fault, ...] = ()


class ProcessKilled(SystemExit):
    """The control process is gone. No handler of the loop or of a task sees it, as none sees a real kill -9."""


class ControlProcess:
    """The life of one simulated control process.

    Attributes:
        is_dead: whether it was killed; nothing that it asks for happens from then on.
        main: its main task, which `stop` cancels.
    """

    def __init__(self) -> None:
        self.is_dead = False
        self.main: asyncio.Task[object] | None = None

    def kill(self) -> NoReturn:
        """Ends the process in the middle of what it does. Raises ProcessKilled, out of the event loop."""
        self.is_dead = True
        raise ProcessKilled("the control process was killed by the fault plan")

    def kill_later(self, delay_s: float) -> None:
        """Kills the process after some time, unless something else did before."""

        def kill_if_alive() -> None:
            if not self.is_dead:
                self.kill()

        asyncio.get_running_loop().call_later(delay_s, kill_if_alive)

    def stop(self) -> None:
        """What SIGTERM does: the main task is cancelled."""
        if self.main is not None:
            self.main.cancel()


@dataclasses.dataclass(frozen=True)
class Firing:
    """A fault that fired.

    Attributes:
        fault: which.
        method: the method called.
        call: number of that call among all calls of the method, from 1.
        time_s: when.
    """

    fault: Fault
    method: str
    call: int
    time_s: float


class FaultInjector:
    """The state of a plan over one run, all its processes included; shared by all wrapped ports.

    Attributes:
        process: the control process of the moment; each process of the run begins by putting itself here.
        fired: every firing, in order.
        calls: number of calls so far by (worker, method): the space in which a sweep chooses `call`.
    """

    def __init__(self, plan: FaultPlan) -> None:
        self.process = ControlProcess()
        self.fired: list[Firing] = []
        self.calls: dict[tuple[str, str], int] = {}
        self._left = [fault.times for fault in plan.faults]
        self._seen = [0] * len(plan.faults)
        self._plan = plan

    def take(self, worker: str, method: str, only: frozenset[FaultKind] | None = None) -> Fault | None:
        """The fault that acts on this call, which is counted.

        Args:
            worker: the wrapped port.
            method: what is called.
            only: kinds that can act on it; None is all.
        """
        now_s = asyncio.get_running_loop().time()
        number = self.calls[worker, method] = self.calls.get((worker, method), 0) + 1
        chosen: int | None = None
        for index, fault in enumerate(self._plan.faults):
            if fault.worker != worker or fault.method not in ("", method) or now_s < fault.at_s:
                continue
            if only is not None and fault.kind not in only:
                continue
            self._seen[index] += 1
            # From the n-th on, so that `times` faults hit consecutive calls.
            if chosen is None and self._left[index] and self._seen[index] >= fault.call:
                chosen = index
        if chosen is None:
            return None
        self._left[chosen] -= 1
        fault = self._plan.faults[chosen]
        self.fired.append(Firing(fault, method, number, now_s))
        return fault

    @property
    def is_spent(self) -> bool:
        """Whether every fault has fired as often as it was to."""
        return not any(self._left)


class Interposed(Generic[P]):
    """Base of the wrapped ports.

    Attributes:
        inner: the port behind.
    """

    error: type[BoundaryError] = BoundaryError
    worker = "unknown"

    def __init__(
        self,
        inner: P,
        injector: FaultInjector,
        *,
        worker: str | None = None,
        crash: Callable[[], None] | None = None,
    ) -> None:
        """The port with faults before it.

        Args:
            inner: the port itself.
            injector: decides which call is hit.
            worker: name in the plan, when it is not the port's own.
            crash: how the worker crashes; its `crash` method if it has one.
        """
        self.inner = inner
        self._injector = injector
        self._process = injector.process
        self._worker = worker or self.worker
        self._crash = crash or getattr(inner, "crash", None)

    def take(self, method: str, only: frozenset[FaultKind] | None = None) -> Fault | None:
        """The fault that acts on this call. Raises what a dead process gets, which is nothing that it can use."""
        if self.is_dead:
            raise self.error(f"{self._worker}.{method}: the process that asks is dead", Outcome.LOST)
        return self._injector.take(self._worker, method, only)

    @property
    def is_dead(self) -> bool:
        """Whether the process that asks is dead."""
        return self._process.is_dead

    def end_before(self, fault: Fault | None) -> None:
        """Kills or stops the process, when the fault does that as a call begins."""
        if fault is None:
            return
        if fault.kind is FaultKind.STOP:
            self._process.stop()
        elif fault.kind is FaultKind.KILL and fault.delay_s > 0.0:
            self._process.kill_later(fault.delay_s)
        elif fault.kind is FaultKind.KILL:
            self._process.kill()

    def end_after(self, fault: Fault | None) -> None:
        """Kills the process, when the fault does that as a call ends."""
        if fault is not None and fault.kind is FaultKind.KILL_AFTER:
            self._process.kill()

    def lost(self, fault: Fault, method: str, outcome: Outcome = Outcome.LOST) -> BoundaryError:
        """What the caller sees of a fault."""
        return self.error(f"{self._worker}.{method}: {fault.kind.value} by the fault plan", outcome)

    async def call(self, method: str, inner: Callable[[], Awaitable[T]], timeout_s: float) -> T:
        """The answer, if the plan lets it through."""
        (answer,) = await self.answers(method, inner, timeout_s, keeps_both=False)
        return answer

    async def answers(
        self, method: str, inner: Callable[[], Awaitable[T]], timeout_s: float, *, keeps_both: bool
    ) -> Sequence[T]:
        """The one answer, or the two of a call that is delivered twice."""
        fault = self.take(method)
        self.end_before(fault)
        match fault.kind if fault is not None else None:
            case None | FaultKind.KILL | FaultKind.KILL_AFTER | FaultKind.STOP:
                answer = await inner()
                self.end_after(fault)
                return [answer]
            case FaultKind.REJECT:
                assert fault is not None
                raise self.lost(fault, method, Outcome.REJECTED)
            case FaultKind.LOSE:
                assert fault is not None
                await inner()
                raise self.lost(fault, method)
            case FaultKind.DELAY:
                assert fault is not None
                return [await self.delayed(fault, method, inner, timeout_s)]
            case FaultKind.CRASH:
                assert fault is not None
                await self.begin_crash(fault, method)
                return [await inner()]
            case FaultKind.DUPLICATE:
                first = await inner()
                second = await self.again(inner)
                return [first, *second] if keeps_both else [first]

    async def delayed(self, fault: Fault, method: str, inner: Callable[[], Awaitable[T]], timeout_s: float) -> T:
        """The answer, late; the caller's deadline holds."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        answer = await inner()
        await asyncio.sleep(min(fault.delay_s, max(0.0, deadline_s - loop.time())))
        if fault.delay_s and loop.time() >= deadline_s:
            raise self.lost(fault, method)
        return answer

    async def begin_crash(self, fault: Fault, method: str) -> None:
        """Crashes the worker: now, and the call is lost, or while the call runs, which then fails by itself."""
        if self._crash is None:
            raise TypeError(f"{self._worker} cannot crash: give the wrapper a `crash`")
        if fault.delay_s == 0.0:
            self._crash()
            raise self.lost(fault, method)
        asyncio.get_running_loop().call_later(fault.delay_s, self._crash)

    async def again(self, inner: Callable[[], Awaitable[T]]) -> list[T]:
        """The second delivery: its answer, none when the worker refused it."""
        try:
            return [await inner()]
        except BoundaryError:
            return []
