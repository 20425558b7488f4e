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
    """

    transcript: Address
    path: int
    num_tokens: int
    log_ratio_sum: float
    log_ratio_abs_max: float
    fresh_abs_max: float | None


class UpdateResult(msgspec.Struct, frozen=True):
    """What the trainer made of a plan.

    Attributes:
        update: number of the update.
        version: the new version.
        weights: address of the new weights file.
        weights_bytes: its size.
        metrics: loss, gradient norm, clip fraction, entropy, … by name; finite numbers only.
        compute_s: seconds of forward, backward and step.
    """

    update: int
    version: int
    weights: Address
    weights_bytes: int
    metrics: dict[str, float]
    compute_s: float


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
    """

    update: int
    rows: int
    mismatch: float | None
    log_ratio_abs_max: float
    ess_fraction: float
    mean_weight: float
    kl: float


class UpdateCompleted(msgspec.Struct, frozen=True, tag="update_completed"):
    """The optimizer stepped; the new version does not exist yet.

    Attributes:
        result: what the trainer reported.
    """

    result: UpdateResult


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
    """

    policy: PolicyRef
    worker: str
    max_abs_difference: float
    tolerance: float
    is_accepted: bool


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
