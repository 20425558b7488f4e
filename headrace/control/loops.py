"""The loops of one run, wired on its ports, begun or gone on with, and awaited.

Invariant: one wiring serves every mode and every runtime; what differs between runs is a value of the configuration, a port,
or what the journal holds already.
"""

import asyncio

from headrace.config import Config
from headrace.control.breaking import Breakers
from headrace.control.capacity import CapacityControl
from headrace.control.checkpointing import Checkpointer, CheckpointSettings
from headrace.control.collecting import Collector
from headrace.control.context import Ports, RunContext, RunFacts
from headrace.control.episode import EpisodeDriver, EpisodePorts, EpisodeSettings
from headrace.control.evaluating import EvaluationSettings, Evaluator
from headrace.control.grading import Grading
from headrace.control.leases import CountingLeases
from headrace.control.member import MemberRunner
from headrace.control.pacing import ServiceTurns
from headrace.control.past import RunPast
from headrace.control.publishing import WORKER, Publisher, PublishSettings
from headrace.control.recorder import WorkerClock
from headrace.control.resuming import restore_trainer
from headrace.control.sealing import Sealer
from headrace.control.selecting import SelectionRules
from headrace.control.sharing import SharedDevices
from headrace.control.source import SourceLoop
from headrace.control.updating import UpdateLoop, UpdateSettings
from headrace.ports import Leases
from headrace.records.checkpoint import RunResumed
from headrace.records.ids import PolicyId
from headrace.records.reward import RewardRule
from headrace.scheduling.admission import Admission
from headrace.scheduling.breaker import BreakerRule
from headrace.scheduling.ordering import BatchOrder
from headrace.scheduling.quotas import Quotas
from headrace.scheduling.replay import ReplayRule
from headrace.scheduling.retention import Retention
from headrace.scheduling.retry import RetryRule
from headrace.scheduling.staleness import StalenessRule


class Loops:
    """The loops of one run, wired on a context whose task group owns every task of theirs."""

    def __init__(
        self,
        config: Config,
        ports: Ports,
        facts: RunFacts,
        context: RunContext,
        *,
        past: RunPast,
        capacity: CapacityControl,
    ) -> None:
        schedule, policy_id = config.schedule, PolicyId(config.policy.policy_id)
        self._config = config
        self._ports = ports
        self._context = context
        self._facts = facts
        self._past = past
        self._capacity = capacity
        self._evaluations: list[asyncio.Task[None]] = []
        leases = CountingLeases(past.lease_token)
        engine_clock = WorkerClock(context.recorder, WORKER)
        rule = BreakerRule(give_up_s=config.timeouts.broken_environment_s)
        breakers = Breakers(rule, context.recorder, context.changed, config.run.seed)
        runner = _member_runner(config, ports, context, leases=leases, engine_clock=engine_clock, breakers=breakers)
        self._collector = Collector(
            runner,
            context,
            group_size=schedule.group_size,
            max_outstanding=schedule.max_outstanding,
            temperature=schedule.temperature,
        )
        admission = Admission(config.run.updates, schedule.batch_groups)
        self._source = SourceLoop(ports.tasks, self._collector, context, admission, is_held=breakers.hold_reason)
        self._source.limit(capacity.max_outstanding)
        self._publisher = Publisher(
            ports.inference,
            ports.trainer,
            context,
            settings=PublishSettings(
                policy_id,
                facts.canary,
                config.policy.canary_tolerance,
                config.timeouts.publish_s,
                drains_pinned=facts.holds_one_version,
            ),
            clock=WorkerClock(context.recorder, "trainer"),
        )
        self._checkpointer = Checkpointer(
            ports.trainer, leases, context, settings=_checkpoint_settings(config), clock=self._publisher.clock
        )
        self._updates = UpdateLoop(
            self._collector,
            self._source,
            ports.trainer,
            self._publisher,
            checkpointer=self._checkpointer,
            devices=_shared_devices(config, ports, context, engine_clock),
            context=context,
            settings=_update_settings(config),
        )
        evaluation = EvaluationSettings(
            policy_id,
            config.evaluation.every_updates,
            config.evaluation.temperatures,
            config.evaluation.success_bound,
            config.run.updates,
        )
        self._evaluator = Evaluator(runner, ports.tasks.held_out(), context, evaluation)

    async def run(self) -> str:
        """Why the run ended."""
        if self._past.weights:
            await self._resume(self._past)
        else:
            await self._publisher.publish(0, self._facts.initial.weights, self._facts.initial_bytes, cause=0)
            self._evaluate_if_due(0)
        admission = self._context.spawn(self._source.run(), "admission")
        reason = await self._updates.run(self._on_version)
        admission.cancel()
        self._collector.abandon_all("run ended")
        await asyncio.gather(*self._evaluations)
        return reason

    def _on_version(self, version: int) -> None:
        """Called at a version bump, before anything that the bump made possible happens."""
        recorder = self._context.recorder
        decided = self._capacity.decide(version, round(recorder.elapsed_s * 1e9), len(self._collector.ready()))
        if decided is not None:
            recorder.record(decided, key=str(version))
            self._source.limit(decided.max_outstanding)
        self._evaluate_if_due(version)

    def _evaluate_if_due(self, version: int) -> None:
        """Starts a held-out round and pins its version before anything newer can be published."""
        if self._evaluator.is_due(version):
            self._context.versions.pin(version)
            self._evaluate(version)

    def _evaluate(self, version: int) -> None:
        self._evaluations.append(self._context.spawn(self._evaluator.evaluate(version), f"evaluation/{version}"))

    async def _resume(self, past: RunPast) -> None:
        """Everything stands where the journal ends: first the trainer, then the engine, then what runs on them."""
        recorder, versions = self._context.recorder, self._context.versions
        begin_s = recorder.elapsed_s
        in_flight = [attempt for group in past.groups.values() for attempt in group.running()]
        goes_on = self._config.checkpoint.in_flight == "resume" and self._ports.environment.effect.is_resumable
        open_groups, ready_groups = len(past.groups), len(past.closing)
        versions.restore(past.weights)
        lost_tasks = self._source.restore(past)
        self._checkpointer.restore(past)
        self._updates.restore(past)
        pinned = self._evaluator.restore(past)
        for version in pinned:
            versions.pin(version)
        trainer = await restore_trainer(self._ports.trainer, past, recorder.read, self._config.timeouts.update_s)
        await self._publisher.serve_again(past.weights, pinned)
        recorder.record(
            RunResumed(
                last_seq=past.last_seq,
                version=past.version,
                checkpoint=trainer.checkpoint,
                replayed=trainer.replayed,
                identical=trainer.identical,
                open_groups=open_groups,
                ready_groups=ready_groups,
                resumed=len(in_flight) if goes_on else 0,
                reissued=0 if goes_on else len(in_flight),
                restore_s=recorder.elapsed_s - begin_s,
            ),
            key=f"{self._facts.run_id}#{self._ports.journal.epoch}",
            rows=lost_tasks,
        )
        for task, group in self._collector.restore(past):
            self._source.draw_again(task, group)
        for version in pinned:
            self._evaluate(version)


