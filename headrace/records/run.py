"""The run itself: what it was started with, what its workers did with their time, and how it ended."""

import enum

import msgspec

from headrace.records.ids import Address, PolicyId


class RunStarted(msgspec.Struct, frozen=True, tag="run_started"):
    """A process took over the run.

    Attributes:
        run_id: name of the run's folder.
        seed: root of every random stream.
        config: address of the effective configuration's canonical bytes.
        runtime: composition root: `local` or `simulated`.
        wall_clock: ISO 8601 time of the start for people; empty under virtual time.
        resources: what the run may use, by name (`cores`, …); figures are printed per resource-hour.
        notes: what a reader of the figures has to know of the platform, by name (`sandbox`, …).
        versions: content versions of `harness`, `environment` and `grader`; whoever resumes the run must have the same.
    """

    run_id: str
    seed: int
    config: Address
    runtime: str
    wall_clock: str
    resources: dict[str, float]
    notes: dict[str, str] = {}
    versions: dict[str, Address] = {}


class RunEnded(msgspec.Struct, frozen=True, tag="run_ended"):
    """The run is over.

    Attributes:
        reason: `completed`, `exhausted`, `stopped` or `failed: …`.
        updates: updates completed.
    """

    reason: str
    updates: int


class WorkerState(enum.Enum):
    """What a worker does with its time; the states of one worker partition wall time.

    PAUSED is the engine's alone: it stands still in the trainer's turn on shared devices, whatever waits for it.
    """

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    SYNC = "sync"
    PAUSED = "paused"
    DOWN = "down"


class WorkerStateChanged(msgspec.Struct, frozen=True, gc=False, tag="worker_state_changed"):
    """A worker left one state for another; telemetry.

    Attributes:
        worker: name.
        state: the new state.
        detail: what it does, for people.
    """

    worker: str
    state: WorkerState
    detail: str = ""


class BreakerChanged(msgspec.Struct, frozen=True, tag="breaker_changed"):
    """The circuit breaker of an environment changed its state.

    Attributes:
        state: `closed`, `open` (no attempt starts) or `probing` (one does, and decides).
        failures: of its newest attempts, those that the environment failed.
        attempts: its newest attempts.
    """

    state: str
    failures: int
    attempts: int


class LateWriteRefused(msgspec.Struct, frozen=True, tag="late_write_refused"):
    """Somebody who is no longer the owner tried to write, and was refused.

    Attributes:
        where: who refused: `journal` or `executor`.
        what: kind of the event, or the action's id.
        detail: tokens of the old and the new owner.
    """

    where: str
    what: str
    detail: str


class AnswerRefused(msgspec.Struct, frozen=True, gc=False, tag="answer_refused"):
    """A worker answered something else than it was asked, such as an old answer again. Nothing of it was used; telemetry.

    Attributes:
        boundary: which port: `environment`, `inference`.
        problem: what was asked, and what the answer names.
    """

    boundary: str
    problem: str


class WeightsHeld(msgspec.Struct, frozen=True, tag="weights_held"):
    """One copy of weights exists; the report lists every one.

    Attributes:
        role: policy in the engine, policy in the trainer, optimizer state, reference, critic, reward model.
        policy_id: which policy.
        worker: who holds it.
        device: `cpu`, `cuda:0`, …
        size_bytes: bytes in memory.
    """

    role: str
    policy_id: PolicyId
    worker: str
    device: str
    size_bytes: int
