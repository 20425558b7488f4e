"""The configuration: one frozen tree from one TOML file and dotted overrides. An unknown key is an error.

Every section is checked where it is owned. An adapter owns its `options`, chosen by `kind`; everything else is here and
stays below forty fields.
"""

import re
import tomllib
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from headrace.errors import ConfigError
from headrace.records.checkpoint import InFlight
from headrace.records.experience import Replay, check_replay
from headrace.records.gate import Gate
from headrace.records.learning import (
    USES_CLIP,
    AdvantageName,
    AggregationName,
    Anchor,
    ClipLoss,
    Correction,
    Critic,
    EstimatorOptions,
    Filters,
    Guard,
    Kl,
    Loss,
    check_corrections,
    check_filters,
    check_kl,
    tag_of,
)
from headrace.records.task import Budget
from headrace.records.weighing import StratumWeights

Mode = Literal["sync", "colocate_async", "separate_async"]
StalenessPolicy = Literal["pace", "wait", "window", "drop", "cancel", "requeue"]
T = TypeVar("T")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections: frozen, keyword-only, no unknown keys."""


class RunSection(Section, frozen=True):
    """Attributes:
    seed: root of every random stream.
    updates: number of policy updates, >= 1.
    deterministic: order batches by ordinal alone and end no episode by the wall clock; bit-exact proofs hold in this mode.
    """

    seed: int = 7
    updates: int = 100
    deterministic: bool = False


class AdapterSection(Section, frozen=True):
    """Attributes:
    kind: which adapter.
    options: the adapter's own options; see `headrace describe KIND`.
    """

    kind: str
    options: dict[str, Any] = {}


class GraderSection(AdapterSection, frozen=True):
    """Attributes:
    placement: where the grader's process stands: `service` by itself, `environment` beside the tools, `rollout` beside
        the control plane. No placement changes a verdict; see docs/grading.md for what each keeps apart.
    """

    placement: Literal["service", "environment", "rollout"] = "service"


class PolicySection(Section, frozen=True):
    """Attributes:
    policy_id: name under which versions are published.
    kind: how version 0 comes about: `warm_start` or `folder`.
    canary_tolerance: largest absolute log-prob difference between engine and trainer on the canary sequences; above it
        a version is not published.
    options: the builder's own options.
    """

    policy_id: str = "policy"
    kind: str = "warm_start"
    canary_tolerance: float = 1e-3
    options: dict[str, Any] = {}


class EvaluationSection(Section, frozen=True):
    """Attributes:
    every_updates: a held-out round after every so many updates, and at the start and the end; 0 for none.
    temperatures: one round for each.
    success_bound: a reward at or above it counts as success.
    """

    every_updates: int = 20
    temperatures: tuple[float, ...] = (1.0, 0.2)
    success_bound: float = 1.0


class AlgorithmSection(Section, frozen=True):
    """Attributes:
    advantage: from the rewards of a group to advantages; `mean` is r - mean, `grpo` divides it by the deviation.
    clip_low: lower clip distance of the probability ratio.
    clip_high: upper clip distance.
    aggregation: how token losses become one number.
    aggregation_tokens: the constant length of `seq_mean_token_sum_norm`; 0 with every other aggregation.
    learning_rate: of AdamW.
    max_grad_norm: gradient norm bound.
    reward_rule: how score components become a reward.
    steps: optimizer steps of one plan, each on its own share of the groups.
    estimator: numbers of the advantage.
    loss: the policy loss.
    anchor: what the ratio is taken against: `behavior`, the recorded behaviour of each token; `old`, the policy before the
        plan's first step; `interpolated`, a mixture of the two one version back. The latter two need a correction for
        the difference to the behaviour.
    corrections: weights and masks for data of another version or engine.
    kl: distance to a reference model.
    filters: what never trains, or trains with another reward.
    critic: the value model of `gae`.
    guard: when an update pauses the run.
    gate: bounds on the raw sequence weights of a batch, and what becomes of rows beyond them.
    stratum_weights: how much rows count by the difficulty of their task.
    replay: which groups that trained before train again; needs a correction that weighs by the ratio to the behaviour.
    """

    advantage: AdvantageName = "mean"
    clip_low: float = 0.2
    clip_high: float = 0.28
    aggregation: AggregationName = "token_mean"
    aggregation_tokens: int = 0
    learning_rate: float = 3e-4
    max_grad_norm: float = 1.0
    reward_rule: Literal["mean", "product", "first"] = "mean"
    steps: int = 1
    estimator: EstimatorOptions = EstimatorOptions()
    loss: Loss = ClipLoss()
    anchor: Anchor = "behavior"
    corrections: tuple[Correction, ...] = ()
    kl: Kl = Kl()
    filters: Filters = Filters()
    critic: Critic = Critic()
    guard: Guard = Guard()
    gate: Gate = Gate()
    stratum_weights: StratumWeights = StratumWeights()
    replay: Replay = Replay()

    def check(self) -> None:
        """Raises ConfigError for choices that contradict each other or numbers out of bounds."""
        if not 0.0 < self.learning_rate < 1.0:
            raise ConfigError(f"algorithm.learning_rate is {self.learning_rate}; it must lie in (0, 1)")
        if self.clip_low < 0 or self.clip_high < 0:
            raise ConfigError(
                f"algorithm.clip_low and clip_high are {self.clip_low}, {self.clip_high}; distances are >= 0"
            )
        default = AlgorithmSection()
        is_clip_set = (self.clip_low, self.clip_high) != (default.clip_low, default.clip_high)
        if is_clip_set and not isinstance(self.loss, USES_CLIP):
            raise ConfigError(
                f"algorithm.clip_low and clip_high are set, but the loss {tag_of(self.loss)} reads neither"
            )
        if (self.aggregation == "seq_mean_token_sum_norm") != (self.aggregation_tokens > 0):
            raise ConfigError(
                f"algorithm.aggregation_tokens is {self.aggregation_tokens} with {self.aggregation}; "
                "seq_mean_token_sum_norm needs at least 1, every other aggregation 0"
            )
        if (self.advantage == "gdpo") != bool(self.estimator.component_weights):
            raise ConfigError(
                f"algorithm.estimator.component_weights names {sorted(self.estimator.component_weights)} with advantage "
                f"{self.advantage}; gdpo needs at least one component, every other advantage none"
            )
        if self.advantage != "gae" and self.critic != Critic():
            raise ConfigError(f"algorithm.critic is set, but advantage {self.advantage} has no critic; gae has one")
        if self.steps < 1:
            raise ConfigError(f"algorithm.steps is {self.steps}; it must be at least 1")
        if not self.stratum_weights.cap >= 1:
            raise ConfigError(f"algorithm.stratum_weights.cap is {self.stratum_weights.cap}; it must be at least 1")
        check_corrections(self.corrections, self.anchor)
        check_replay(self.replay, self.corrections, self.kl, self.advantage)
        check_kl(self.kl)
        check_filters(self.filters)


class ScheduleSection(Section, frozen=True):
    """Attributes:
    mode: `sync` waits for each version's own groups; `colocate_async` lets generation and
        training take turns on the same devices: what runs stands still while the trainer computes and goes on under the
        new version; `separate_async` generates while the trainer computes, and new weights go live at a token boundary.
    batch_groups: groups of one update.
    group_size: members of a group.
    credit_batches: groups are admitted while outstanding < (credit_batches + 1) * batch_groups: 0 in `sync`, at least 1 in
        the asynchronous modes. `auto` is 0 in `sync`; elsewhere it finds the knee while the run goes on.
    start_credit_batches: where `auto` begins.
    max_credit_batches: where `auto` ends, and with it the bound on outstanding groups.
    staleness: what keeps lag in bounds, see docs/staleness.md. `pace` only admits by credit and reports; `wait` holds an
        update back until every group that could exceed `max_lag` is in it; `window` trains finished groups in order and
        overtakes an unfinished one by so many at most that none exceeds `max_lag`. These three end no work. `drop` rejects a
        finished group beyond `max_lag`, `cancel` a running one as well, `requeue` draws the task of a rejected one again.
    max_lag: bound of every policy but `pace`, in updates.
    order: `ready` takes finished groups by completion, `ordinal` strictly by position in the source.
    quotas: least share of each batch by difficulty, held while the stratum has open groups; needs order `ready`, and no rule
        of its own on who is due.
    infra_attempts: attempts of one member after infrastructure failures, the first included.
    grade_tries: gradings of one transcript after grader failures, the first included.
    temperature: sampling temperature of training episodes.
    """

    mode: Mode = "sync"
    batch_groups: int = 16
    group_size: int = 8
    credit_batches: int | Literal["auto"] = "auto"
    start_credit_batches: int = 1
    max_credit_batches: int = 16
    staleness: StalenessPolicy = "pace"
    max_lag: int = 4
    order: Literal["ready", "ordinal"] = "ready"
    quotas: dict[str, float] = {}
    infra_attempts: int = 3
    grade_tries: int = 3
    temperature: float = 1.0

    @property
    def is_credit_found(self) -> bool:
        """Whether the run finds its credit itself."""
        return self.credit_batches == "auto" and self.mode != "sync"

    @property
    def first_credit_batches(self) -> int:
        """The credit that a run begins with."""
        if self.credit_batches != "auto":
            return self.credit_batches
        return min(self.start_credit_batches, self.most_credit_batches) if self.is_credit_found else 0

    @property
    def most_credit_batches(self) -> int:
        """The largest credit that a run can come to."""
        if self.credit_batches != "auto":
            return self.credit_batches
        if not self.is_credit_found:
            return 0
        return min(self.max_credit_batches, self.max_lag) if self.keeps_every_group_in_time else self.max_credit_batches

    @property
    def keeps_every_group_in_time(self) -> bool:
        """Whether the policy bounds lag without ending any work; the credit then may not exceed the bound."""
        return self.staleness in ("wait", "window")

    @property
    def max_outstanding(self) -> int:
        """Largest number of groups that hold a slot."""
        return (self.most_credit_batches + 1) * self.batch_groups


class CheckpointSection(Section, frozen=True):
    """Attributes:
    every_updates: the trainer's state goes to disk after every so many updates, while episodes go on; 0 for never. A run
        resumes without any as well: it then computes all of its updates again.
    keep_last: newest checkpoints that stay, at least 1.
    keep_every: checkpoints after every so many updates stay for good; 0 keeps none beyond the newest.
    in_flight: what becomes of attempts that run when the process ends: `resume` goes on with the same attempt where the
        environment is pure or keeps revisions, `reissue` starts the member again, as is the only way in all others.
    """

    every_updates: int = 10
    keep_last: int = 2
    keep_every: int = 0
    in_flight: InFlight = "resume"


class TimeoutSection(Section, frozen=True):
    """Deadlines in seconds; no await on a port goes without one.

    Attributes:
        generate_s: one policy turn.
        tool_s: one action.
        environment_s: opening, artifact, claim.
        grade_s: one grading.
        update_s: scoring or update of a batch.
        publish_s: one phase of publication.
        broken_environment_s: an environment whose attempts fail for so long, tried again one by one, ends the run.
    """

    generate_s: float = 120.0
    tool_s: float = 10.0
    environment_s: float = 30.0
    grade_s: float = 30.0
    update_s: float = 300.0
    publish_s: float = 60.0
    broken_environment_s: float = 600.0


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
    environment: AdapterSection = AdapterSection(kind="sandbox")
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
        _check_schedule(schedule, self.run.deterministic)
        _check_quotas(schedule)
        _check_batches(self)
        self.algorithm.check()
        if schedule.group_size == 1 and self.algorithm.advantage not in ("reinforce_pp", "gae"):
            raise ConfigError(
                f"schedule.group_size is 1 with algorithm.advantage {self.algorithm.advantage}; a group baseline needs at "
                "least 2 members, reinforce_pp and gae need none"
            )
        for name in TimeoutSection.__struct_fields__:
            if not getattr(self.timeouts, name) > 0:
                raise ConfigError(f"timeouts.{name} is {getattr(self.timeouts, name)}; it must be positive")


def _check_quotas(schedule: ScheduleSection) -> None:
    if not schedule.quotas:
        return
    total = sum(schedule.quotas.values())
    if min(schedule.quotas.values()) <= 0 or total > 1 + 1e-9:
        raise ConfigError(
            f"schedule.quotas are {schedule.quotas}, {total:g} in all; each is above 0, and all at most 1"
        )
    if schedule.order != "ready" or schedule.staleness in ("wait", "window"):
        raise ConfigError(
            f"schedule.quotas with order {schedule.order} and staleness {schedule.staleness}: both say who is due; set "
            'order = "ready" and staleness `pace` or `drop`'
        )


def _check_schedule(schedule: ScheduleSection, is_deterministic: bool) -> None:
    if (schedule.mode == "sync") != (schedule.most_credit_batches == 0):
        raise ConfigError(
            f"schedule.mode is {schedule.mode} with credit_batches {schedule.credit_batches}; "
            "sync needs exactly 0, the asynchronous modes at least 1"
        )
    if schedule.keeps_every_group_in_time and schedule.max_lag < schedule.most_credit_batches:
        raise ConfigError(
            f"schedule.max_lag is {schedule.max_lag} with credit_batches {schedule.credit_batches}; under "
            f"`{schedule.staleness}` it must be at least credit_batches, or groups admitted together could not all train in "
            "time"
        )
    if schedule.staleness == "window" and schedule.order == "ordinal":
        raise ConfigError(
            "schedule.staleness is window with order ordinal; strict order is the window of max_lag = credit_batches, set "
            'schedule.order = "ready"'
        )
    if is_deterministic and schedule.mode != "sync" and (schedule.order != "ordinal" or schedule.is_credit_found):
        raise ConfigError(
            f"run.deterministic with schedule.mode {schedule.mode}, order {schedule.order} and credit_batches "
            f'{schedule.credit_batches}; batches then depend on arrival, set schedule.order = "ordinal" and a number'
        )


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


def load_config(path: Path, overrides: tuple[str, ...] = ()) -> Config:
    """The checked configuration of a TOML file with `section.key=value` overrides; values are TOML literals.

    Raises:
        ConfigError: naming the file or override, the value and what is expected.
    """
    try:
        tree: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; name a TOML file such as examples/arithmetic/train.toml") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; name a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    for override in overrides:
        _apply_override(tree, override)
    return decode_config(tree, str(path))


def decode_config(tree: dict[str, Any], where: str) -> Config:
    """The checked configuration of a tree of plain values. Raises ConfigError."""
    config = decode_options(tree, Config, where)
    config.check()
    return config


def decode_options(options: dict[str, Any], kind: type[T], where: str) -> T:
    """An adapter's options as its own struct. Raises ConfigError naming the key."""
    try:
        return msgspec.convert(options, kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{where}: {error}{_known_fields(str(error), kind)}") from error


def _known_fields(message: str, kind: Any) -> str:
    """The fields there are, when a message of msgspec is about one that there is not."""
    found = re.search(r"unknown field `.*?`(?: - at `\$\.(.+)`)?$", message)
    if found is None:
        return ""
    for name in found[1].split(".") if found[1] else ():
        kind = next((field.type for field in _fields(kind) if field.encode_name == name), None)
    names = [field.encode_name for field in _fields(kind)]
    return f"; known: {', '.join(names)}" if names else ""


def _fields(kind: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()


def override_config(config: Config, overrides: tuple[str, ...]) -> Config:
    """The checked configuration with `section.key=value` overrides. Raises ConfigError."""
    tree: dict[str, Any] = msgspec.to_builtins(config)
    for override in overrides:
        _apply_override(tree, override)
    return decode_config(tree, "overrides")


def _apply_override(tree: dict[str, Any], override: str) -> None:
    name, separator, literal = override.partition("=")
    if not separator or not all(name.split(".")):
        raise ConfigError(f"override {override!r}: write section.key=value, such as run.updates=20")
    try:
        value = tomllib.loads(f"value = {literal}")["value"]
    except tomllib.TOMLDecodeError:
        value = literal
    *sections, key = name.split(".")
    node = tree
    for section in sections:
        node = node.setdefault(section, {})
        if not isinstance(node, dict):
            raise ConfigError(f"override {override!r}: {section} is a value, not a section")
    node[key] = value
