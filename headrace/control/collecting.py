"""Collects members into groups, and holds finished groups until an update takes them.

Invariant: a group holds its slot from admission to the version bump that consumed it or to its recorded rejection, so
outstanding groups <= (most_credit_batches + 1) * batch_groups at every instant.

* consumes: drawn tasks.
* waits for: the members of each group.
* unblocked by: the last member's verdict.
* produces: `GroupClosed`, then a ready group; or `GroupRejected`.
"""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from headrace.control.context import RunContext
from headrace.control.frontier import DataFrontier
from headrace.control.member import NO_ATTEMPTS, MemberOutcome, MemberRunner, MemberSpec
from headrace.control.past import AttemptPast, GroupPast, RunPast
from headrace.control.recorder import sealed_row
from headrace.control.together import all_of
from headrace.control.weighing import StratumLedger
from headrace.errors import HeadraceError, IntegrityError, InvariantViolated
from headrace.records.batch import GroupAdmitted, GroupClosed, GroupRejected
from headrace.records.events import OrdinalState, rejected_state
from headrace.records.ids import Address, GroupId, Purpose
from headrace.records.segment import Sampling
from headrace.records.task import Task, TaskDrawn
from headrace.scheduling.ordering import OpenGroup
from headrace.scheduling.staleness import Lag, lag_of

NO_PAST: Mapping[int, Mapping[int, AttemptPast]] = {}
_LEAST_SCORED = 2
"""A group trains with this many rewards at least; below it there is no baseline."""


class Group(msgspec.Struct, eq=False):
    """An open group. Owned by the collector.

    Attributes:
        finished: outcomes by member while the others run.
        outcomes: of every member, once the last has ended.
        oldest_version: version of its oldest token; None while nothing is sampled.
        ready_rank: place in the order of completion; None while it runs.
        closings: how often it was closed before.
        known_open: what the deciders were shown last.
        kept_at: the version at which selection last found that it may train; -1 before.
    """

    id: GroupId
    task: Task
    task_address: Address
    admitted_version: int
    admitted_s: float
    finished: dict[int, MemberOutcome] = {}
    outcomes: tuple[MemberOutcome, ...] = ()
    oldest_version: int | None = None
    ready_rank: int | None = None
    closings: int = 0
    known_open: OpenGroup | None = None
    kept_at: int = -1

    def end(self, outcomes: Sequence[MemberOutcome]) -> None:
        """Nothing more comes of its members than these outcomes."""
        self.outcomes = tuple(outcomes)
        versions = [outcome.sampled.tokens[0][0] for outcome in outcomes if outcome.sampled.tokens]
        self.oldest_version = min(versions, default=None)

    def lag(self, version: int) -> Lag:
        """Lag of its sampled tokens behind a trainer version."""
        return lag_of([outcome.sampled for outcome in self.outcomes], version)

    def oldest_lag(self, version: int) -> int:
        """`lag(version).oldest`, without a look at all the others."""
        return -1 if self.oldest_version is None else version - self.oldest_version

    def as_open(self) -> OpenGroup:
        """What the deciders see of it."""
        known = self.known_open
        if known is None or known.ready_rank != self.ready_rank:
            version = self.admitted_version if self.oldest_version is None else self.oldest_version
            self.known_open = known = OpenGroup(self.id.ordinal, version, self.ready_rank)
        return known


