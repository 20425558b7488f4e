"""Stage 12, policy update: what a step did, and the phases of publication (stage, prepare, commit, activate, canary)."""

import msgspec

from headrace.records.arrays import Float32Bytes
from headrace.records.ids import Address, PolicyId, PolicyRef


class RowScore(msgspec.Struct, frozen=True):
    """The trainer's view of one row before the update, in natural logs.

    Attributes:
        transcript: which row, by address; results are joined by it and never by position.
        path: which of its paths.
        num_tokens: trained tokens.
        log_ratio_sum: sum over trained tokens of old minus behavior log-prob: log of the raw sequence weight.
        log_ratio_abs_max: largest absolute difference of one token.
        fresh_abs_max: the same over tokens sampled by the base version in a fresh context; None when there is none.
        k2_sum: sum over trained tokens of half the squared log-ratio.
        k3_sum: sum over trained tokens of ratio - 1 - log-ratio: estimates KL(behaviour, trainer), never negative.
        penalty_sum: sum over trained tokens of the KL to the reference that is taken off the reward; 0 without one.
        old_cache_tokens: trained tokens sampled in a cache that an older version than theirs had a part in.
        old_cache_abs_max: largest absolute difference of one of these that the base version sampled; None without one.
        outside: trained tokens whose ratio to the behaviour lies outside the clip distances; None where nobody counted.
    """

    transcript: Address
    path: int
    num_tokens: int
    log_ratio_sum: float
    log_ratio_abs_max: float
    fresh_abs_max: float | None
    k2_sum: float = 0.0
    k3_sum: float = 0.0
    penalty_sum: float = 0.0
    old_cache_tokens: int = 0
    old_cache_abs_max: float | None = None
    outside: int | None = None


