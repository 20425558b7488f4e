"""The joins that the folds share: the lives of groups, transcripts, updates and versions by name.

Invariant: only what an event or a readable sealed row named is in it.
"""

import contextlib
from collections.abc import Iterable
from typing import Protocol

from headrace.config import Config
from headrace.records.batch import (
    BatchPlan,
    BatchPlanned,
    BatchRefilled,
    BatchSelected,
    GroupAdmitted,
    GroupClosed,
    GroupRejected,
)
from headrace.records.compaction import read_outline
from headrace.records.events import Event, Payload
from headrace.records.gate import BatchGated
from headrace.records.ids import Address, EpisodeId, GroupId, PolicyRef
from headrace.records.provenance import Read, read_record
from headrace.records.reward import RewardRule, reward_of
from headrace.records.run import RunEnded, RunStarted
from headrace.records.task import Task, TaskDrawn
from headrace.records.trajectory import EpisodeStarted, SideRecord, TranscriptSealed
from headrace.records.update import (
    BatchScored,
    CanaryChecked,
    UpdateCompleted,
    WeightsActivated,
    WeightsCommitted,
    WeightsPrepared,
)
from headrace.records.verdict import Scored, Unscored, Verdict, VerdictSealed
from headrace.records.weighing import StrataWeighed
from headrace.reporting.folds.lives import GroupLife, TranscriptLife, UpdateLife, VersionLife


class Fold(Protocol):
    """Takes events in order."""

    def observe(self, event: Event) -> None:
        """Takes the next event."""
        ...


def fold(events: Iterable[Event], folds: Iterable[Fold]) -> None:
    """Feeds every event to every fold, in the order given; the index goes first."""
    chosen = tuple(folds)
    for event in events:
        for item in chosen:
            item.observe(event)


