"""The event envelope, and the union of all event types. What happened is an event, appended before it is acted on."""

import enum
import functools
from typing import Final, assert_never

import msgspec

from headrace.records.action import ActionCommitted, ActionIntended, EffectClass
from headrace.records.batch import (
    BatchPlanned,
    BatchRefilled,
    BatchSelected,
    CapacityDecided,
    GroupAdmitted,
    GroupClosed,
    GroupRejected,
)
from headrace.records.checkpoint import CheckpointWritten, RecordQuarantined, RunResumed
from headrace.records.compaction import RunCompacted
from headrace.records.evaluation import EvaluationCompleted, EvaluationStarted
from headrace.records.execution import EnvironmentRestored, EpisodeClaimed
from headrace.records.gate import BatchGated
from headrace.records.observation import ActionObserved
from headrace.records.run import (
    AnswerRefused,
    BreakerChanged,
    LateWriteRefused,
    RunEnded,
    RunStarted,
    WeightsHeld,
    WorkerStateChanged,
)
from headrace.records.segment import TurnGenerated
from headrace.records.task import SourceExhausted, TaskDrawn
from headrace.records.trajectory import EpisodeStarted, TranscriptSealed
from headrace.records.update import (
    BatchScored,
    CanaryChecked,
    GenerationPaused,
    GenerationResumed,
    TrainingPaused,
    UpdateCompleted,
    UpdateSkipped,
    WeightsActivated,
    WeightsCommitted,
    WeightsPrepared,
    WeightsStaged,
)
from headrace.records.verdict import VerdictDisputed, VerdictSealed
from headrace.records.weighing import StrataWeighed

Payload = (
    RunStarted
    | RunEnded
    | WorkerStateChanged
    | WeightsHeld
    | AnswerRefused
    | TaskDrawn
    | SourceExhausted
    | GroupAdmitted
    | EpisodeClaimed
    | EnvironmentRestored
    | BreakerChanged
    | LateWriteRefused
    | EpisodeStarted
    | TurnGenerated
    | ActionIntended
    | ActionCommitted
    | ActionObserved
    | TranscriptSealed
    | VerdictSealed
    | VerdictDisputed
    | GroupClosed
    | GroupRejected
    | CapacityDecided
    | BatchSelected
    | BatchRefilled
    | BatchScored
    | BatchGated
    | StrataWeighed
    | BatchPlanned
    | UpdateSkipped
    | UpdateCompleted
    | TrainingPaused
    | GenerationPaused
    | GenerationResumed
    | WeightsStaged
    | WeightsPrepared
    | WeightsCommitted
    | WeightsActivated
    | CanaryChecked
    | EvaluationStarted
    | EvaluationCompleted
    | CheckpointWritten
    | RunResumed
    | RecordQuarantined
    | RunCompacted
)


class Durability(enum.Enum):
    """What waits for an event to be on disk.

    DURABLE: its effect does. BATCHED: nothing; it goes with the next group commit. TELEMETRY: the same, and a run may be
    understood without it. Commits keep the order of the journal, so whatever precedes a durable event is durable too:
    a batch plan on disk implies its transcripts and verdicts.
    """

    DURABLE = "durable"
    BATCHED = "batched"
    TELEMETRY = "telemetry"


_DURABLE = frozenset(
    {RunStarted, RunEnded, BatchPlanned, WeightsCommitted, CheckpointWritten, RecordQuarantined, RunCompacted}
)
_TELEMETRY = frozenset(
    {
        WorkerStateChanged,
        WeightsHeld,
        AnswerRefused,
        VerdictDisputed,
        GenerationPaused,
        GenerationResumed,
        LateWriteRefused,
    }
)
_DURABILITY: dict[type[Payload], Durability] = {
    **dict.fromkeys(_DURABLE, Durability.DURABLE),
    **dict.fromkeys(_TELEMETRY, Durability.TELEMETRY),
}
_BATCHED: Final = Durability.BATCHED
_PURE: Final = EffectClass.PURE
_REPEATED = _TELEMETRY | {SourceExhausted, EnvironmentRestored, BreakerChanged}


def durability(payload: Payload) -> Durability:
    """How soon the event must be on disk. An INTENT may be batched only where the environment is pure."""
    if type(payload) is ActionIntended and payload.effect is not _PURE:
        return Durability.DURABLE
    return _DURABILITY.get(type(payload), _BATCHED)


def is_once(payload: Payload) -> bool:
    """Whether (kind, key) names the event for good, so that a second one is a contradiction and refused."""
    return type(payload) not in _REPEATED


class Event(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One line of the journal.

    Attributes:
        seq: position, from 1, without gaps.
        epoch: rises by one each time a process takes over the run.
        incarnation: name of that process's life.
        t_ns: nanoseconds on the control plane's clock since the run started.
        key: what it is about: a group, episode, action, update or version, as text; with the payload's kind it is unique
            wherever `is_once` holds.
        cause_seq: the event that led to this one; 0 when none did.
        payload: what happened.
    """

    seq: int
    epoch: int
    incarnation: str
    t_ns: int
    key: str
    cause_seq: int
    payload: Payload

    @property
    def kind(self) -> str:
        return kind_of(self.payload)


def kind_of(payload: Payload) -> str:
    """The payload's tag, such as `turn_generated`."""
    return _tag(type(payload))


@functools.cache
def _tag(kind: type[Payload]) -> str:
    return str(kind.__struct_config__.tag)


class OrdinalState(enum.Enum):
    """State of a drawn task in the data frontier. drawn = open + trained + filtered + abandoned, after every event."""

    OPEN = "open"
    TRAINED = "trained"
    FILTERED = "filtered"
    ABANDONED = "abandoned"


def rejected_state(state: str) -> OrdinalState:
    """Frontier state that a `GroupRejected` leads to. Raises ValueError on any other name."""
    found = OrdinalState(state)
    match found:
        case OrdinalState.FILTERED | OrdinalState.ABANDONED:
            return found
        case OrdinalState.OPEN | OrdinalState.TRAINED:
            raise ValueError(f"a rejected group is filtered or abandoned, not {state}")
        case _ as never:
            assert_never(never)
