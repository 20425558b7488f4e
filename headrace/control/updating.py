"""The update loop: takes ready groups, plans, trains, publishes.

Invariant: the plan is durable before the first gradient; a batch is laid out by (ordinal, member, path), never by arrival;
slots come back at the version bump or with a recorded rejection. A batch without any row makes no plan, no gradient and no
version: its groups leave with a record, and the same update is tried again. An update that the guard stops is never served.

* consumes: ready groups.
* waits for: enough of them, its turn on shared devices, the trainer, publication.
* unblocked by: a group becoming ready, or the source running dry.
* produces: `UpdateSkipped`, or `BatchSelected`, `BatchScored`, `BatchGated`, `BatchPlanned`, `UpdateCompleted`, and a new
  version or `TrainingPaused`.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import msgspec

from headrace.config import AlgorithmSection
from headrace.control.checkpointing import Checkpointer
from headrace.control.collecting import Collector, Group
from headrace.control.context import RunContext
from headrace.control.gating import StatisticalGate
from headrace.control.guarding import Alarm, CollapseGuard
from headrace.control.publishing import Publisher
from headrace.control.recorder import sealed_row
from headrace.control.recovery import RunPast, UpdatePast
from headrace.control.scoring import batch_scored, stratum_updates
from headrace.control.shaping import BatchShaper, filter_reason
from headrace.control.sharing import SharedDevices
from headrace.control.source import SourceLoop
from headrace.control.weighing import weighed_rows
from headrace.errors import HeadraceError, InvariantViolated
from headrace.ports import Trainer
from headrace.records.batch import BatchPlan, BatchPlanned, BatchRow, BatchSelected
from headrace.records.events import OrdinalState
from headrace.records.ids import Address, GroupId, PolicyId
from headrace.records.provenance import address_of, canonical_bytes
from headrace.records.streams import stream_key_bytes
from headrace.records.update import RowScore, TrainingPaused, UpdateCompleted, UpdateResult, UpdateSkipped
from headrace.scheduling.ordering import BatchOrder
from headrace.scheduling.quotas import Quotas
from headrace.scheduling.staleness import StalenessRule

_MOST_REJECTED_BATCHES = 64
"""Batches' worth of groups that rules may reject between two updates."""


@dataclasses.dataclass(frozen=True)
class UpdateSettings:
    """What the update loop goes by.

    Attributes:
        updates: number of updates of the run.
        seed: root of every stream.
        policy_id: which policy.
        algorithm: the learning signal.
        order: which ready groups come first.
        staleness: which may not train.
        quotas: places of a batch that strata hold.
        timeout_s: deadline of scoring and of an update.
    """

    updates: int
    seed: int
    policy_id: PolicyId
    algorithm: AlgorithmSection
    order: BatchOrder
    staleness: StalenessRule
    quotas: Quotas
    timeout_s: float

    @property
    def algorithm_version(self) -> Address:
        """Content version of the algorithm's configuration."""
        return address_of(canonical_bytes(self.algorithm))


