"""Where a run stands: its weights and tasks, its open groups and their attempts, its update, its rounds.

Invariant: only a fold over the journal fills these in (`headrace.control.recovery`), so what a field holds, durable events
say. Nothing here asks a worker or a disk.
"""

import dataclasses
from collections.abc import Iterator

import msgspec

from headrace.control.frontier import DataFrontier
from headrace.records.action import ActionCommitted, ActionIntended
from headrace.records.batch import GroupClosed
from headrace.records.checkpoint import CheckpointWritten, GuardState
from headrace.records.experience import ReplayedGroup
from headrace.records.ids import ActionId, Address, EpisodeId, GroupId, LeaseToken, Purpose
from headrace.records.observation import ActionObserved
from headrace.records.run import RunEnded, RunStarted
from headrace.records.segment import TurnGenerated
from headrace.records.trajectory import TranscriptSealed
from headrace.records.update import UpdateResult
from headrace.records.weighing import StrataWeighed


class AttemptPast(msgspec.Struct):
    """What the journal holds of one attempt.

    Attributes:
        episode: whose.
        started_seq: its `EpisodeStarted`; 0 before it.
        started_ns: when that was.
        last_ns: when the last thing happened in it.
        turns: what the policy said, by step.
        intents: what it asked for.
        commits: what was done of it, with the sequence number.
        observed: what it was shown of it.
        sealed: how it ended; None when it was running.
        verdicts: addresses of the verdicts on it, in order of the tries.
        is_void: whether something of it was quarantined, so that its member starts again.
    """

    episode: EpisodeId
    started_seq: int = 0
    started_ns: int = 0
    last_ns: int = 0
    turns: dict[int, TurnGenerated] = {}
    intents: dict[ActionId, ActionIntended] = {}
    commits: dict[ActionId, tuple[int, ActionCommitted]] = {}
    observed: dict[ActionId, ActionObserved] = {}
    sealed: TranscriptSealed | None = None
    verdicts: list[Address] = []
    is_void: bool = False

    @property
    def spent_s(self) -> float:
        """Seconds that it ran."""
        return max(0, self.last_ns - self.started_ns) / 1e9

    def has_observed(self, step: int) -> bool:
        """Whether the step is over: its observations are fixed, and with them which of its calls ran."""
        return any(action.step == step for action in self.observed)


@dataclasses.dataclass
class GroupPast:
    """What the journal holds of an open group.

    Attributes:
        id: which.
        task: address of its task.
        size: members; 0 before its admission.
        version: current version at its admission.
        admitted_ns: when that was.
        attempts: by member and attempt.
        closed: its members' last states; None while it runs.
        closings: how often it was closed; it opens again when a member of it becomes void.
        uses: plans of committed versions that it was in.
    """

    id: GroupId
    task: Address
    size: int = 0
    version: int = 0
    admitted_ns: int = 0
    attempts: dict[int, dict[int, AttemptPast]] = dataclasses.field(default_factory=dict[int, dict[int, AttemptPast]])
    closed: GroupClosed | None = None
    closings: int = 0
    uses: int = 0

    def running(self) -> Iterator[AttemptPast]:
        """Attempts that were in flight."""
        for attempts in self.attempts.values():
            for attempt in attempts.values():
                if attempt.sealed is None and attempt.started_seq and not attempt.is_void:
                    yield attempt


@dataclasses.dataclass
class UpdatePast:
    """What the journal holds of an update whose version is not committed.

    Attributes:
        update: its number.
        groups: selected ones, in batch order; then those that took the places of rejected samples.
        replayed: groups that trained before and fill up the batch.
        is_refilled: whether rejected samples were replaced.
        plan: address of the durable plan, if there is one.
        result: what the trainer made of it, if it came so far.
    """

    update: int
    groups: tuple[GroupId, ...]
    replayed: tuple[ReplayedGroup, ...] = ()
    is_refilled: bool = False
    plan: Address | None = None
    result: UpdateResult | None = None