class RunIndex:
    """Groups, transcripts, updates and versions of one run.

    Args:
        read: bytes of a sealed row.

    Attributes:
        started: the first start of the run.
        ended: its end, if it came that far.
        config: the effective configuration.
        start_ns: time of the first event.
        now_ns: time of the newest event.
        groups: by id, in order of appearance.
        transcripts: by address, in order of sealing.
        updates: by number.
        versions: by reference, in order of commit.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._episodes: dict[EpisodeId, int] = {}
        self._made: dict[int, int] = {}
        self._canaries: dict[PolicyRef, CanaryChecked] = {}
        self._loads: dict[PolicyRef, float] = {}
        self._tasks: dict[Address, Task] = {}
        self._rule = RewardRule.MEAN
        self.started: RunStarted | None = None
        self.ended: RunEnded | None = None
        self.config: Config | None = None
        self.starts = 0
        self.start_ns: int | None = None
        self.now_ns = 0
        self.groups: dict[GroupId, GroupLife] = {}
        self.transcripts: dict[Address, TranscriptLife] = {}
        self.updates: dict[int, UpdateLife] = {}
        self.versions: dict[PolicyRef, VersionLife] = {}

    @property
    def wall_ns(self) -> int:
        """Time from the first event to the newest."""
        return self.now_ns - (self.start_ns or 0)

    @property
    def success_bound(self) -> float:
        """Reward that counts as success."""
        return 1.0 if self.config is None else self.config.evaluation.success_bound

    @property
    def environment_cpu_s(self) -> float | None:
        """CPU seconds of environments; None when calls ran and not one reported any: then nothing metered them."""
        total = sum(life.side.metering.cpu_s for life in self.transcripts.values())
        has_calls = any(life.statuses for life in self.transcripts.values())
        return None if total == 0 and has_calls else total

    def read_task(self, address: Address) -> Task:
        """The task of an address. Raises KeyError, IntegrityError."""
        if address not in self._tasks:
            self._tasks[address] = read_record(self._read, address, Task)
        return self._tasks[address]

    def trained_groups(self) -> list[GroupLife]:
        """Groups that trained, in the order of the batches."""
        return [
            self.groups[group]
            for life in self.updates.values()
            for group in life.groups
            if self.groups[group].trained_ns is not None
        ]

    def group_of(self, transcript: TranscriptLife) -> GroupLife:
        """The group of a transcript."""
        return self.groups[transcript.episode.group]

    def observe(self, event: Event) -> None:
        """Takes the next event."""
        if self.start_ns is None:
            self.start_ns = event.t_ns
        self.now_ns = max(self.now_ns, event.t_ns)
        self._observe_run(event)
        self._observe_group(event)
        self._observe_episode(event)
        self._observe_update(event)

    def _observe_run(self, event: Event) -> None:
        match event.payload:
            case RunStarted():
                self.starts += 1
                self.started = self.started or event.payload
                self.config = read_record(self._read, event.payload.config, Config)
                self._rule = RewardRule(self.config.algorithm.reward_rule)
            case RunEnded():
                self.ended = event.payload
            case _:
                pass

    def _observe_group(self, event: Event) -> None:
        match event.payload:
            case TaskDrawn(task=task, family=family, difficulty=difficulty):
                group = self._group(GroupId.parse(event.key))
                group.task, group.family, group.difficulty = task, family, difficulty
                group.drawn_ns = event.t_ns
            case GroupAdmitted():
                self._group(GroupId.parse(event.key)).admitted_ns = event.t_ns
            case GroupClosed(members=members):
                group = self._group(GroupId.parse(event.key))
                group.closed_ns, group.members = event.t_ns, members
            case GroupRejected():
                group = self._group(GroupId.parse(event.key))
                group.rejected_ns, group.rejection = event.t_ns, event.payload
            case BatchSelected(update=update, groups=groups, retired=retired):
                life = self._update(update)
                life.groups, life.selected_ns, life.retired = groups, event.t_ns, retired
                self._select(update, groups, event.t_ns)
            case BatchRefilled(update=update, groups=groups):
                self._update(update).groups += groups
                self._select(update, groups, event.t_ns)
            case _:
                pass

    def _select(self, update: int, groups: Iterable[GroupId], t_ns: int) -> None:
        for group_id in groups:
            group = self._group(group_id)
            group.selected_ns, group.update = t_ns, update

    def _observe_episode(self, event: Event) -> None:
        match event.payload:
            case EpisodeStarted(task=address):
                episode = EpisodeId.parse(event.key)
                self._episodes[episode] = event.t_ns
                group = self._group(episode.group)
                if group.task is None:
                    with contextlib.suppress(KeyError):  # set aside by a repair, like the others below
                        task = self.read_task(address)
                        group.task, group.family, group.difficulty = address, task.family, task.difficulty
            case TranscriptSealed():
                self._seal(EpisodeId.parse(event.key), event.payload, event.t_ns)
            case VerdictSealed():
                self._judge(event.payload, event.t_ns)
            case _:
                pass

    def _observe_update(self, event: Event) -> None:
        match event.payload:
            case BatchPlanned(update=update, plan=plan):
                life = self._update(update)
                life.planned, life.groups = event.payload, event.payload.groups
                with contextlib.suppress(KeyError):
                    life.rows = read_record(self._read, plan, BatchPlan).rows
            case UpdateCompleted(result=result):
                life = self._update(result.update)
                life.completed_ns, life.result, life.strata = event.t_ns, result, event.payload.strata
                self._made[result.version] = result.update
            case CanaryChecked(policy=policy):
                self._canaries[policy] = event.payload
            case WeightsPrepared(policy=policy, load_s=load_s):
                self._loads[policy] = load_s
            case WeightsCommitted():
                self._commit(event.payload, event.t_ns)
            case WeightsActivated(policy=policy, pause_s=pause_s, rebuilt_tokens=rebuilt):
                version = self.versions.get(policy)
                if version is not None:
                    version.activated_ns = event.t_ns
                    version.pause_s = max(version.pause_s or 0.0, pause_s)
                    version.rebuilt_tokens = (version.rebuilt_tokens or 0) + rebuilt
            case _:
                self._observe_batch(event.payload)

    def _observe_batch(self, payload: Payload) -> None:
        match payload:
            case BatchScored(update=update):
                self._update(update).scored = payload
            case BatchGated(update=update):
                self._update(update).gated += (payload,)
            case StrataWeighed(update=update):
                self._update(update).weighed = payload
            case _:
                pass

    def _commit(self, committed: WeightsCommitted, t_ns: int) -> None:
        """The version exists; the groups of the update that made it are trained from here on."""
        policy = committed.policy
        update = self._made.get(policy.version)
        self.versions[policy] = VersionLife(
            policy,
            t_ns,
            committed.kl_to_previous,
            update,
            self._canaries.pop(policy, None),
            self._loads.pop(policy, None),
        )
        if update is not None:
            for group in self.updates[update].groups:
                self.groups[group].trained_ns = t_ns

    def _seal(self, episode: EpisodeId, sealed: TranscriptSealed, t_ns: int) -> None:
        try:
            outline = read_outline(self._read, sealed.transcript)
            side = read_record(self._read, sealed.side, SideRecord)
        except KeyError:
            return  # the funnel counts what was quarantined
        self.transcripts[sealed.transcript] = TranscriptLife(
            episode=episode,
            sealed=sealed,
            sealed_ns=t_ns,
            started_ns=self._episodes.get(episode),
            side=side,
            limits_hit=outline.limits_hit,
            statuses=outline.statuses,
            malformed_turns=outline.malformed_turns,
            forks=outline.forks,
        )

    def _judge(self, sealed: VerdictSealed, t_ns: int) -> None:
        """The first scored verdict counts; without one, the last cause does."""
        life = self.transcripts.get(sealed.transcript)
        if life is None:
            return
        try:
            verdict = read_record(self._read, sealed.verdict, Verdict)
        except KeyError:
            return
        match verdict.outcome:
            case Scored():
                life.num_scored += 1
                if life.num_scored == 1:
                    life.verdict_ns, life.cause = t_ns, None
                    life.reward = reward_of(verdict, self._rule)
            case Unscored(cause=cause):
                if life.num_scored == 0:
                    life.verdict_ns, life.cause = t_ns, cause

    def _group(self, group: GroupId) -> GroupLife:
        return self.groups.setdefault(group, GroupLife(group))

    def _update(self, update: int) -> UpdateLife:
        return self.updates.setdefault(update, UpdateLife(update))
