"""A small run that keeps every law, as a list of steps that tests write into a journal, or break in one place.

Two updates of two groups of two members each, with a credit of one batch. One group is filtered, one member has a failed
attempt before the one that counts, one was never scored, one turn spans two versions, one episode is an evaluation.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from headrace.checkers import Bounds
from headrace.config import Config, ScheduleSection
from headrace.ports import Journal, Row
from headrace.records.action import Action, ActionCommitted, ActionIntended, EffectClass
from headrace.records.arrays import float32_bytes, int32_bytes
from headrace.records.batch import (
    BatchPlan,
    BatchPlanned,
    BatchRow,
    BatchSelected,
    GroupAdmitted,
    GroupClosed,
    GroupRejected,
    MemberResult,
)
from headrace.records.evaluation import EvaluationCompleted, EvaluationStarted
from headrace.records.events import Event, Payload
from headrace.records.execution import EpisodeClaimed, ExecutionStatus, Metering, Receipt
from headrace.records.ids import ActionId, Address, EpisodeId, GroupId, LeaseToken, PolicyId, PolicyRef, Purpose
from headrace.records.observation import ActionObserved
from headrace.records.provenance import PolicyVersion, Provenance, address_of, canonical_bytes, content_version
from headrace.records.reward import RewardRule
from headrace.records.run import RunEnded, RunStarted, WorkerState, WorkerStateChanged
from headrace.records.segment import FinishReason, Origin, Sampling, TokenSegment, TurnGenerated
from headrace.records.task import Budget, Task, TaskDrawn
from headrace.records.terminal import InfraError, Success, Terminal, terminal_name
from headrace.records.trajectory import ActionOutcome, EpisodeStarted, Path, SideRecord, Transcript, TranscriptSealed
from headrace.records.update import (
    GenerationPaused,
    GenerationResumed,
    UpdateCompleted,
    UpdateResult,
    WeightsActivated,
    WeightsCommitted,
    WeightsPrepared,
    WeightsStaged,
)
from headrace.records.verdict import (
    Scored,
    Unscored,
    UnscoredCause,
    Verdict,
    VerdictDisputed,
    VerdictSealed,
)

P = TypeVar("P")

POLICY = PolicyId("policy")
HARNESS = content_version("harness")
ENVIRONMENT = content_version("environment")
GRADER = content_version("grader")
CONFIG = Config(
    schedule=ScheduleSection(
        mode="colocate_async", batch_groups=2, group_size=2, credit_batches=1, staleness="drop", max_lag=1
    )
)
BOUNDS = Bounds(credit_batches=1, batch_groups=2, group_size=2, max_lag=1, reward_rule=RewardRule.MEAN, is_shared=True)


@dataclasses.dataclass(frozen=True)
class Step:
    """One append."""

    payload: Payload
    key: str
    rows: tuple[Row, ...] = ()

    def with_payload(self, **changes: Any) -> "Step":
        return dataclasses.replace(self, payload=msgspec.structs.replace(self.payload, **changes))


def row_of(kind: str, record: Any) -> Row:
    return Row(kind, canonical_bytes(record))


def write_run(journal: Journal, steps: Sequence[Step]) -> int:
    """Sequence number of the last event."""
    seq = 0
    for step in steps:
        seq = journal.append(step.payload, key=step.key, rows=step.rows)
    return seq


def as_log(steps: Sequence[Step]) -> tuple[list[Event], Callable[[Address], bytes]]:
    """The events of the steps, and a look-up of their rows."""
    rows = {row.address: row.data for step in steps for row in step.rows}
    events = [Event(i, 1, "life", i * 1000, step.key, 0, step.payload) for i, step in enumerate(steps, start=1)]
    return events, rows.__getitem__


def find(steps: Sequence[Step], kind: type[P], key: str | None = None) -> int:
    """Index of the first step with a payload of this kind, and this key if given."""
    return next(
        i for i, step in enumerate(steps) if isinstance(step.payload, kind) and (key is None or step.key == key)
    )


def last(steps: Sequence[Step], kind: type[P]) -> int:
    """Index of the last step with a payload of this kind."""
    return max(i for i, step in enumerate(steps) if isinstance(step.payload, kind))


def dropped(steps: Sequence[Step], index: int) -> list[Step]:
    return [*steps[:index], *steps[index + 1 :]]


def repeated(steps: Sequence[Step], index: int) -> list[Step]:
    return [*steps[: index + 1], steps[index], *steps[index + 1 :]]


def replaced(steps: Sequence[Step], index: int, step: Step) -> list[Step]:
    return [*steps[:index], step, *steps[index + 1 :]]


def swapped(steps: Sequence[Step], first: int, second: int) -> list[Step]:
    found = list(steps)
    found[first], found[second] = found[second], found[first]
    return found


def edited(steps: Sequence[Step], index: int, **changes: Any) -> list[Step]:
    """The payload at the index with other fields."""
    return replaced(steps, index, steps[index].with_payload(**changes))


def resealed(steps: Sequence[Step], index: int, field: str, change: Callable[[Any], Any], kind: type) -> list[Step]:
    """The record that a payload names by a field, changed and addressed anew; the payload follows."""
    step = steps[index]
    old = getattr(step.payload, field)
    row = next(row for row in step.rows if row.address == old)
    new = row_of(row.kind, change(msgspec.msgpack.decode(row.data, type=kind)))
    rows = tuple(new if item.address == old else item for item in step.rows)
    return replaced(steps, index, dataclasses.replace(step.with_payload(**{field: new.address}), rows=rows))


def replanned(steps: Sequence[Step], index: int, row: int, **changes: Any) -> list[Step]:
    """The plan at the index with one row changed."""

    def change(plan: BatchPlan) -> BatchPlan:
        rows = list(plan.rows)
        rows[row] = msgspec.structs.replace(rows[row], **changes)
        return msgspec.structs.replace(plan, rows=tuple(rows))

    return resealed(steps, index, "plan", change, BatchPlan)


def lawful_steps(put: Callable[[bytes], Address] = address_of) -> list[Step]:
    """The run; `put` stores a weights file."""
    return _Script(put).run()


def segment(version: int, ids: Sequence[int], finish: FinishReason | None = FinishReason.STOP) -> TokenSegment:
    """Sampled tokens of one version."""
    return TokenSegment(
        origin=Origin.POLICY,
        ids=int32_bytes(ids),
        behavior_logprobs=float32_bytes([-0.5] * len(ids)),
        policy=PolicyRef(POLICY, version),
        context_version_min=version,
        sampling=Sampling(1.0),
        finish=finish,
    )


def task_of(ordinal: int) -> Task:
    question = f"{ordinal} + {ordinal}?"
    return Task("sums", "easy", 7, ordinal, question, Budget(), "calculator")


class _Script:
    """Writes the run down; counters are the only state."""

    def __init__(self, put: Callable[[bytes], Address]) -> None:
        self._put = put
        self._steps: list[Step] = []
        self._token = 0
        self._outstanding = 0
        self._weights: dict[int, Address] = {}
        self._results: dict[GroupId, list[MemberResult]] = {}

    def run(self) -> list[Step]:
        config = row_of("config", CONFIG)
        self._add(RunStarted("run", 7, config.address, "simulated", "", {"cores": 2.0}), "run", config)
        self._add(WorkerStateChanged("engine", WorkerState.IDLE), "engine")
        self._publish(0)
        self._evaluate()
        groups = [GroupId.of(Purpose.TRAIN, ordinal) for ordinal in range(5)]
        for group in groups[:3]:
            self._admit(group, 0)
        self._roll(groups[0], 0, failed_attempts=1)
        self._roll(groups[1], 0, is_scored=False)
        self._admit(groups[3], 0)
        self._update(1, groups[:2])
        self._roll(groups[2], 0)
        self._reject(groups[2])
        self._admit(groups[4], 1)
        self._roll(groups[3], 0, late_version=1)
        self._roll(groups[4], 1)
        self._update(2, groups[3:])
        self._add(RunEnded("completed", 2), "run")
        return self._steps

    def _add(self, payload: Payload, key: str, *rows: Row) -> None:
        self._steps.append(Step(payload, key, rows))

    def _publish(self, version: int) -> None:
        policy, weights = PolicyRef(POLICY, version), self._put(f"weights {version}".encode() * 50)
        self._weights[version] = weights
        self._add(WeightsStaged(policy, weights, 450), str(policy))
        self._add(WeightsPrepared(policy, "engine", 0.1), f"{policy}/engine")
        self._add(WeightsCommitted(policy, weights, 0.01 if version else None), str(policy))
        self._add(WeightsActivated(policy, "engine", 0.01, 0), f"{policy}/engine")

    def _evaluate(self) -> None:
        policy, task = PolicyRef(POLICY, 0), row_of("task", task_of(1000))
        key = f"{policy}/1.0"
        self._add(EvaluationStarted(policy, 1.0, 1), key, task)
        episode = EpisodeId(GroupId.of(Purpose.EVAL, 0), 0, 0)
        self._attempt(episode, task.address, (0, 0), Success(), pin=0)
        self._add(EvaluationCompleted(policy, 1.0, 1, 1, 0, (), 1.0), key)

    def _admit(self, group: GroupId, version: int) -> None:
        task = row_of("task", task_of(group.ordinal))
        self._outstanding += 1
        self._add(TaskDrawn(task.address, "sums", "easy"), str(group), task)
        self._add(GroupAdmitted(2, version, self._outstanding), str(group))

    def _roll(
        self, group: GroupId, version: int, *, failed_attempts: int = 0, is_scored: bool = True, late_version: int = -1
    ) -> None:
        task = row_of("task", task_of(group.ordinal)).address
        results: list[MemberResult] = []
        for member in range(2):
            attempts = failed_attempts if member == 0 else 0
            for attempt in range(attempts):
                fault = InfraError("environment", "the sandbox is gone")
                self._attempt(EpisodeId(group, member, attempt), task, (version, version), fault)
            episode = EpisodeId(group, member, attempts)
            versions = (version, max(version, late_version))
            scored = is_scored or member == 0
            results.append(self._attempt(episode, task, versions, Success(), reward=float(member) if scored else None))
        self._results[group] = results
        self._add(GroupClosed(tuple(results)), str(group))

    def _attempt(
        self,
        episode: EpisodeId,
        task: Address,
        versions: tuple[int, int],
        terminal: Terminal,
        *,
        pin: int | None = None,
        reward: float | None = 1.0,
    ) -> MemberResult:
        self._token += 1
        token = LeaseToken(self._token)
        self._add(EpisodeClaimed(token, 60.0), f"{episode}#{token}")
        self._add(EpisodeStarted(task, pin), str(episode))
        prompt = TokenSegment(Origin.TEMPLATE, int32_bytes(range(4)))
        first = segment(versions[0], [5, 6, episode.member])
        self._add(TurnGenerated(episode, 0, (first,), 0.1, 0.2, 0), f"{episode}/0")
        outcome, observation = self._act(episode, token)
        segments = [prompt, first, observation]
        if isinstance(terminal, Success):
            second = (segment(versions[0], [7, 8], None), segment(versions[1], [9]))
            self._add(TurnGenerated(episode, 1, second, 0.1, 0.2, 0), f"{episode}/1")
            segments += second
        transcript = self._seal(episode, task, segments, (outcome,), terminal)
        if isinstance(terminal, InfraError):
            return MemberResult(episode, transcript, None, None)
        return MemberResult(episode, transcript, self._grade(transcript, reward), reward)

    def _act(self, episode: EpisodeId, token: LeaseToken) -> tuple[ActionOutcome, TokenSegment]:
        action = Action(ActionId(episode, 0, 0), "calculator", '{"expression":"1+1"}')
        key, output = str(action.id), b"2"
        receipt = Receipt(action.id, token, action.arguments_hash, ExecutionStatus.OK, output, len(output))
        observation = TokenSegment(Origin.ENVIRONMENT, int32_bytes([40, 41]))
        self._add(ActionIntended(action, token, EffectClass.PURE), key)
        stored = Row("receipt", receipt.stored)
        self._add(ActionCommitted(action.id, receipt.digest), key, stored)
        self._add(ActionObserved(action.id, address_of(output), observation.ids, None, False, 0), key)
        return ActionOutcome(action, ExecutionStatus.OK, output, len(output), 0, 2), observation

    def _seal(
        self,
        episode: EpisodeId,
        task: Address,
        segments: list[TokenSegment],
        outcomes: tuple[ActionOutcome, ...],
        terminal: Terminal,
    ) -> Address:
        sampled = sorted({item.policy.version for item in segments if item.policy is not None})
        policies = tuple(PolicyVersion(POLICY, version, self._weights[version]) for version in sampled)
        artifact = row_of("artifact", b"42")
        transcript = Transcript(
            episode=episode,
            task=task,
            provenance=Provenance(task, policies, HARNESS, ENVIRONMENT),
            paths=(Path("policy", tuple(segments)),),
            actions=outcomes,
            terminal=terminal,
            final_text="2",
            artifact=artifact.address,
        )
        row = row_of("transcript", transcript)
        side = row_of("side", SideRecord(row.address, 2, 0.4, 0.1, 0.0, 0.2, 1.0, 0, Metering(), 0))
        sealed = TranscriptSealed(
            transcript=row.address,
            side=side.address,
            task=task,
            terminal=terminal_name(terminal),
            sampled_tokens=transcript.num_sampled_tokens,
            total_tokens=transcript.num_tokens,
            versions=transcript.versions,
        )
        self._add(sealed, str(episode), artifact, row, side)
        return row.address

    def _grade(self, transcript: Address, reward: float | None) -> Address:
        """The verdict that counts, after one grader crash; a scored one is disputed afterwards, in vain."""
        crash = Verdict(transcript, GRADER, Unscored(UnscoredCause.GRADER_CRASH, "exit 1"))
        first = row_of("verdict", crash)
        self._add(VerdictSealed(transcript, first.address, False, 0), f"{transcript}#0", first)
        if reward is None:
            return first.address
        row = row_of("verdict", Verdict(transcript, GRADER, Scored((("answer", reward),), "compared with 2")))
        self._add(VerdictSealed(transcript, row.address, True, 1), f"{transcript}#1", row)
        other = row_of("verdict", Verdict(transcript, GRADER, Scored((("answer", 0.5),), "a second opinion")))
        self._add(VerdictDisputed(transcript, row.address, other.address), f"{transcript}", other)
        return row.address

    def _reject(self, group: GroupId) -> None:
        self._outstanding -= 1
        self._add(GroupRejected("filtered", "lag", 1, 1, 1.0, "easy", 9.0, 3.0), str(group))

    def _update(self, update: int, groups: list[GroupId]) -> None:
        self._add(BatchSelected(update, tuple(groups)), str(update))
        rows = tuple(
            BatchRow(result.transcript, 0, group, result.episode.member, 1, result.reward, result.reward - 0.5, 1.0)
            for group in groups
            for result in self._results[group]
            if result.reward is not None and result.transcript is not None
        )
        plan = row_of("plan", BatchPlan(update, POLICY, update - 1, rows, content_version("algorithm"), b"key"))
        planned = BatchPlanned(update, plan.address, tuple(groups), len(rows), update - 1, 0.5, 1, 0.5)
        self._add(planned, str(update), plan)
        self._add(GenerationPaused(update, "engine", 2, 100 * update, 0.01), str(update))
        weights = self._put(f"weights {update}".encode() * 50)
        result = UpdateResult(update, update, weights, 450, {"loss": 0.1}, 1.0)
        self._add(UpdateCompleted(result), str(update))
        self._publish(update)
        self._add(GenerationResumed(update, "engine", 100 * update, 1.0, 0.01), str(update))
        self._outstanding -= len(groups)
