"""What the loops of one run stand on: its ports, what its composition root knows, and what they share.

Invariant: each is bound once, before the first loop starts; only what a context names changes afterwards, and only the event
loop's own thread touches it.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from headrace.control.recorder import Recorder
from headrace.control.signal import Changed
from headrace.control.versions import Versions
from headrace.ports import Environment, Grader, Harness, Inference, Journal, TaskSource, Trainer
from headrace.records.arrays import IntArray
from headrace.records.provenance import PolicyVersion
from headrace.records.run import WeightsHeld

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Starts a named task that the orchestrator owns and awaits."""


@dataclasses.dataclass(frozen=True)
class Ports:
    """Everything that the control plane acts through."""

    tasks: TaskSource
    harness: Harness
    inference: Inference
    environment: Environment
    grader: Grader
    trainer: Trainer
    journal: Journal


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """What a composition root knows and the control plane records.

    Attributes:
        run_id: name of the run.
        runtime: name of the composition root.
        wall_clock: ISO 8601 time of the start; empty under virtual time.
        resources: what the run may use, by name.
        initial: version 0 and its weights.
        initial_bytes: size of those weights.
        canary: fixed token sequences, each [T].
        copies: copies of weights that exist from the start.
        notes: what a reader has to know of the platform, by name.
        holds_one_version: whether the engine can serve a single version at a time.
    """

    run_id: str
    runtime: str
    wall_clock: str
    resources: dict[str, float]
    initial: PolicyVersion
    initial_bytes: int
    canary: Sequence[IntArray]
    copies: tuple[WeightsHeld, ...] = ()
    notes: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    holds_one_version: bool = False


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
