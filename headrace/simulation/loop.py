"""The virtual-time event loop: the same coroutines, a clock that jumps, and one order of events per seed.

Invariants:

* `loop.time()` is the only clock. It starts at 0, unless told otherwise, and advances only when no callback is ready,
  straight to the next timer.
* Timers fire by (round(when in ns), birth number). A timer that is already due fires after everything that is ready.
* The ready queue is first in, first out. With `shuffle_seed` the next callback is drawn uniformly from all that are ready
  instead: task steps, wake-ups, done callbacks and due timers alike, so that any of them may be overtaken any number of
  times. That gives up asyncio's promise that `call_soon` keeps its order, and nothing else; code that is right under
  arbitrary arrival times of its inputs stays right. Order inside a primitive (the waiters of a queue, lock, semaphore or
  condition) is the primitive's own and is not touched. The same seed draws the same order.
* Tasks hash by birth number. Bare futures and coroutines hash by address: a set of them has no stable order. So give
  `asyncio.as_completed` tasks, since it puts what it is given into a set before it makes tasks.
* No thread, socket, pipe, child process or signal can enter; an attempt raises `RealTimeRefused`.
* An exception in a callback stops the loop and is raised from it.
"""

import asyncio
import collections
import contextvars
import heapq
import math
import sys
import threading
from asyncio import events
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from headrace.records.streams import uniforms
from headrace.simulation.handles import Living, VirtualHandle, VirtualTimer
from headrace.simulation.waiting import (
    Deadlock,
    Livelock,
    OutOfTime,
    RealTimeRefused,
    StuckLoop,
    VirtualTask,
    describe_waiting,
    refusal,
)

__all__ = ["Deadlock", "Livelock", "OutOfTime", "RealTimeRefused", "StuckLoop", "VirtualLoop", "run_virtual"]

T = TypeVar("T")

