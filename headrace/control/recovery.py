"""Where a run stands, as a fold over its events: what a process that takes it over has to know.

Invariant: the journal is the truth. Commits keep its order, so a durable event implies every event before it; what is not
here did not happen, and is done. The same log gives the same state however often it is folded, so a crash during recovery
changes nothing.
"""

import dataclasses
from collections.abc import Iterable, Iterator

from headrace.checkers.leases import claimed_episode
from headrace.checkers.tasks import Bumps
from headrace.control.frontier import DataFrontier
from headrace.records.action import ActionCommitted, ActionIntended
from headrace.records.batch import (
    BatchPlanned,
    BatchRefilled,
    BatchSelected,
    CapacityDecided,
    GroupAdmitted,
    GroupClosed,
    GroupRejected,
)
from headrace.records.checkpoint import CheckpointWritten, GuardState, RecordQuarantined
from headrace.records.evaluation import EvaluationCompleted, EvaluationStarted
from headrace.records.events import Event, OrdinalState, Payload, kind_of, rejected_state
from headrace.records.execution import EpisodeClaimed
from headrace.records.experience import ReplayedGroup
from headrace.records.gate import BatchGated
from headrace.records.ids import ActionId, Address, EpisodeId, GroupId, LeaseToken, Purpose
from headrace.records.observation import ActionObserved
from headrace.records.run import RunEnded, RunStarted
from headrace.records.segment import TurnGenerated
from headrace.records.task import SourceExhausted, TaskDrawn
from headrace.records.trajectory import EpisodeStarted, TranscriptSealed
from headrace.records.update import (
    BatchScored,
    CanaryChecked,
    TrainingPaused,
    UpdateCompleted,
    UpdateResult,
    WeightsActivated,
    WeightsCommitted,
    WeightsPrepared,
    WeightsStaged,
)
from headrace.records.verdict import VerdictSealed
from headrace.records.weighing import StrataWeighed

_RECORDED = (
    BatchSelected,
    BatchRefilled,
    BatchScored,
    BatchGated,
    StrataWeighed,
    BatchPlanned,
    UpdateCompleted,
    TrainingPaused,
    WeightsStaged,
    WeightsPrepared,
    CanaryChecked,
    WeightsActivated,
    EvaluationStarted,
)
"""Steps that are done again on the way to where the run stood, and not recorded again."""


@dataclasses.dataclass
class AttemptPast:
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
    turns: dict[int, TurnGenerated] = dataclasses.field(default_factory=dict[int, TurnGenerated])
    intents: dict[ActionId, ActionIntended] = dataclasses.field(default_factory=dict[ActionId, ActionIntended])
    commits: dict[ActionId, tuple[int, ActionCommitted]] = dataclasses.field(
        default_factory=dict[ActionId, tuple[int, ActionCommitted]]
    )
    observed: dict[ActionId, ActionObserved] = dataclasses.field(default_factory=dict[ActionId, ActionObserved])
    sealed: TranscriptSealed | None = None
    verdicts: list[Address] = dataclasses.field(default_factory=list[Address])
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
        closed_ns: when they were reached.
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
    closed_ns: int = 0
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


def recover(events: Iterable[Event], *, keeps_trained: bool = False) -> RunPast:
    """Where the run stands after its events; with the groups that trained, where some may train again."""
    fold = RunFold(keeps_trained)
    for event in events:
        fold.observe(event)
    return fold.past


