"""The fold of a run's events into where it stands (`headrace.control.past`): what a process that takes it over has to know.

Invariant: the journal is the truth. Commits keep its order, so a durable event implies every event before it; what is not
here did not happen, and is done. The same log gives the same state however often it is folded, so a crash during recovery
changes nothing.
"""

from collections.abc import Iterable

from headrace.checkers.leases import claimed_episode
from headrace.checkers.tasks import Bumps
from headrace.control.past import AttemptPast, GroupPast, RoundPast, RunPast, UpdatePast
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
from headrace.records.gate import BatchGated
from headrace.records.ids import Address, EpisodeId, GroupId, Purpose
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
                group.closed = payload
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