class Collector:
    """Open groups of one run.

    Args:
        runner: runs members.
        context: what the run's loops share.
        group_size: members of a group.
        max_outstanding: bound on open groups.
        temperature: sampling temperature of training episodes.

    Attributes:
        group_size: the same.
        max_outstanding: the same bound.
        frontier: states of drawn ordinals.
    """

    def __init__(
        self,
        runner: MemberRunner,
        context: RunContext,
        *,
        group_size: int,
        max_outstanding: int,
        temperature: float,
    ) -> None:
        self._runner = runner
        self._recorder = context.recorder
        self._context = context
        self.group_size = group_size
        self.max_outstanding = max_outstanding
        self._sampling = Sampling(temperature)
        self._open: dict[int, Group] = {}
        self._ready: dict[int, Group] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._num_ready = 0
        self._abandoned_in_a_row = 0
        self.frontier = DataFrontier()
        self.ledger = StratumLedger()

    @property
    def outstanding(self) -> int:
        """Groups that hold a slot."""
        return len(self._open)

    def admit(self, task: Task, requeued_from: GroupId | None = None) -> None:
        """Opens a group for a drawn task and starts its members."""
        group_id = GroupId.of(Purpose.TRAIN, self.frontier.draw())
        row, version = sealed_row("task", task), self._context.versions.current
        group = Group(group_id, task, row.address, version, self._recorder.elapsed_s)
        self._open[group_id.ordinal] = group
        if self.outstanding > self.max_outstanding:
            raise InvariantViolated(f"{self.outstanding} groups are outstanding, {self.max_outstanding} are allowed")
        payload = TaskDrawn(row.address, task.family, task.difficulty, requeued_from)
        drawn = self._recorder.record(payload, key=str(group_id), rows=(row,))
        self._record_admission(group, drawn)
        self._tasks[group_id.ordinal] = self._context.spawn(self._run_group(group), f"group/{group_id}")

    def restore(self, past: RunPast) -> list[tuple[Task, GroupId]]:
        """Takes over the open groups of a run: finished ones are ready again, the others go on.

        Returns:
            tasks to be drawn again with the groups that held them, since what was stored of these is damaged.

        Raises:
            IntegrityError: when it is damaged and an update is under way that was planned with it.
        """
        self.frontier = past.frontier
        if past.weighed is not None:
            self.ledger.recall(past.weighed)
        reopened: list[tuple[Task, GroupId]] = []
        running = [group for group in past.groups.values() if group.closed is None]
        for known in [*(past.groups[ordinal] for ordinal in past.closing), *running]:
            task = msgspec.msgpack.decode(self._recorder.read(known.task), type=Task)
            group = Group(known.id, task, known.task, known.version, known.admitted_ns / 1e9, closings=known.closings)
            self._open[known.id.ordinal] = group
            if known.size == 0:
                group.admitted_version = self._context.versions.current
                self._record_admission(group, 0)
            if (damage := self._damage(known)) is not None:
                self._quarantine(group, damage, past)
                reopened += [] if past.is_exhausted else [(task, group.id)]
        for ordinal in (ordinal for ordinal in past.closing if ordinal in self._open):
            self._close(self._open[ordinal], past.groups[ordinal])
            self._finish(self._open[ordinal])
        for known in (group for group in running if group.id.ordinal in self._open):
            group = self._open[known.id.ordinal]
            self._tasks[known.id.ordinal] = self._context.spawn(
                self._run_group(group, known.attempts), f"group/{known.id}"
            )
        return reopened

    def recall_trained(self, known: GroupPast) -> tuple[Group, str | None]:
        """A group that trained, as it was, and what is wrong with its stored work; it holds no slot."""
        task = msgspec.msgpack.decode(self._recorder.read(known.task), type=Task)
        group = Group(known.id, task, known.task, known.version, known.admitted_ns / 1e9)
        if (damage := self._damage(known)) is None:
            self._close(group, known)
        return group, damage

    def _close(self, group: Group, known: GroupPast) -> None:
        assert known.closed is not None
        attempts = [known.attempts[m.episode.member][m.episode.attempt] for m in known.closed.members]
        group.end([self._runner.recall(item) for item in attempts])

    def _damage(self, known: GroupPast) -> str | None:
        """What is wrong with the stored transcripts and verdicts of a group, if anything is."""
        for attempt in (attempt for attempts in known.attempts.values() for attempt in attempts.values()):
            if attempt.sealed is None or attempt.is_void:
                continue
            for address in (attempt.sealed.transcript, *attempt.verdicts):
                try:
                    self._recorder.read(address)
                except IntegrityError as error:
                    return f"{attempt.episode}: {error}"
                except KeyError:
                    return f"{attempt.episode}: row {address} is gone"
        return None

    def _quarantine(self, group: Group, damage: str, past: RunPast) -> None:
        """The group leaves with a record, and is never trained on; an exhausted source takes no task back."""
        update = past.update
        if update is not None and group.id in update.groups:
            raise IntegrityError(
                f"update {update.update} was begun with {group.id}, whose stored work is damaged: {damage}; restore the row "
                "from a copy of the journal, or cut the update away with `headrace repair --truncate`"
            )
        is_requeued = not past.is_exhausted
        self.reject(group, OrdinalState.ABANDONED, f"quarantined: {damage}", is_requeued=is_requeued)

    def open_groups(self) -> list[OpenGroup]:
        """What the deciders see of every open group."""
        return [group.as_open() for group in self._open.values()]

    def difficulties(self) -> dict[int, str]:
        """Stratum of every open group, by ordinal."""
        return {ordinal: group.task.difficulty for ordinal, group in self._open.items()}

    def ready(self) -> list[Group]:
        """Finished groups, by ordinal."""
        return [self._ready[ordinal] for ordinal in sorted(self._ready)]

    def group(self, ordinal: int) -> Group:
        """The open group of an ordinal."""
        return self._open[ordinal]

    def consume(self, groups: Sequence[Group]) -> None:
        """Gives back the slots of groups that an update consumed; called at its version bump."""
        for group in groups:
            self.frontier.close(group.id.ordinal, OrdinalState.TRAINED)
            del self._open[group.id.ordinal], self._ready[group.id.ordinal]
        self._abandoned_in_a_row = 0
        self._context.changed.notify()

    def reject(self, group: Group, state: OrdinalState, reason: str, *, is_requeued: bool = False) -> None:
        """Gives back a group's slot without training it, with a record of why, and of whether its task is drawn again.

        Raises:
            HeadraceError: when so many groups in a row were abandoned that the run makes no progress.
        """
        self.ledger.reject(group.task.difficulty, reason)
        lag = group.lag(self._context.versions.current)
        lengths = [outcome.num_tokens for outcome in group.outcomes]
        self._recorder.record(
            GroupRejected(
                state=state.value,
                reason=reason,
                oldest_lag=lag.oldest,
                newest_lag=lag.newest,
                mean_lag=lag.mean,
                difficulty=group.task.difficulty,
                mean_tokens=sum(lengths) / len(lengths) if lengths else 0.0,
                duration_s=self._recorder.elapsed_s - group.admitted_s,
                is_requeued=is_requeued,
            ),
            key=str(group.id),
        )
        self.frontier.close(group.id.ordinal, rejected_state(state.value))
        del self._open[group.id.ordinal]
        self._ready.pop(group.id.ordinal, None)
        self._context.changed.notify()
        if state is OrdinalState.ABANDONED:
            self._abandoned_in_a_row += 1
            if self._abandoned_in_a_row > 2 * self.max_outstanding:
                raise HeadraceError(
                    f"{self._abandoned_in_a_row} groups in a row were abandoned, the last for {reason!r}; "
                    "the run makes no progress, look at the infrastructure failures in its report"
                )

    def cancel(self, group: Group, reason: str) -> None:
        """Ends a running group by a rule, with a record of what its ended members came to; its requests leave the engine."""
        group.end([outcome for _, outcome in sorted(group.finished.items())])
        self._tasks.pop(group.id.ordinal).cancel()
        self.reject(group, OrdinalState.FILTERED, reason)

    def running(self) -> list[Group]:
        """Unfinished groups, by ordinal."""
        return sorted((g for g in self._open.values() if g.ready_rank is None), key=lambda g: g.id.ordinal)

    def abandon_all(self, reason: str) -> None:
        """Stops and closes whatever is open when the run ends."""
        for task in self._tasks.values():
            task.cancel()
        for group in list(self._open.values()):
            self._abandoned_in_a_row = 0
            self.reject(group, OrdinalState.ABANDONED, reason)

    def _record_admission(self, group: Group, cause: int) -> None:
        admitted = GroupAdmitted(self.group_size, group.admitted_version, self.outstanding)
        self._recorder.record(admitted, key=str(group.id), cause=cause)

    async def _run_group(self, group: Group, past: Mapping[int, Mapping[int, AttemptPast]] = NO_PAST) -> None:
        group.end(await self._run_members(group, past))
        del self._tasks[group.id.ordinal]
        key = f"{group.id}#{group.closings + 1}" if group.closings else str(group.id)
        self._recorder.record(GroupClosed(tuple([outcome.result for outcome in group.outcomes])), key=key)
        self._finish(group)

    def _finish(self, group: Group) -> None:
        """A closed group is ready, unless too few of its members have a reward."""
        scored = sum([outcome.result.reward is not None for outcome in group.outcomes])
        if scored < min(_LEAST_SCORED, self.group_size):
            reason = f"unscored: {scored} of {self.group_size} members have a reward"
            self.reject(group, OrdinalState.ABANDONED, reason)
            return
        group.ready_rank = self._num_ready
        self._ready[group.id.ordinal] = group
        self._num_ready += 1
        self._context.changed.notify()

    async def _run_members(self, group: Group, past: Mapping[int, Mapping[int, AttemptPast]]) -> list[MemberOutcome]:
        specs = [
            MemberSpec(
                group.id, member, group.task, group.task_address, self._sampling, None, past.get(member, NO_ATTEMPTS)
            )
            for member in range(self.group_size)
        ]
        if len(specs) == 1:
            return [await self._run_member(specs[0], group)]
        if self._runner.is_group_scoped:
            sealed = await all_of(self._runner.roll(spec) for spec in specs)
            return await self._runner.grade(sealed, group.task)
        return await all_of(self._run_member(spec, group) for spec in specs)

    async def _run_member(self, spec: MemberSpec, group: Group) -> MemberOutcome:
        sealed = await self._runner.roll(spec)
        (outcome,) = await self._runner.grade([sealed], spec.task)
        group.finished[spec.member] = outcome
        return outcome
