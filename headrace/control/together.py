"""Work that runs side by side and ends together.

Invariant: when the call returns or raises, nothing of the work runs any more. `asyncio.gather` does not keep that: it
raises with the first of them that fails or is cancelled, and leaves the others at it, or on their way out.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar, cast

T = TypeVar("T")


async def all_of(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What each came to, in order. Once one fails the others are cancelled, and its failure is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from failures
    return [task.result() for task in tasks]


def first_failure(error: BaseException) -> BaseException:
    """The failure itself, or the first of a group, however deep."""
    if isinstance(error, BaseExceptionGroup):
        nested = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return first_failure(nested[0])
    return error