@dataclasses.dataclass
class RoundPast:
    """What the journal holds of a held-out round.

    Attributes:
        key: of its events.
        version: pinned.
        temperature: of its sampling.
        first_ordinal: of its episodes, which follow one another.
        episodes: how many.
        started_seq: its `EvaluationStarted`.
        started_ns: when that was.
        is_complete: whether it is over.
        attempts: by ordinal and attempt, while it runs.
    """

    key: str
    version: int
    temperature: float
    first_ordinal: int
    episodes: int
    started_seq: int
    started_ns: int
    is_complete: bool = False
    attempts: dict[int, dict[int, AttemptPast]] = dataclasses.field(default_factory=dict[int, dict[int, AttemptPast]])


@dataclasses.dataclass
class RunPast:
    """Where a run stands.

    Attributes:
        started: how its newest process started.
        ended: how that one ended, when it said so.
        last_seq: of the last event.
        last_ns: its time.
        lease_token: highest token granted.
        weights: committed versions.
        frontier: drawn tasks and their states.
        tasks: addresses of all tasks that the source gave, in order.
        requeued: addresses of tasks that wait to be drawn again, by the rejected group, in order.
        credit_batches: the credit that the run came to; None where it is fixed.
        is_exhausted: whether the source had no further task.
        groups: open ones, by ordinal.
        trained: those that trained and may train again, by ordinal; none where nothing is replayed.
        closing: of the open ones, closed ones in the order in which they closed.
        plans: the update's number to the address of its plan, for every committed version.
        update: the one under way.
        updates: number of the newest completed update.
        guard: what the guard remembers.
        weighed: newest weights by acceptance, with the counts behind them.
        rounds: held-out rounds, in the order in which they began.
        checkpoints: in order.
        recorded: steps that are not recorded again, with their sequence numbers.
        lost: addresses whose bytes were quarantined.
    """

    started: RunStarted | None = None
    ended: RunEnded | None = None
    last_seq: int = 0
    last_ns: int = 0
    lease_token: LeaseToken = LeaseToken(0)  # noqa: RUF009 - a NewType of int
    weights: dict[int, Address] = dataclasses.field(default_factory=dict[int, Address])
    frontier: DataFrontier = dataclasses.field(default_factory=DataFrontier)
    tasks: list[Address] = dataclasses.field(default_factory=list[Address])
    requeued: dict[GroupId, Address] = dataclasses.field(default_factory=dict[GroupId, Address])
    credit_batches: float | None = None
    is_exhausted: bool = False
    groups: dict[int, GroupPast] = dataclasses.field(default_factory=dict[int, GroupPast])
    trained: dict[int, GroupPast] = dataclasses.field(default_factory=dict[int, GroupPast])
    closing: list[int] = dataclasses.field(default_factory=list[int])
    plans: dict[int, Address] = dataclasses.field(default_factory=dict[int, Address])
    update: UpdatePast | None = None
    updates: int = 0
    guard: GuardState = dataclasses.field(default_factory=GuardState)
    weighed: StrataWeighed | None = None
    rounds: list[RoundPast] = dataclasses.field(default_factory=list[RoundPast])
    checkpoints: list[CheckpointWritten] = dataclasses.field(default_factory=list[CheckpointWritten])
    recorded: dict[tuple[str, str], int] = dataclasses.field(default_factory=dict[tuple[str, str], int])
    lost: set[Address] = dataclasses.field(default_factory=set[Address])

    @property
    def version(self) -> int:
        """Newest committed version; -1 before the first."""
        return len(self.weights) - 1

    def attempt(self, episode: EpisodeId) -> AttemptPast | None:
        """What the journal holds of an attempt whose group is open or whose round runs."""
        ordinal = episode.group.ordinal
        if episode.purpose is Purpose.TRAIN:
            holders = [self.groups[ordinal].attempts.get(episode.member, {})] if ordinal in self.groups else []
        else:
            holders = [item.attempts[ordinal] for item in self.rounds if ordinal in item.attempts]
        return holders[0].get(episode.attempt) if holders else None

    @property
    def open_rounds(self) -> list[RoundPast]:
        """Held-out rounds that were running."""
        return [item for item in self.rounds if not item.is_complete]
