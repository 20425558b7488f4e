"""What the loops of one run share: the pen, the versions, and the news that something changed."""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.control.recorder import Recorder
from headrace.control.signal import Changed
from headrace.control.versions import Versions

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Starts a named task that the orchestrator owns and awaits."""


@dataclasses.dataclass(frozen=True)
class RunContext:
    """Shared state of one run; only the event loop's own thread touches it.

    Attributes:
        recorder: appends events.
        versions: committed, current and pinned policy versions.
        changed: notified when a group becomes ready or leaves, and when the source runs dry.
        spawn: starts a task.
    """

    recorder: Recorder
    versions: Versions
    changed: Changed
    spawn: Spawn