class TokenCounts(msgspec.Struct, frozen=True):
    """What an update did to tokens, as counts that add up over rows. The five ways to be clipped are not interchangeable.

    Attributes:
        tokens: trained tokens.
        kept: those that no correction removed.
        branch_binds: the clipped term is taken and constant in the policy: no gradient.
        ratio_outside: the ratio lies outside the interval, whatever the advantage.
        low_negative: below the lower bound with a negative advantage.
        high_positive: above the upper bound with a positive advantage.
        dual: held by a bound on negative advantages.
    """

    tokens: int = 0
    kept: int = 0
    branch_binds: int = 0
    ratio_outside: int = 0
    low_negative: int = 0
    high_positive: int = 0
    dual: int = 0

    def __add__(self, other: "TokenCounts") -> "TokenCounts":
        return TokenCounts(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


class RowUpdate(msgspec.Struct, frozen=True):
    """What an update did to one row.

    Attributes:
        transcript: which row, by address.
        path: which of its paths.
        counts: of its tokens.
    """

    transcript: Address
    path: int
    counts: TokenCounts


class StratumUpdate(msgspec.Struct, frozen=True):
    """What an update did to the rows of one difficulty.

    Attributes:
        difficulty: stratum.
        counts: of their tokens.
    """

    difficulty: str
    counts: TokenCounts


class UpdateResult(msgspec.Struct, frozen=True):
    """What the trainer made of a plan.

    Attributes:
        update: number of the update.
        version: the new version.
        weights: address of the new weights file.
        weights_bytes: its size.
        metrics: loss, gradient norm, clip fraction, entropy, … by name; finite numbers only.
        compute_s: seconds of forward, backward and step.
        rows: what it did to each row; empty once summed up by stratum.
    """

    update: int
    version: int
    weights: Address
    weights_bytes: int
    metrics: dict[str, float]
    compute_s: float
    rows: tuple[RowUpdate, ...] = ()


class SignalFigures(msgspec.Struct, frozen=True):
    """Raw sequence weights and log-ratios of some rows, trainer against recorded behaviour.

    Attributes:
        rows: number of rows.
        tokens: trained tokens.
        ess_fraction: effective sample size of raw sequence weights over their count: concentration, not unbiasedness.
        mean_weight: mean raw sequence weight; 1 in expectation when support is shared.
        mean_weight_z: its distance from 1 in standard errors; beyond 4 the weights belong to no shared support.
        p50: median weight.
        p95: 95% quantile.
        p99: 99% quantile.
        maximum: largest weight.
        largest_share: share of the largest weight in their sum.
        k_hat: Pareto shape of the largest weights; above 0.7 no estimate is usable. None for too few rows.
        kl_k1: estimates KL(behaviour, trainer), nats per trained token; may be negative.
        kl_k2: the same by half the square.
        kl_k3: the same, never negative.
        mismatch: largest absolute log-prob difference over fresh tokens of the base version; None when there is none.
        old_cache_tokens: trained tokens sampled in a cache that an older version than theirs had a part in; no trainer
            computes them again exactly.
        old_cache_difference: the same as `mismatch` over those of the base version; None when there is none.
        outside: clip fraction `ratio_outside`: share of trained tokens whose ratio lies outside the clip distances, whatever
            the advantage; None where nobody counted.
    """

    rows: int
    tokens: int
    ess_fraction: float
    mean_weight: float
    mean_weight_z: float
    p50: float
    p95: float
    p99: float
    maximum: float
    largest_share: float
    k_hat: float | None
    kl_k1: float
    kl_k2: float
    kl_k3: float
    mismatch: float | None
    old_cache_tokens: int = 0
    old_cache_difference: float | None = None
    outside: float | None = None


class StratumScored(msgspec.Struct, frozen=True):
    """The figures of one difficulty.

    Attributes:
        difficulty: stratum.
        figures: of its rows.
    """

    difficulty: str
    figures: SignalFigures


class BatchScored(msgspec.Struct, frozen=True, tag="batch_scored"):
    """Trainer and engine were compared on the selected rows, before the plan.

    Attributes:
        update: number of the update.
        rows: number of rows.
        mismatch: largest absolute log-prob difference over tokens of the base version in a fresh context; None when
            the batch holds none.
        log_ratio_abs_max: largest absolute log-ratio of one trained token, any version.
        ess_fraction: effective sample size of raw sequence weights over their count.
        mean_weight: mean raw sequence weight; 1 in expectation when support is shared.
        kl: k1 estimate of KL(behaviour, trainer) per trained token: mean of behavior minus old log-prob.
        figures: all figures of the batch; None when it has no row.
        strata: the same by difficulty, in order of name.
        replayed: the same over the rows that trained before; None when there is none.
    """

    update: int
    rows: int
    mismatch: float | None
    log_ratio_abs_max: float
    ess_fraction: float
    mean_weight: float
    kl: float
    figures: SignalFigures | None = None
    strata: tuple[StratumScored, ...] = ()
    replayed: SignalFigures | None = None


class UpdateSkipped(msgspec.Struct, frozen=True, tag="update_skipped"):
    """The selected groups hold no row to train on: there was no plan, no gradient and no new version.

    Attributes:
        update: number of the update.
        reason: why.
    """

    update: int
    reason: str


class TrainingPaused(msgspec.Struct, frozen=True, tag="training_paused"):
    """The guard stopped the run before a version was published; what was served before it still is.

    Attributes:
        update: number of the update.
        figure: name of the figure that left its bound.
        value: what it was.
        bound: what is allowed.
    """

    update: int
    figure: str
    value: float
    bound: float


class UpdateCompleted(msgspec.Struct, frozen=True, tag="update_completed"):
    """The optimizer stepped; the new version does not exist yet.

    Attributes:
        result: what the trainer reported.
        strata: what it did to tokens, by difficulty, in order of name.
    """

    result: UpdateResult
    strata: tuple[StratumUpdate, ...] = ()


class WeightsStaged(msgspec.Struct, frozen=True, tag="weights_staged"):
    """STAGE: the weights lie in the store under their hash.

    Attributes:
        policy: the version to be.
        weights: address of the file.
        size_bytes: its size.
    """

    policy: PolicyRef
    weights: Address
    size_bytes: int


class WeightsPrepared(msgspec.Struct, frozen=True, tag="weights_prepared"):
    """PREPARED: a worker holds the weights aside and has verified their hash.

    Attributes:
        policy: the version to be.
        worker: who.
        load_s: seconds it took.
    """

    policy: PolicyRef
    worker: str
    load_s: float


class WeightsCommitted(msgspec.Struct, frozen=True, tag="weights_committed"):
    """COMMIT: from here on the version exists, and recovery rolls forward to it.

    Attributes:
        policy: the version.
        weights: address of the file.
        kl_to_previous: mean per-token KL(new, previous) on fixed sequences; None for version 0.
    """

    policy: PolicyRef
    weights: Address
    kl_to_previous: float | None


class WeightsActivated(msgspec.Struct, frozen=True, tag="weights_activated"):
    """ACTIVE: the worker samples with this version from the next token on.

    Attributes:
        policy: the version.
        worker: who.
        pause_s: seconds in which it generated nothing.
        rebuilt_tokens: cache entries computed again under the new version.
    """

    policy: PolicyRef
    worker: str
    pause_s: float
    rebuilt_tokens: int


class Activation(msgspec.Struct, frozen=True):
    """Answer of an engine to `activate`.

    Attributes:
        worker: who.
        pause_s: seconds in which it generated nothing.
        rebuilt_tokens: cache entries computed again under the new version.
    """

    worker: str
    pause_s: float
    rebuilt_tokens: int


class CanaryChecked(msgspec.Struct, frozen=True, tag="canary_checked"):
    """A fixed sequence was scored by engine and trainer under the new version.

    Attributes:
        policy: the version.
        worker: which engine.
        max_abs_difference: largest absolute log-prob difference.
        tolerance: bound; above it the version is not served.
        is_accepted: whether it is served.
        score_s: seconds in which the engine scored them, and generated nothing.
    """

    policy: PolicyRef
    worker: str
    max_abs_difference: float
    tolerance: float
    is_accepted: bool
    score_s: float = 0.0


class Standstill(msgspec.Struct, frozen=True):
    """Where an engine stands when it stops or goes on.

    Attributes:
        worker: who.
        running: turns in mid-generation.
        computed_tokens: tokens that it prefilled or sampled since its start.
    """

    worker: str
    running: int
    computed_tokens: int


class GenerationPaused(msgspec.Struct, frozen=True, tag="generation_paused"):
    """The trainer's turn on shared devices began: generation stands still at a token boundary.

    Attributes:
        update: whose turn.
        worker: the engine that stands still.
        running: turns in mid-generation; they keep prefix, log-probs and versions.
        computed_tokens: what the engine has computed since its start.
        switch_s: seconds from the request to the standstill.
    """

    update: int
    worker: str
    running: int
    computed_tokens: int
    switch_s: float


class GenerationResumed(msgspec.Struct, frozen=True, tag="generation_resumed"):
    """The trainer's turn ended: generation goes on.

    Attributes:
        update: whose turn it was.
        worker: the engine that goes on.
        computed_tokens: what it has computed since its start; as much as when it stopped.
        held_s: seconds of the trainer's turn, publication included.
        switch_s: seconds from the request until the engine goes on.
    """

    update: int
    worker: str
    computed_tokens: int
    held_s: float
    switch_s: float


class CanaryScore(msgspec.Struct, frozen=True):
    """The trainer's log-probs of the canary sequence under a version.

    Attributes:
        policy_id: which policy.
        version: which version.
        logprobs: natural-log probabilities [T - 1] of each token after the first.
        kl_to_previous: mean per-token KL(new, previous) on the canary sequences, if there was a previous version.
    """

    policy_id: PolicyId
    version: int
    logprobs: Float32Bytes
    kl_to_previous: float | None