class RunFold:
    """Where the run stands, event by event.

    Args:
        keeps_trained: whether groups that trained are kept.

    Attributes:
        past: after the events so far.
    """

    def __init__(self, keeps_trained: bool = False) -> None:
        self.past = RunPast()
        self._keeps_trained = keeps_trained
        self._bumps = Bumps()
        self._attempts: dict[Address, AttemptPast] = {}
        self._weighed: StrataWeighed | None = None

    def observe(self, event: Event) -> None:
        past, payload = self.past, event.payload
        past.last_seq, past.last_ns = event.seq, event.t_ns
        if isinstance(payload, _RECORDED):
            past.recorded[kind_of(payload), event.key] = event.seq
        if isinstance(payload, StrataWeighed):
            self._weighed = payload
        for group in self._bumps.consumed(event):
            self._close(group.ordinal, OrdinalState.TRAINED)
        if isinstance(payload, RecordQuarantined):
            past.lost.add(payload.address)
            self._void(payload.episode)
        elif not self._episode(event, payload) and not self._group(event, payload):
            self._run(event, payload)

    def _run(self, event: Event, payload: Payload) -> None:
        past = self.past
        match payload:
            case RunStarted():
                past.started, past.ended = payload, None
            case RunEnded():
                past.ended = payload
            case WeightsCommitted(policy=policy, weights=weights):
                past.weights[policy.version] = weights
                for item in past.update.replayed if past.update is not None else ():
                    if item.group.ordinal in past.trained:
                        past.trained[item.group.ordinal].uses = item.use
                past.update = None
            case CheckpointWritten():
                past.checkpoints.append(payload)
                past.guard = payload.guard or past.guard
            case EvaluationStarted() | EvaluationCompleted():
                self._round(event, payload)
            case _:
                self._update(payload)

    def _update(self, payload: Payload) -> None:
        past = self.past
        match payload:
            case BatchSelected(update=update, groups=groups, replayed=replayed, retired=retired):
                past.update = UpdatePast(update, groups, replayed)
                for item in retired:
                    past.trained.pop(item.group.ordinal, None)
            case BatchRefilled(groups=groups) if past.update is not None:
                past.update.groups, past.update.is_refilled = (*past.update.groups, *groups), True
            case BatchPlanned(update=update, plan=plan) if past.update is not None:
                past.update.plan = plan
                past.plans[update] = plan
                past.weighed = self._weighed  # without a plan the batch is weighed, and counted, again
            case UpdateCompleted(result=result) if past.update is not None:
                past.update.result, past.updates = result, result.update
                if past.guard.first_entropy is None:
                    past.guard = GuardState(result.metrics.get("entropy"))
            case _:
                pass

    def _round(self, event: Event, payload: EvaluationStarted | EvaluationCompleted) -> None:
        rounds = self.past.rounds
        if isinstance(payload, EvaluationStarted):
            first = rounds[-1].first_ordinal + rounds[-1].episodes if rounds else 0
            version, temperature, episodes = payload.policy.version, payload.temperature, payload.episodes
            rounds.append(RoundPast(event.key, version, temperature, first, episodes, event.seq, event.t_ns))
            return
        for item in rounds:
            if item.key == event.key:
                self._forget(item.attempts)
                item.is_complete, item.attempts = True, {}

    def _group(self, event: Event, payload: Payload) -> bool:
        """Whether it was about a group."""
        past = self.past
        match payload:
            case TaskDrawn(task=task, requeued_from=requeued_from):
                ordinal = past.frontier.draw()
                past.groups[ordinal] = GroupPast(GroupId.of(Purpose.TRAIN, ordinal), task, admitted_ns=event.t_ns)
                if requeued_from is None:
                    past.tasks.append(task)
                else:
                    del past.requeued[requeued_from]
            case CapacityDecided(credit_batches=credit_batches):
                past.credit_batches = credit_batches
            case SourceExhausted():
                past.is_exhausted = True
            case GroupAdmitted(size=size, version=version):
                group = past.groups[GroupId.parse(event.key).ordinal]
                group.size, group.version, group.admitted_ns = size, version, event.t_ns
            case GroupClosed():
                group = past.groups[GroupId.parse(event.key).ordinal]
                group.closed, group.closed_ns = payload, event.t_ns
                group.closings += 1
                past.closing.append(group.id.ordinal)
            case GroupRejected(state=state, is_requeued=is_requeued):
                group_id = GroupId.parse(event.key)
                if is_requeued:
                    past.requeued[group_id] = past.groups[group_id.ordinal].task
                self._close(group_id.ordinal, rejected_state(state))
            case _:
                return False
        return True

    def _close(self, ordinal: int, state: OrdinalState) -> None:
        past = self.past
        past.frontier.close(ordinal, state)
        group = past.groups.pop(ordinal)
        if state is OrdinalState.TRAINED and self._keeps_trained:
            past.trained[ordinal], group.uses = group, 1
        if ordinal in past.closing:
            past.closing.remove(ordinal)
        self._forget(group.attempts)

    def _void(self, episode: EpisodeId | None) -> None:
        """The attempt counts no more; its group, if it was finished, is not."""
        attempt = None if episode is None else self._attempt(episode)
        if attempt is None:
            return
        attempt.is_void = True
        ordinal = attempt.episode.group.ordinal
        if attempt.episode.purpose is Purpose.TRAIN and ordinal in self.past.closing:
            self.past.groups[ordinal].closed = None
            self.past.closing.remove(ordinal)

    def _forget(self, attempts: dict[int, dict[int, AttemptPast]]) -> None:
        for attempt in (attempt for by_number in attempts.values() for attempt in by_number.values()):
            if attempt.sealed is not None:
                self._attempts.pop(attempt.sealed.transcript, None)

    def _episode(self, event: Event, payload: Payload) -> bool:
        """Whether it was about an episode."""
        match payload:
            case EpisodeClaimed(token=token):
                self.past.lease_token = max(self.past.lease_token, token)
                self._attempt(claimed_episode(event.key))
                return True
            case VerdictSealed(transcript=transcript, verdict=verdict):
                if (judged := self._attempts.get(transcript)) is not None:
                    judged.verdicts.append(verdict)
                return True
            case EpisodeStarted():
                episode = EpisodeId.parse(event.key)
            case TurnGenerated(episode=episode):
                pass
            case ActionIntended(action=action):
                episode = action.id.episode
            case ActionCommitted(action_id=action_id) | ActionObserved(action_id=action_id):
                episode = action_id.episode
            case TranscriptSealed():
                episode = EpisodeId.parse(event.key)
            case _:
                return False
        attempt = self._attempt(episode)
        if attempt is not None:
            attempt.last_ns = event.t_ns
            self._happen(attempt, event, payload)
        return True

    def _happen(self, attempt: AttemptPast, event: Event, payload: Payload) -> None:
        match payload:
            case EpisodeStarted():
                attempt.started_seq, attempt.started_ns = event.seq, event.t_ns
            case TurnGenerated(step=step):
                attempt.turns[step] = payload
            case ActionIntended(action=action):
                attempt.intents[action.id] = payload
            case ActionCommitted(action_id=action_id):
                attempt.commits[action_id] = (event.seq, payload)
            case ActionObserved(action_id=action_id):
                attempt.observed[action_id] = payload
            case TranscriptSealed(transcript=transcript):
                attempt.sealed = payload
                self._attempts[transcript] = attempt
            case _:
                pass

    def _attempt(self, episode: EpisodeId) -> AttemptPast | None:
        """The attempt, while its group is open or its round runs."""
        if episode.purpose is Purpose.TRAIN:
            group = self.past.groups.get(episode.group.ordinal)
            if group is None:
                return None
            attempts = group.attempts.setdefault(episode.member, {})
        else:
            found = self._round_of(episode.group.ordinal)
            if found is None:
                return None
            attempts = found.attempts.setdefault(episode.group.ordinal, {})
        return attempts.setdefault(episode.attempt, AttemptPast(episode))

    def _round_of(self, ordinal: int) -> RoundPast | None:
        for item in reversed(self.past.rounds):
            if item.first_ordinal <= ordinal < item.first_ordinal + item.episodes:
                return None if item.is_complete else item
        return None
