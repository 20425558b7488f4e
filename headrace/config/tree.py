"""The whole configuration, and the rules that hold between its sections."""

from headrace.config.algorithm import AlgorithmSection
from headrace.config.schedule import ScheduleSection
from headrace.config.sections import (
    AdapterSection,
    CheckpointSection,
    EnvironmentSection,
    EvaluationSection,
    GraderSection,
    PolicySection,
    RunSection,
    Section,
    TimeoutSection,
)
from headrace.errors import ConfigError
from headrace.records.task import Budget


class Config(Section, frozen=True):
    """The whole tree; see the sections.

    Attributes:
        run: what and how long.
        tasks: where tasks come from.
        budget: what one episode may spend.
        harness: how tasks become tokens.
        policy: how version 0 comes about.
        inference: the engine.
        environment: where tools act.
        grader: who verifies.
        algorithm: the learning signal.
        trainer: the trainer's own options.
        schedule: admission, order, staleness.
        evaluation: held-out rounds.
        checkpoint: how much a resumed run has to compute again, and what becomes of what was in flight.
        timeouts: deadlines.
    """

    run: RunSection = RunSection()
    tasks: AdapterSection = AdapterSection(kind="reasoning_gym")
    budget: Budget = Budget()
    harness: AdapterSection = AdapterSection(kind="chatml")
    policy: PolicySection = PolicySection()
    inference: AdapterSection = AdapterSection(kind="embedded")
    environment: EnvironmentSection = EnvironmentSection(kind="sandbox")
    grader: GraderSection = GraderSection(kind="reasoning_gym")
    algorithm: AlgorithmSection = AlgorithmSection()
    trainer: AdapterSection = AdapterSection(kind="torch")
    schedule: ScheduleSection = ScheduleSection()
    evaluation: EvaluationSection = EvaluationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    timeouts: TimeoutSection = TimeoutSection()

    def check(self) -> None:
        """Raises ConfigError for values that contradict each other or lie out of bounds."""
        schedule = self.schedule
        bounds: tuple[tuple[str, float, float], ...] = (
            ("run.updates", self.run.updates, 1),
            ("schedule.batch_groups", schedule.batch_groups, 1),
            ("schedule.group_size", schedule.group_size, 1),
            ("schedule.credit_batches", schedule.first_credit_batches, 0),
            ("schedule.start_credit_batches", schedule.start_credit_batches, 1),
            ("schedule.max_credit_batches", schedule.max_credit_batches, schedule.start_credit_batches),
            ("schedule.max_lag", schedule.max_lag, 0),
            ("schedule.infra_attempts", schedule.infra_attempts, 1),
            ("schedule.grade_tries", schedule.grade_tries, 1),
            ("evaluation.every_updates", self.evaluation.every_updates, 0),
            ("checkpoint.every_updates", self.checkpoint.every_updates, 0),
            ("checkpoint.keep_last", self.checkpoint.keep_last, 1),
            ("checkpoint.keep_every", self.checkpoint.keep_every, 0),
        )
        for name, value, least in bounds:
            if value < least:
                raise ConfigError(f"{name} is {value}; it must be at least {least}")
        schedule.check(self.run.deterministic)
        _check_batches(self)
        self.algorithm.check()
        if schedule.group_size == 1 and self.algorithm.advantage not in ("reinforce_pp", "gae"):
            raise ConfigError(
                f"schedule.group_size is 1 with algorithm.advantage {self.algorithm.advantage}; a group baseline needs at "
                "least 2 members, reinforce_pp and gae need none"
            )
        if self.environment.calls_per_s is not None and not self.environment.calls_per_s > 0:
            raise ConfigError(
                f"environment.calls_per_s is {self.environment.calls_per_s}; it must be positive, or absent for no bound"
            )
        for name in TimeoutSection.__struct_fields__:
            if not getattr(self.timeouts, name) > 0:
                raise ConfigError(f"timeouts.{name} is {getattr(self.timeouts, name)}; it must be positive")


def _check_batches(config: Config) -> None:
    """What fills a batch beside the groups that its order chooses."""
    schedule, replay = config.schedule, config.algorithm.replay
    least = 1 / (schedule.batch_groups + 1)
    if replay.kind != "none" and replay.share < least - 1e-9:
        raise ConfigError(
            f"algorithm.replay.share is {replay.share} with schedule.batch_groups {schedule.batch_groups}: that is no whole "
            f"group; it must be at least {least:.3g}"
        )
    if config.algorithm.gate.on_reject != "replace":
        return
    if config.algorithm.gate.action != "reject":
        raise ConfigError(
            f"algorithm.gate.on_reject is replace with action {config.algorithm.gate.action}, which rejects nothing; set "
            'action = "reject"'
        )
    if schedule.mode == "sync" or schedule.order == "ordinal" or schedule.staleness == "window":
        raise ConfigError(
            f"algorithm.gate.on_reject is replace with schedule.mode {schedule.mode}, order {schedule.order} and staleness "
            f'{schedule.staleness}: no group may train before its turn there; set on_reject = "smaller"'
        )
