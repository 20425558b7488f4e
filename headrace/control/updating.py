"""The update loop: takes ready groups, plans, trains, publishes.

Invariant: the plan is durable before the first gradient; a batch is laid out by (ordinal, member, path), never by arrival;
slots come back at the version bump and nowhere else.

* consumes: ready groups.
* waits for: enough of them, the trainer, publication.
* unblocked by: a group becoming ready, or the source running dry.
* produces: `BatchSelected`, `BatchScored`, `BatchPlanned`, `UpdateCompleted`, a new version.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from headrace.algorithms.advantages import group_advantages
from headrace.algorithms.diagnostics import effective_sample_size, mean_weight
from headrace.config import AlgorithmSection
from headrace.control.collecting import Collector, Group
from headrace.control.context import RunContext
from headrace.control.publishing import Publisher
from headrace.control.recorder import sealed_row
from headrace.control.source import SourceLoop
from headrace.errors import InvariantViolated
from headrace.ports import Trainer
from headrace.records.batch import BatchPlan, BatchPlanned, BatchRow, BatchSelected
from headrace.records.events import OrdinalState
from headrace.records.ids import Address, PolicyId
from headrace.records.provenance import address_of, canonical_bytes
from headrace.records.streams import stream_key
from headrace.records.update import BatchScored, RowScore, UpdateCompleted
from headrace.scheduling.ordering import BatchOrder
from headrace.scheduling.staleness import StalenessRule


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
        timeout_s: deadline of scoring and of an update.
    """

    updates: int
    seed: int
    policy_id: PolicyId
    algorithm: AlgorithmSection
    order: BatchOrder
    staleness: StalenessRule
    timeout_s: float

    @property
    def algorithm_version(self) -> Address:
        """Content version of the algorithm's configuration."""
        return address_of(canonical_bytes(self.algorithm))


class UpdateLoop:
    """Turns ready groups into versions."""

    def __init__(
        self,
        collector: Collector,
        source: SourceLoop,
        trainer: Trainer,
        publisher: Publisher,
        *,
        context: RunContext,
        settings: UpdateSettings,
    ) -> None:
        self._collector = collector
        self._source = source
        self._trainer = trainer
        self._publisher = publisher
        self._context = context
        self._recorder = context.recorder
        self._versions = context.versions
        self._settings = settings

    async def run(self, on_version: Callable[[int], None]) -> str:
        """Why it ended: `completed`, or `exhausted` when tasks ran out before the updates did.

        Args:
            on_version: called with each new version once its groups gave their slots back.
        """
        for update in range(1, self._settings.updates + 1):
            groups = await self._take()
            if not groups:
                return "exhausted"
            await self._update(update, groups)
            on_version(self._versions.current)
        return "completed"

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
        version = self._versions.current
        for group in self._collector.ready():
            reason = self._settings.staleness.drop_reason(group.lag(version))
            if reason is not None:
                self._collector.reject(group, OrdinalState.FILTERED, reason)
        ordinals = self._settings.order.choose(
            self._collector.open_groups(), version, is_last=self._source.is_exhausted
        )
        return [self._collector.group(ordinal) for ordinal in ordinals or ()]

    async def _update(self, update: int, groups: list[Group]) -> None:
        recorder, settings = self._recorder, self._settings
        ids = tuple(group.id for group in groups)
        selected = recorder.record(BatchSelected(update, ids), key=str(update))
        await recorder.durable(selected)
        plan = self._plan(update, groups)
        self._publisher.clock.enter(f"update {update}")
        try:
            scores = await self._trainer.score(plan.rows, plan.base_version, settings.timeout_s)
            recorder.record(_summary(update, plan, scores), key=str(update), cause=selected)
            planned = self._record_plan(plan, groups, selected)
            await recorder.durable(planned)
            result = await self._trainer.update(plan, settings.timeout_s)
            completed = recorder.record(UpdateCompleted(result), key=str(update), cause=planned)
        finally:
            self._publisher.clock.leave()
        if result.version != plan.base_version + 1:
            raise InvariantViolated(f"update {update} made version {result.version} of {plan.base_version}")
        await self._publisher.publish(result.version, result.weights, result.weights_bytes, completed)
        self._collector.consume(tuple(group.id.ordinal for group in groups))

    def _plan(self, update: int, groups: list[Group]) -> BatchPlan:
        rewards = [[outcome.result.reward for outcome in group.outcomes] for group in groups]
        advantages = group_advantages(self._settings.algorithm.advantage, rewards)
        rows = [row for group, of_group in zip(groups, advantages, strict=True) for row in _rows_of(group, of_group)]
        return BatchPlan(
            update=update,
            policy_id=self._settings.policy_id,
            base_version=self._versions.current,
            rows=tuple(rows),
            algorithm=self._settings.algorithm_version,
            seed_key=stream_key(self._settings.seed, "update", update).to_bytes(16, "little"),
        )

    def _record_plan(self, plan: BatchPlan, groups: list[Group], cause: int) -> int:
        lags = [group.lag(plan.base_version) for group in groups]
        tokens = [sum(n for o in group.outcomes for _, n in o.sampled.tokens) for group in groups]
        mean_lag = sum(lag.mean * n for lag, n in zip(lags, tokens, strict=True)) / max(1, sum(tokens))
        rewards = [o.result.reward for group in groups for o in group.outcomes if o.result.reward is not None]
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
                mean_reward=sum(rewards) / len(rewards),
            ),
            key=str(plan.update),
            cause=cause,
            rows=(row,),
        )


def _rows_of(group: Group, advantages: list[float | None]) -> list[BatchRow]:
    """Rows of the members that have a reward and an advantage; members without one are in no statistic."""
    rows: list[BatchRow] = []
    for member, (outcome, advantage) in enumerate(zip(group.outcomes, advantages, strict=True)):
        result = outcome.result
        if advantage is None or result.reward is None or result.transcript is None:
            continue
        rows.extend(
            BatchRow(
                transcript=result.transcript,
                path=path,
                group=group.id,
                member=member,
                use=1,
                reward=result.reward,
                advantage=advantage,
                weight=1.0,
            )
            for path in outcome.paths
        )
    return rows


def _summary(update: int, plan: BatchPlan, scores: list[RowScore]) -> BatchScored:
    """Trainer against engine over the batch; scores are joined to rows by (transcript, path)."""
    by_row = {(score.transcript, score.path): score for score in scores}
    found = [by_row[row.transcript, row.path] for row in plan.rows]
    log_weights_B = np.array([score.log_ratio_sum for score in found])
    tokens = sum(score.num_tokens for score in found)
    fresh = [score.fresh_abs_max for score in found if score.fresh_abs_max is not None]
    return BatchScored(
        update=update,
        rows=len(found),
        mismatch=max(fresh, default=None),
        log_ratio_abs_max=max((score.log_ratio_abs_max for score in found), default=0.0),
        ess_fraction=effective_sample_size(log_weights_B).fraction,
        mean_weight=mean_weight(log_weights_B).mean,
        kl=-float(log_weights_B.sum()) / max(1, tokens),
    )
