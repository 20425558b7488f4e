"""What stands in the queues of a virtual loop, and what it knows of tasks and generators.

asyncio's own handles ask their loop for its debug mode when they are made and when they are cancelled; a virtual loop has
none, and a simulated run makes millions.
"""

import asyncio
import contextvars
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_LEAST_SWEPT = 256


class VirtualHandle(asyncio.Handle):
    """A callback that is ready."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = None, ()


class VirtualTimer(asyncio.TimerHandle):
    """A callback at a time.

    Args:
        when: seconds on the loop's clock.
        callback: what to call.
        args: with what.
        loop: whose `_timer_handle_cancelled` is told of a cancellation.
        context: to call it in; a copy of the present one by default.
    """

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        *,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = self._scheduled = False
        self._repr = self._source_traceback = None
        self._when = when

    def cancel(self) -> None:
        if not self._cancelled:
            self._loop._timer_handle_cancelled(self)  # pyright: ignore[reportAttributeAccessIssue]
            self._cancelled = True
            self._callback, self._args = None, ()


class Living(Generic[T]):
    """Weak references by rising birth number. Not a WeakSet: that iterates by address, and is told of every death."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[T]] = {}
        self._swept_at = _LEAST_SWEPT

    def add(self, birth: int, item: T) -> None:
        """Knows one more, born after all others."""
        self._references[birth] = weakref.ref(item)
        if len(self._references) >= self._swept_at:
            self._references = {at: known for at, known in self._references.items() if known() is not None}
            self._swept_at = max(_LEAST_SWEPT, 2 * len(self._references))

    def by_birth(self) -> list[T]:
        """Those that live."""
        return [item for known in self._references.values() if (item := known()) is not None]
