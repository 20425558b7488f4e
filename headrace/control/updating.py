"""The update loop: takes batches, plans, trains, publishes.

Invariant: the plan is durable before the first gradient; a batch is laid out by (ordinal, member, path), never by arrival;
slots come back at the version bump or with a recorded rejection. A batch without any row makes no plan, no gradient and no
version: its groups leave with a record, and the same update is tried again. An update that the guard stops is never served.

* consumes: batches.
* waits for: the next one, its turn on shared devices, the trainer, publication.
* unblocked by: a batch that is full, or that none can come any more.
* produces: `BatchSelected`, `BatchPlanned`, `UpdateCompleted`, and a new version or `TrainingPaused`.
"""

import contextlib
import dataclasses
from collections.abc import Callable

import msgspec

from headrace.config import AlgorithmSection
from headrace.control.checkpointing import Checkpointer
from headrace.control.collecting import Collector
from headrace.control.context import RunContext
from headrace.control.guarding import CollapseGuard
from headrace.control.judging import BatchJudge
from headrace.control.past import RunPast, UpdatePast
from headrace.control.publishing import Publisher
from headrace.control.recorder import sealed_row
from headrace.control.scoring import stratum_updates
from headrace.control.selecting import Batch, BatchSelector, SelectionRules
from headrace.control.sharing import SharedDevices
from headrace.control.source import SourceLoop
from headrace.errors import InvariantViolated
from headrace.ports import Trainer
from headrace.records.batch import BatchPlan, BatchPlanned, BatchRow
from headrace.records.gate import Breach
from headrace.records.ids import Address, PolicyId
from headrace.records.provenance import address_of, canonical_bytes
from headrace.records.streams import stream_key_bytes
from headrace.records.update import TrainingPaused, UpdateCompleted, UpdateResult


@dataclasses.dataclass(frozen=True)
class UpdateSettings:
    """What the update loop goes by.

    Attributes:
        updates: number of updates of the run.
        seed: root of every stream.
        policy_id: which policy.
        algorithm: the learning signal.
        rules: which groups make a batch.
        timeout_s: deadline of scoring and of an update.
    """

    updates: int
    seed: int
    policy_id: PolicyId
    algorithm: AlgorithmSection
    rules: SelectionRules
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
        self._trainer = trainer
        self._publisher = publisher
        self._checkpointer = checkpointer
        self._devices = devices
        self._context = context
        self._recorder = context.recorder
        self._versions = context.versions
        self._settings = settings
        self._guard = CollapseGuard(settings.algorithm.guard)
        algorithm = settings.algorithm
        self._selector = BatchSelector(collector, source, context, algorithm=algorithm, rules=settings.rules)
        self._judge = BatchJudge(
            collector, self._selector, trainer, context, algorithm=algorithm, timeout_s=settings.timeout_s
        )
        self._past: UpdatePast | None = None

    def restore(self, past: RunPast) -> None:
        """Goes on with the update that the run's earlier processes left without a version."""
        self._past = past.update
        self._selector.restore(past)
        self._guard.recall(past.guard)

    async def run(self, on_version: Callable[[int], None]) -> str:
        """Why it ended: `completed`, `exhausted` when tasks ran out before the updates did, or `paused: …` by the guard.

        Args:
            on_version: called with each new version once its groups gave their slots back.
        """
        for update in range(self._versions.current + 1, self._settings.updates + 1):
            batch = self._selector.again(self._past) if self._past else await self._selector.next_batch(update)
            if batch is None:
                return "exhausted"
            async with contextlib.nullcontext() if self._devices is None else self._devices.training(update):
                alarm = await self._update(update, batch)
                if alarm is None:
                    on_version(self._versions.current)
                    self._checkpointer.begin(update, self._collector.frontier, self._guard.state)
                if self._devices is not None:
                    await self._checkpointer.settle()  # it is the trainer's work, so it belongs to the trainer's turn
            if alarm is not None:
                return f"paused: {alarm.figure} {alarm.value:.3g} in update {update}, {alarm.bound:.3g} is allowed"
        await self._checkpointer.settle()
        return "completed"

    async def _update(self, update: int, batch: Batch) -> Breach | None:
        """The alarm that kept the new version from being served, if any."""
        recorder = self._recorder
        await self._checkpointer.settle()
        selected = recorder.record(batch.selected(update), key=str(update))
        await recorder.durable(selected)
        base_version = self._versions.current
        self._publisher.clock.enter(f"update {update}")
        try:
            plan = self._plan(update, await self._judge.rows(update, batch, self._past, selected))
            planned = self._record_plan(plan, batch, selected)
            await recorder.durable(planned)
            result = await self._step(plan)
            strata = stratum_updates(result.rows, batch.shaper.difficulties)
            kept = msgspec.structs.replace(result, rows=())
            completed = recorder.record(UpdateCompleted(kept, strata), key=str(update), cause=planned)
        finally:
            self._publisher.clock.leave()
        if result.version != base_version + 1:
            raise InvariantViolated(f"update {update} made version {result.version} of {base_version}")
        alarm = await self._publish(result, completed)
        if alarm is None:
            self._selector.consume(batch)
        return alarm

    async def _step(self, plan: BatchPlan) -> UpdateResult:
        """What came of the plan. One that was durable before is taken as it was planned, and so are weights that it made."""
        past, self._past = self._past, None
        if past is not None and past.plan is not None:
            plan = msgspec.msgpack.decode(self._recorder.read(past.plan), type=BatchPlan)
        if past is None or past.result is None:
            return await self._trainer.update(plan, self._settings.timeout_s)
        await self._trainer.replay(plan, past.result.weights, self._settings.timeout_s)
        return past.result

    async def _publish(self, result: UpdateResult, completed: int) -> Breach | None:
        alarms: list[Breach] = []

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

    def _record_plan(self, plan: BatchPlan, batch: Batch, cause: int) -> int:
        trained = {row.group for row in plan.rows}
        replayed = tuple(item for item in batch.choice.replayed if item.group in trained)
        groups = [*batch.groups, *(group for group in batch.again if group.id in trained)]
        lags = [group.lag(plan.base_version) for group in groups]
        tokens = [sum(outcome.sampled_tokens for outcome in group.outcomes) for group in groups]
        mean_lag = sum(lag.mean * n for lag, n in zip(lags, tokens, strict=True)) / max(1, sum(tokens))
        row = sealed_row("plan", plan)
        return self._recorder.record(
            BatchPlanned(
                update=plan.update,
                plan=row.address,
                groups=tuple(group.id for group in batch.groups),
                rows=len(plan.rows),
                oldest_lag=max(lag.oldest for lag in lags),
                mean_lag=mean_lag,
                max_span=max(lag.span for lag in lags),
                mean_reward=batch.shaper.mean_reward(),
                removed=batch.shaper.removed,
                replayed=replayed,
            ),
            key=str(plan.update),
            cause=cause,
            rows=(row,),
        )