class UpdateLoop:
    """Turns ready groups into versions."""

    def __init__(  # noqa: PLR0913 - what it takes from and hands on to
        self,
        collector: Collector,
        source: SourceLoop,
        trainer: Trainer,
        publisher: Publisher,
        *,
        checkpointer: Checkpointer,
        devices: SharedDevices | None,
        context: RunContext,
        settings: UpdateSettings,
    ) -> None:
        self._collector = collector
        self._source = source
        self._trainer = trainer
        self._publisher = publisher
        self._checkpointer = checkpointer
        self._devices = devices
        self._context = context
        self._recorder = context.recorder
        self._versions = context.versions
        self._settings = settings
        self._guard = CollapseGuard(settings.algorithm.guard)
        self._gate = StatisticalGate(settings.algorithm.gate)
        self._rejected_in_a_row = 0
        self._past: UpdatePast | None = None

    def restore(self, past: RunPast) -> None:
        """Goes on with the update that the run's earlier processes left without a version."""
        self._past = past.update
        self._guard.recall(past.guard)

    async def run(self, on_version: Callable[[int], None]) -> str:
        """Why it ended: `completed`, `exhausted` when tasks ran out before the updates did, or `paused: …` by the guard.

        Args:
            on_version: called with each new version once its groups gave their slots back.
        """
        for update in range(self._versions.current + 1, self._settings.updates + 1):
            shaper, groups = self._batch_again() or await self._next_batch(update)
            if not groups:
                return "exhausted"
            async with contextlib.nullcontext() if self._devices is None else self._devices.training(update):
                alarm = await self._update(update, groups, shaper)
                if alarm is None:
                    on_version(self._versions.current)
                    self._checkpointer.begin(update, self._collector.frontier, self._guard.state)
                if self._devices is not None:
                    await self._checkpointer.settle()  # it is the trainer's work, so it belongs to the trainer's turn
            if alarm is not None:
                return f"paused: {alarm.figure} {alarm.value:.3g} in update {update}, {alarm.bound:.3g} is allowed"
        await self._checkpointer.settle()
        return "completed"

    def _batch_again(self) -> tuple[BatchShaper, list[Group]] | None:
        """The batch that was selected already, if there is one."""
        if self._past is None:
            return None
        open_ordinals = self._collector.frontier.open
        left = [group.ordinal for group in self._past.groups if group.ordinal in open_ordinals]
        groups = [self._collector.group(ordinal) for ordinal in left]
        return BatchShaper(groups, self._settings.algorithm), groups

    async def _next_batch(self, update: int) -> tuple[BatchShaper, list[Group]]:
        """A batch with at least one row; without groups when none can come any more."""
        while True:
            groups = await self._take()
            shaper = BatchShaper(groups, self._settings.algorithm)
            if not groups or shaper.rows():
                return shaper, groups
            reason = f"no row: none of {len(groups)} groups has a member with a reward and an advantage"
            self._recorder.record(UpdateSkipped(update, reason), key=f"{update}/{groups[0].id}")
            for group in groups:
                self._reject(group, "no member with a reward and an advantage")

    async def _take(self) -> list[Group]:
        """The next batch, by ordinal; empty when none can come any more."""
        chosen: list[Group] = []

        def can_go_on() -> bool:
            chosen[:] = self._choose()
            return bool(chosen) or (self._source.is_exhausted and self._collector.outstanding == 0)

        await self._context.changed.wait_until(can_go_on)
        return chosen

    def _choose(self) -> list[Group]:
        """A full batch of groups that may train now, or nothing; stale ones leave with a record."""
        version, staleness = self._versions.current, self._settings.staleness
        if staleness.cancels:
            self._cancel_stale(version)
        ready = self._collector.ready()
        num_ready = len(ready)
        for group in ready:
            stale = staleness.drop_reason(group.lag(version))
            reason = stale or filter_reason(group, self._settings.algorithm.filters)
            if reason is not None:
                num_ready -= 1
                self._reject(group, reason, is_requeued=stale is not None and staleness.requeues)
        order, is_last = self._settings.order, self._source.is_exhausted
        if num_ready < max(1, order.size(self._collector.outstanding, is_last)):
            return []  # asked at every change, so an answer that is plain costs no look at every open group
        groups, strata = self._collector.open_groups(), self._collector.difficulties()
        ordinals = self._settings.quotas.choose(order, groups, strata, version, is_last=is_last)
        return [self._collector.group(ordinal) for ordinal in ordinals or ()]

    def _cancel_stale(self, version: int) -> None:
        for group in self._collector.running():
            reason = self._settings.staleness.cancel_reason(group.as_open().version, version)
            if reason is not None:
                self._collector.cancel(group, reason)
                self._count_rejection(reason)

    def _reject(self, group: Group, reason: str, *, is_requeued: bool = False) -> None:
        """Removes a group by a rule on its data; an exhausted source takes no task back."""
        is_requeued = is_requeued and not self._source.is_exhausted
        self._collector.reject(group, OrdinalState.FILTERED, reason, is_requeued=is_requeued)
        if is_requeued:
            self._source.draw_again(group.task, group.id)
        self._count_rejection(reason)

    def _count_rejection(self, reason: str) -> None:
        """Raises HeadraceError when nothing else happens any more."""
        self._rejected_in_a_row += 1
        if self._rejected_in_a_row > _MOST_REJECTED_BATCHES * self._settings.order.batch_groups:
            raise HeadraceError(
                f"{self._rejected_in_a_row} groups in a row were filtered, the last for {reason!r}; the run makes no "
                "progress, look at the rewards of its groups"
            )

    async def _update(self, update: int, groups: list[Group], shaper: BatchShaper) -> Alarm | None:
        """The alarm that kept the new version from being served, if any."""
        recorder, settings = self._recorder, self._settings
        await self._checkpointer.settle()
        selected = recorder.record(BatchSelected(update, tuple(group.id for group in groups)), key=str(update))
        await recorder.durable(selected)
        base_version, difficulties = self._versions.current, shaper.difficulties
        self._publisher.clock.enter(f"update {update}")
        try:
            rows = shaper.rows()
            scores = await self._trainer.score(rows, base_version, settings.timeout_s)
            recorder.record(batch_scored(update, rows, scores, difficulties), key=str(update), cause=selected)
            rows, groups = self._gated(update, groups, shaper, scores=scores, cause=selected)
            plan = self._plan(update, rows)
            planned = self._record_plan(plan, groups, shaper, selected)
            await recorder.durable(planned)
            result = await self._step(plan)
            strata = stratum_updates(result.rows, difficulties)
            kept = msgspec.structs.replace(result, rows=())
            completed = recorder.record(UpdateCompleted(kept, strata), key=str(update), cause=planned)
        finally:
            self._publisher.clock.leave()
        if result.version != base_version + 1:
            raise InvariantViolated(f"update {update} made version {result.version} of {base_version}")
        alarm = await self._publish(result, completed)
        if alarm is None:
            self._rejected_in_a_row = 0
            self._collector.consume(tuple(group.id.ordinal for group in groups))
        return alarm

    def _gated(
        self, update: int, groups: list[Group], shaper: BatchShaper, *, scores: Sequence[RowScore], cause: int
    ) -> tuple[tuple[BatchRow, ...], list[Group]]:
        """Rows with what the gate left of their weights, and groups that still have one; others leave with a record."""
        decision = self._gate.judge(scores)
        rows = shaper.rows_after(scores)
        if self._past is not None and self._past.plan is not None:
            return rows, groups  # decided before the plan that is durable
        if decision.action == "reject":
            without = {transcript for transcript, _ in decision.factors}
            kept = shaper.rows_after(scores, without)
            decision = decision if kept else dataclasses.replace(decision, action="mask")
            if kept:
                shaper.count_rejected(without)
                had = {row.group for row in rows} - {row.group for row in kept}
                for group in [group for group in groups if group.id in had]:
                    self._reject(group, f"statistical gate: {decision.breaches[0].figure}")
                    groups.remove(group)
                rows = kept
        if decision.action in ("downweight", "mask"):
            rows = tuple(
                msgspec.structs.replace(row, weight=row.weight * decision.factor((row.transcript, row.path)))
                for row in rows
            )
        self._recorder.record(decision.event(update, scores, shaper.difficulties), key=str(update), cause=cause)
        return self._weighed(update, rows, shaper, {group.id: group.task.difficulty for group in groups}), groups

    def _weighed(
        self, update: int, rows: tuple[BatchRow, ...], shaper: BatchShaper, difficulties: Mapping[GroupId, str]
    ) -> tuple[BatchRow, ...]:
        """Rows weighed by the acceptance of their stratum, where the algorithm says so."""
        ledger, weights = self._collector.ledger, self._settings.algorithm.stratum_weights
        ledger.accept(difficulties.values())
        if weights.kind == "none":
            return rows
        weighed = ledger.weigh(update, weights)
        self._recorder.record(weighed, key=str(update))
        return weighed_rows(rows, weighed, shaper.difficulties)

    async def _step(self, plan: BatchPlan) -> UpdateResult:
        """What came of the plan. One that was durable before is taken as it was planned, and so are weights that it made."""
        past, self._past = self._past, None
        if past is not None and past.plan is not None:
            plan = msgspec.msgpack.decode(self._recorder.read(past.plan), type=BatchPlan)
        if past is None or past.result is None:
            return await self._trainer.update(plan, self._settings.timeout_s)
        await self._trainer.replay(plan, past.result.weights, self._settings.timeout_s)
        return past.result

    async def _publish(self, result: UpdateResult, completed: int) -> Alarm | None:
        alarms: list[Alarm] = []

        def is_sound(step_kl: float | None) -> bool:
            alarm = self._guard.judge(result.metrics, step_kl)
            alarms.extend([] if alarm is None else [alarm])
            return alarm is None

        await self._publisher.publish(
            result.version, result.weights, result.weights_bytes, completed, is_sound=is_sound
        )
        if not alarms:
            return None
        alarm = alarms[0]
        paused = TrainingPaused(result.update, alarm.figure, alarm.value, alarm.bound)
        self._recorder.record(paused, key=str(result.update), cause=completed)
        return alarm

    def _plan(self, update: int, rows: tuple[BatchRow, ...]) -> BatchPlan:
        return BatchPlan(
            update=update,
            policy_id=self._settings.policy_id,
            base_version=self._versions.current,
            rows=rows,
            algorithm=self._settings.algorithm_version,
            seed_key=stream_key_bytes(self._settings.seed, "update", update),
        )

    def _record_plan(self, plan: BatchPlan, groups: list[Group], shaper: BatchShaper, cause: int) -> int:
        lags = [group.lag(plan.base_version) for group in groups]
        tokens = [sum(outcome.sampled_tokens for outcome in group.outcomes) for group in groups]
        mean_lag = sum(lag.mean * n for lag, n in zip(lags, tokens, strict=True)) / max(1, sum(tokens))
        row = sealed_row("plan", plan)
        return self._recorder.record(
            BatchPlanned(
                update=plan.update,
                plan=row.address,
                groups=tuple(group.id for group in groups),
                rows=len(plan.rows),
                oldest_lag=max(lag.oldest for lag in lags),
                mean_lag=mean_lag,
                max_span=max(lag.span for lag in lags),
                mean_reward=shaper.mean_reward(),
                removed=shaper.removed,
            ),
            key=str(plan.update),
            cause=cause,
            rows=(row,),
        )