def _checkpoint_settings(config: Config) -> CheckpointSettings:
    checkpoint = config.checkpoint
    return CheckpointSettings(
        checkpoint.every_updates,
        checkpoint.in_flight,
        Retention(checkpoint.keep_last, checkpoint.keep_every),
        config.timeouts.update_s,
    )


def _shared_devices(config: Config, ports: Ports, context: RunContext, clock: WorkerClock) -> SharedDevices | None:
    if config.schedule.mode != "colocate_async":
        return None
    return SharedDevices(ports.inference, context.recorder, clock, config.timeouts.publish_s)


def _member_runner(
    config: Config,
    ports: Ports,
    context: RunContext,
    *,
    leases: Leases,
    engine_clock: WorkerClock,
    breakers: Breakers,
) -> MemberRunner:
    schedule, recorder = config.schedule, context.recorder
    retry = RetryRule(schedule.infra_attempts, schedule.grade_tries)
    driver = EpisodeDriver(
        EpisodePorts(
            ports.harness,
            ports.inference,
            ports.environment,
            engine_clock,
            WorkerClock(recorder, "environment"),
            ServiceTurns(config.environment.calls_per_s),
        ),
        recorder,
        Sealer(recorder, ports.harness, ports.environment.version, context.versions.weights),
        EpisodeSettings(PolicyId(config.policy.policy_id), config.timeouts, not config.run.deterministic),
    )
    grading = Grading(
        ports.grader, recorder, WorkerClock(recorder, "grader"), retry=retry, timeout_s=config.timeouts.grade_s
    )
    return MemberRunner(
        driver,
        grading,
        leases,
        retry=retry,
        reward_rule=RewardRule(config.algorithm.reward_rule),
        seed=config.run.seed,
        in_flight=config.checkpoint.in_flight,
        breakers=breakers,
    )


def _update_settings(config: Config) -> UpdateSettings:
    schedule = config.schedule
    max_lag = schedule.max_lag if schedule.staleness == "wait" else None
    overtaking = None
    if schedule.staleness == "window":
        overtaking = (schedule.max_lag - schedule.most_credit_batches) * schedule.batch_groups
    return UpdateSettings(
        updates=config.run.updates,
        seed=config.run.seed,
        policy_id=PolicyId(config.policy.policy_id),
        algorithm=config.algorithm,
        rules=SelectionRules(
            BatchOrder(schedule.order, schedule.batch_groups, max_lag, overtaking),
            StalenessRule(schedule.staleness, schedule.max_lag),
            Quotas(schedule.quotas),
            ReplayRule(config.algorithm.replay, schedule.batch_groups),
        ),
        timeout_s=config.timeouts.update_s,
    )
