"""Who waits for what: the description of a virtual loop in which nothing can happen any more.

Pure inspection of tasks and coroutine frames, and the errors that a loop stops with; nothing here changes the loop.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any, NoReturn

from headrace.errors import HeadraceError

_MAX_NAMED = 100


@dataclasses.dataclass(frozen=True)
class WaitingTask:
    """One task that cannot go on.

    Attributes:
        name: the task's name.
        birth: position among everything the loop has numbered.
        since_s: virtual time at which it last ran.
        awaits: what it awaits.
        places: where it stands, outermost frame first, as `file:line function`.
    """

    name: str
    birth: int
    since_s: float
    awaits: str
    places: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.name} (birth {self.birth}) since {self.since_s:g} s for {self.awaits} at {' > '.join(self.places)}"
        )


class StuckLoop(HeadraceError):
    """The virtual loop cannot or may not go on.

    Attributes:
        waiting: every unfinished task, by birth.
        time_s: virtual time at which the loop stopped.
    """

    def __init__(self, message: str, waiting: tuple[WaitingTask, ...], time_s: float) -> None:
        named = [f"  {task}" for task in waiting[:_MAX_NAMED]]
        if len(waiting) > _MAX_NAMED:
            named.append(f"  … and {len(waiting) - _MAX_NAMED} more; see `waiting`")
        super().__init__("\n".join([message, *named]))
        self.waiting = waiting
        self.time_s = time_s


class Deadlock(StuckLoop):
    """Nothing is ready, no timer is set, and the main task is not done."""


class Livelock(StuckLoop):
    """Callbacks keep one another ready at one instant, so that virtual time cannot advance."""


class OutOfTime(StuckLoop):
    """The next timer lies beyond the virtual time that the run may take."""


class RealTimeRefused(HeadraceError):
    """Something asked the virtual loop for a thread, a socket, a process or a signal."""


def refusal(name: str) -> Callable[..., NoReturn]:
    """A method that refuses to do what the name says."""

    def refuse(self: asyncio.AbstractEventLoop, *args: object, **options: object) -> NoReturn:
        raise RealTimeRefused(
            f"{name} on a virtual loop: threads, sockets, processes and signals run in real time; "
            "use a simulated worker, or a synchronous core called inline"
        )

    return refuse


class VirtualTask(asyncio.Task[Any]):
    """A task that hashes by birth number, so that sets of tasks iterate in the same order in every process.

    Attributes:
        birth: the number.
        waiting_since_s: virtual time at which it last ran.
    """

    birth: int
    waiting_since_s: float

    def __init__(self, coro: Any, *, birth: int, born_s: float, **options: Any) -> None:
        # Before the base class: it puts the task into a set, which hashes it.
        self.birth = birth
        self.waiting_since_s = born_s
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.birth


def describe_waiting(tasks: Iterable[VirtualTask]) -> tuple[WaitingTask, ...]:
    """A description of each task, by birth."""
    return tuple(
        WaitingTask(
            name=task.get_name(),
            birth=task.birth,
            since_s=task.waiting_since_s,
            awaits=_describe_awaited(getattr(task, "_fut_waiter", None)),
            places=_places(task.get_coro()),
        )
        for task in sorted(tasks, key=lambda task: task.birth)
    )


def _describe_awaited(awaited: Any) -> str:
    if awaited is None:
        return "its next turn"
    if isinstance(awaited, asyncio.Task):
        return f"task {awaited.get_name()}"
    children: list[asyncio.Future[Any]] | None = getattr(awaited, "_children", None)
    if children is None:
        return "a future"
    names = [child.get_name() for child in children if isinstance(child, asyncio.Task) and not child.done()]
    pending = sum(not child.done() for child in children)
    return f"{pending} of {len(children)} gathered ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"


def _places(coro: Any) -> tuple[str, ...]:
    places: list[str] = []
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None) or getattr(coro, "ag_frame", None)
        if frame is None:
            break
        file = "/".join(PurePath(frame.f_code.co_filename).parts[-2:])
        places.append(f"{file}:{frame.f_lineno} {frame.f_code.co_qualname}")
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None) or getattr(coro, "ag_await", None)
    return tuple(places) or ("a frame that has ended",)