_NS = 1_000_000_000
_WIND_DOWN_S = 86_400.0
_MIN_TIMERS_SWEPT = 256


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop whose time is virtual. Use `run_virtual`, or `run_until_complete` and `close`.

    Attributes:
        num_callbacks: callbacks run so far.
    """

    def __init__(
        self,
        *,
        shuffle_seed: int | None = None,
        max_time_s: float | None = None,
        max_rounds: int = 1_000_000,
        start_s: float = 0.0,
    ) -> None:
        """An idle loop.

        Args:
            shuffle_seed: draws the order of ready callbacks; None keeps first in, first out.
            max_time_s: a timer beyond it raises `OutOfTime`.
            max_rounds: passes through the ready queue at one instant after which `Livelock` is raised.
            start_s: time at which it begins; a monotonic clock says nothing about where it starts.
        """
        self.num_callbacks = 0
        self._draws = None if shuffle_seed is None else uniforms(shuffle_seed, "loop", "shuffle")
        self._max_ns = None if max_time_s is None else round(max_time_s * _NS)
        self._max_rounds = max_rounds
        self._now_ns = round(start_s * _NS)
        self._now_s = self._now_ns / _NS
        self._births = 0
        self._ready: collections.deque[asyncio.Handle] = collections.deque()
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._cancelled_timers = 0
        self._is_running = self._is_stopping = self._is_closed = False
        self._thread = threading.get_ident()
        self._task_factory: Any = None
        self._exception_handler: Any = None
        self._async_generators: Living[AsyncGenerator[Any, Any]] = Living()
        self._unhandled: list[BaseException] = []
        self._tasks: Living[VirtualTask] = Living()

    # --- the clock and the queue

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def next_birth(self) -> int:
        """A number that nothing else on this loop has."""
        self._births += 1
        return self._births

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
        handle = VirtualHandle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._thread:
            raise RealTimeRefused("call_soon_threadsafe from another thread: its moment is not a function of the seed")
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
        if when != when:  # noqa: PLR0124 - NaN alone is not itself
            raise ValueError("call_at(nan): a timer needs a time")
        timer = VirtualTimer(when, callback, args, self, context=context)
        if when != math.inf:  # a timer at infinity never fires
            timer._scheduled = True
            self._births += 1
            when_ns = round(when * _NS)
            heapq.heappush(self._timers, (when_ns if when_ns > self._now_ns else self._now_ns, self._births, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        # Called by TimerHandle.cancel. Deadlines are cancelled far more often than they fire.
        if not handle._scheduled:
            return
        self._cancelled_timers += 1
        if self._cancelled_timers > _MIN_TIMERS_SWEPT and self._cancelled_timers * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2]._cancelled and entry[2] is not handle]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    # --- running

    def run_forever(self) -> None:
        """Runs until `stop`.

        Raises:
            Deadlock: nothing is ready and no timer is set.
            Livelock: time cannot advance.
            OutOfTime: the next timer lies beyond the allowed time.
            Exception: whatever a callback raised.
        """
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
        if self._is_running or events._get_running_loop() is not None:
            raise RuntimeError("Cannot run the virtual loop while an event loop is running")
        self._is_running = True
        self._thread = threading.get_ident()
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._generator_started, finalizer=self._generator_dropped)
        events._set_running_loop(self)
        rounds = 0
        try:
            while not self._is_stopping:
                if self._ready:
                    rounds += 1
                    if rounds > self._max_rounds:
                        raise self._stuck(Livelock, f"time stands at {self.time():g} s for {rounds} rounds")
                    self._run_ready()
                else:
                    rounds = 0
                    self._advance()
        finally:
            self._is_running = self._is_stopping = False
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _run_ready(self) -> None:
        """Runs as many callbacks as are ready now; what becomes ready meanwhile is the next round's."""
        ready, now_s = self._ready, self._now_s
        take = ready.popleft if self._draws is None else self._draw_ready
        num_ready = len(ready)
        self.num_callbacks += num_ready
        for _ in range(num_ready):
            handle = take()
            if handle._cancelled:
                continue
            callback = handle._callback
            task = getattr(callback, "__self__", None)
            if type(task) is VirtualTask:
                task.waiting_since_s = now_s
            handle._context.run(callback, *handle._args)

    def _draw_ready(self) -> asyncio.Handle:
        """One of all that are ready, each as likely as the others."""
        ready, draws = self._ready, self._draws
        assert draws is not None
        chosen = int(next(draws) * len(ready))
        ready[0], ready[chosen] = ready[chosen], ready[0]
        return ready.popleft()

    def _advance(self) -> None:
        """Jumps to the next timer and makes everything ready that is due then."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
            self._cancelled_timers -= 1
        if not timers:
            raise self._stuck(Deadlock, f"deadlock at {self.time():g} s: nothing is ready and no timer is set")
        now_ns = timers[0][0]
        if self._max_ns is not None and now_ns > self._max_ns:
            raise self._stuck(
                OutOfTime, f"the next timer is at {now_ns / _NS:g} s, allowed are {self._max_ns / _NS:g} s"
            )
        self._now_ns, self._now_s = now_ns, now_ns / _NS
        while timers and timers[0][0] == now_ns:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False
            if timer._cancelled:
                self._cancelled_timers -= 1
            else:
                self._ready.append(timer)

    def _stuck(self, kind: type[StuckLoop], message: str) -> StuckLoop:
        return kind(message, describe_waiting(self.unfinished_tasks()), self.time())

    def unfinished_tasks(self) -> list[VirtualTask]:
        """Tasks of this loop that are not done, by birth."""
        return [task for task in self._tasks.by_birth() if not task.done()]

    def run_until_complete(self, future: Any) -> Any:
        """Result of the coroutine or future. Raises what it raises, and what `run_forever` raises."""
        awaited = asyncio.ensure_future(future, loop=self)
        awaited.add_done_callback(_stop_loop)
        try:
            self.run_forever()
        finally:
            awaited.remove_done_callback(_stop_loop)
        if not awaited.done():
            raise RuntimeError("Event loop stopped before the future completed")
        return awaited.result()

    def stop(self) -> None:
        """Ends `run_forever` after the present round."""
        self._is_stopping = True

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Drops everything that is queued."""
        if self._is_running:
            raise RuntimeError("Cannot close a running event loop")
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()

    def wind_down(self) -> None:
        """Cancels and awaits what is left, closes asynchronous generators, then closes the loop.

        Raises:
            BaseException: the first error that a leftover ended with, or that nobody retrieved before.
        """
        self._max_ns = self._now_ns + round(_WIND_DOWN_S * _NS)
        try:
            while leftovers := self.unfinished_tasks():
                for task in leftovers:
                    task.cancel()
                gathered = asyncio.gather(*leftovers, return_exceptions=True)
                try:
                    results = self.run_until_complete(gathered)
                except (SystemExit, KeyboardInterrupt):
                    continue  # one of them ended with it, which leaves the loop at once; the others are still to end
                errors = [error for error in results if isinstance(error, BaseException)]
                self._unhandled += [error for error in errors if not isinstance(error, asyncio.CancelledError)]
            self.run_until_complete(self.shutdown_asyncgens())
        finally:
            self.close()
        for task in self._tasks.by_birth():
            if not task.cancelled() and getattr(task, "_log_traceback", False):  # failed, and nobody asked
                self._unhandled.append(task.exception() or RuntimeError(f"{task.get_name()} failed"))
        if self._unhandled:
            raise self._unhandled[0]

    # --- tasks, futures, generators

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, **options: Any) -> Any:
        """A task named `task-<birth>` unless a name is given: asyncio's own counter is shared by all loops of a process."""
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
        if self._task_factory is not None:
            return self._task_factory(self, coro, **options)
        birth = self.next_birth()
        task = VirtualTask(coro, birth=birth, born_s=self._now_s, loop=self, name=name or f"task-{birth}", **options)
        self._tasks.add(birth, task)
        return task

    def set_task_factory(self, factory: Any) -> None:
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        return self._task_factory

    def _generator_started(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._async_generators.add(self.next_birth(), generator)

    def _generator_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._is_closed:
            self.call_soon(self.create_task, generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        """Closes every asynchronous generator that was begun and not finished, in the order in which they began."""
        begun, self._async_generators = self._async_generators.by_birth(), Living()
        for generator in begun:
            await generator.aclose()

    async def shutdown_default_executor(self) -> None:
        """Nothing to do: there is never an executor."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keeps the error for `wind_down` to raise; one that carries no exception becomes a RuntimeError."""
        if self._exception_handler is not None:
            self._exception_handler(self, context)
            return
        self._unhandled.append(context.get("exception") or RuntimeError(str(context.get("message"))))

    default_exception_handler = call_exception_handler

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def get_exception_handler(self) -> Any:
        return self._exception_handler

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Nothing changes: asyncio's debug mode measures real time."""


for _name in vars(asyncio.AbstractEventLoop):
    if not _name.startswith("__") and _name not in vars(VirtualLoop):
        setattr(VirtualLoop, _name, refusal(_name))


def _stop_loop(awaited: "asyncio.Future[Any]") -> None:
    awaited.get_loop().stop()


def run_virtual(
    main: Coroutine[Any, Any, T],
    *,
    shuffle_seed: int | None = None,
    max_time_s: float | None = None,
    start_s: float = 0.0,
) -> T:
    """Result of the coroutine on a fresh virtual loop, on which nothing is left running.

    Example: `run_virtual(asyncio.sleep(1e6, "done"))` returns "done" at once.

    Args:
        main: what to run.
        shuffle_seed: explores another interleaving per seed; None keeps asyncio's order.
        max_time_s: virtual time that the run may reach.
        start_s: virtual time at which it begins.

    Raises:
        StuckLoop: a deadlock, a livelock, or time over.
        BaseException: what `main`, a callback, or else a task that nobody awaited raised. Errors of winding down after
            another error are added to that one as notes.
    """
    loop = VirtualLoop(shuffle_seed=shuffle_seed, max_time_s=max_time_s, start_s=start_s)
    try:
        result = loop.run_until_complete(loop.create_task(main, name="main"))
    except BaseException as error:
        try:
            loop.wind_down()
        except BaseException as second:
            if second is not error:
                error.add_note(f"winding down: {type(second).__name__}: {second}")
        raise
    loop.wind_down()
    return result
