"""The learning signal by name: one struct per concern, each with the numbers that its choice needs and no others.

Invariant: a choice that is not known, or a number that belongs to another choice, cannot be decoded. The formulas live in
`algorithms` and `training`; what may stand beside what is said by the checks at the end and by the section that holds them.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from headrace.errors import ConfigError

AdvantageName = Literal[
    "mean",
    "grpo",
    "rloo",
    "loo_std",
    "batch_std",
    "maxrl",
    "opo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "gdpo",
    "gae",
]
AggregationName = Literal[
    "token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm", "prompt_mean"
]
Anchor = Literal["behavior", "old", "interpolated"]
Denominator = Literal["original", "kept"]


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """Base of all choices; `kind` names one."""


class ClipLoss(Choice, frozen=True, tag="clip"):
    """PPO's clip with the section's distances: clip-higher when they differ.

    Attributes:
        dual_bound: dual clip: a token of negative advantage costs at most this times |A|.
        ratio_bound: two-sided: the unclipped term uses min(r, bound).
    """

    dual_bound: float | None = None
    ratio_bound: float | None = None


class RatioLoss(Choice, frozen=True, tag="ratio"):
    """-r A without any clip; what it trusts has to come from a correction, such as `m2po`."""


class GspoLoss(Choice, frozen=True, tag="gspo"):
    """One geometric-mean ratio per sequence, clipped by the section's distances."""


class GmpoLoss(Choice, frozen=True, tag="gmpo"):
    """Geometric mean of ratios, each clipped in log space by the section's distances."""


class CispoRelativeLoss(Choice, frozen=True, tag="cispo_relative"):
    """CISPO with the weight clipped to [1 - clip_low, 1 + clip_high]."""


class CispoAbsoluteLoss(Choice, frozen=True, tag="cispo_absolute"):
    """CISPO with the weight at most `bound`, and no lower bound.

    Attributes:
        bound: largest weight itself, not its distance from 1.
    """

    bound: float = 5.0


class SapoLoss(Choice, frozen=True, tag="sapo"):
    """A sigmoid gate around ratio 1 instead of a clip.

    Attributes:
        tau_positive: temperature for positive advantages.
        tau_negative: the same for negative ones.
    """

    tau_positive: float = 1.0
    tau_negative: float = 1.05


class DppoLoss(Choice, frozen=True, tag="dppo"):
    """A trust region on the divergence of the sampled token's probability.

    Attributes:
        divergence: `tv`: |p - q|; `kl`: KL between (q, 1 - q) and (p, 1 - p).
        threshold: beyond it a token that moves further away is masked.
    """

    divergence: Literal["tv", "kl"] = "tv"
    threshold: float = 0.15


class PrimeLoss(Choice, frozen=True, tag="prime"):
    """-r A under a total variation mask, plus a squared log-ratio that pulls every token back.

    Attributes:
        threshold: largest |p - q| of a token that moves further away.
        kl_tau: factor of the squared log-ratio, masked tokens included.
    """

    threshold: float = 0.2
    kl_tau: float = 1e-3


class ToprLoss(Choice, frozen=True, tag="topr"):
    """Positive samples as in supervised learning, negative ones under a weight of at most 1.

    Attributes:
        level: whether the ratio of a negative sample is that of the sequence or of each token.
    """

    level: Literal["sequence", "token"] = "sequence"


class AspoLoss(Choice, frozen=True, tag="aspo"):
    """PPO whose ratio is turned over for positive advantages, with a soft bound.

    Attributes:
        bound: largest weight; beyond it the weight is constant and the gradient stays.
    """

    bound: float = 3.0


class DroLoss(Choice, frozen=True, tag="dro"):
    """-(log p A - beta / 2 log-ratio squared).

    Attributes:
        beta: strength of the pull.
    """

    beta: float = 0.1


Loss = (
    ClipLoss
    | RatioLoss
    | GspoLoss
    | GmpoLoss
    | CispoRelativeLoss
    | CispoAbsoluteLoss
    | SapoLoss
    | DppoLoss
    | PrimeLoss
    | ToprLoss
    | AspoLoss
    | DroLoss
)
USES_CLIP = (ClipLoss, GspoLoss, GmpoLoss, CispoRelativeLoss, AspoLoss)
"""Losses that read the section's clip distances."""


class NoCorrection(Choice, frozen=True, tag="none"):
    """Weight 1 whatever sampled the token: data of another version is treated as if it were on-policy, by choice."""


class TokenTis(Choice, frozen=True, tag="token_tis"):
    """min(w, bound) per token.

    Attributes:
        bound: largest weight.
    """

    bound: float = 2.0


class SequenceTis(Choice, frozen=True, tag="sequence_tis"):
    """min(product of w, bound) for all tokens of a sequence.

    Attributes:
        bound: largest weight.
    """

    bound: float = 2.0


class TokenMis(Choice, frozen=True, tag="token_mis"):
    """w per token, and no weight at all above the bound.

    Attributes:
        bound: largest weight that is kept.
        denominator: whether removed tokens still count.
    """

    bound: float = 2.0
    denominator: Denominator = "original"


class SequenceMis(Choice, frozen=True, tag="sequence_mis"):
    """Product of w for all tokens of a sequence, and no weight at all above the bound.

    Attributes:
        bound: largest weight that is kept.
        denominator: whether removed sequences still count.
    """

    bound: float = 3.0
    denominator: Denominator = "original"


class IcePop(Choice, frozen=True, tag="icepop"):
    """w per token inside [low, high], and nothing outside.

    Attributes:
        low: smallest weight that is kept.
        high: largest.
        denominator: whether removed tokens still count.
    """

    low: float = 0.5
    high: float = 5.0
    denominator: Denominator = "original"


class SequenceMaskTis(Choice, frozen=True, tag="sequence_mask_tis"):
    """Raw token weights in sequences whose geometric mean lies in [low, high]; nothing in the others.

    Attributes:
        low: smallest geometric mean that is kept.
        high: largest.
        denominator: whether removed sequences still count.
    """

    low: float = 0.999
    high: float = 1.002
    denominator: Denominator = "original"


class GeometricMask(Choice, frozen=True, tag="geometric_mask"):
    """Removes sequences whose geometric mean ratio lies outside [low, high], or that hold one impossible token.

    Attributes:
        low: smallest geometric mean that is kept.
        high: largest.
        veto: a sequence with a token ratio below it is removed: a mean over many tokens hides such a one.
        denominator: whether removed sequences still count.
    """

    low: float = 0.99
    high: float = 1.01
    veto: float | None = 1e-4
    denominator: Denominator = "original"


class TokenVeto(Choice, frozen=True, tag="token_veto"):
    """Removes sequences that hold a token of a ratio below the bound.

    Attributes:
        bound: smallest ratio.
        denominator: whether removed sequences still count.
    """

    bound: float = 1e-4
    denominator: Denominator = "original"


class Opsm(Choice, frozen=True, tag="opsm"):
    """Removes sequences of negative advantage whose mean log(behaviour / policy) exceeds the bound.

    Attributes:
        bound: largest mean, nats per token.
        denominator: whether removed sequences still count.
    """

    bound: float = 0.1
    denominator: Denominator = "original"


class M2po(Choice, frozen=True, tag="m2po"):
    """Removes the tokens of largest squared log-ratio until the mean of the rest lies below the bound.

    Attributes:
        bound: of the second moment over the batch.
        denominator: whether removed tokens still count.
    """

    bound: float = 0.04
    denominator: Denominator = "original"


Correction = (
    NoCorrection
    | TokenTis
    | SequenceTis
    | TokenMis
    | SequenceMis
    | IcePop
    | SequenceMaskTis
    | GeometricMask
    | TokenVeto
    | Opsm
    | M2po
)
WEIGHTING = (TokenTis, SequenceTis, TokenMis, SequenceMis, IcePop, SequenceMaskTis)
"""Corrections that multiply the loss by a ratio; a second ratio on top would count it twice."""
MASKING = (TokenMis, SequenceMis, IcePop, SequenceMaskTis, GeometricMask, TokenVeto, Opsm, M2po)
"""Corrections that remove tokens."""


class Kl(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Distance to the reference model. A coefficient above 0 makes the reference exist.

    Attributes:
        coefficient: factor; 0 is no reference model at all.
        estimator: `k1` log(p/q); `k2` half its square; `k3` q/p - 1 + log(p/q).
        gradient: `own`: of the estimator itself; `straight_through`: the estimator's value with the gradient of k2.
        place: `loss`: a term of the loss; `reward`: subtracted from rewards before advantages are made.
        importance: weighs each token by policy over behaviour, which keeps value and gradient right on data of another
            version.
    """

    coefficient: float = 0.0
    estimator: Literal["k1", "k2", "k3"] = "k3"
    gradient: Literal["own", "straight_through"] = "own"
    place: Literal["loss", "reward"] = "loss"
    importance: bool = False


class Filters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What never reaches an update, or reaches it with another reward. Each removal is recorded by stratum.

    Attributes:
        dynamic_sampling: groups whose rewards differ by at most `tolerance` are rejected, and others drawn instead.
        tolerance: in reward units.
        overlong: members that ran into a limit: `keep`; `mask` out of loss and baseline alike; `shape`: a penalty that
            rises over the last `overlong_buffer` tokens of the episode's budget, for every member.
        overlong_buffer: tokens.
        overlong_penalty: at the full budget, in reward units.
    """

    dynamic_sampling: bool = False
    tolerance: float = 1e-6
    overlong: Literal["keep", "mask", "shape"] = "keep"
    overlong_buffer: int = 64
    overlong_penalty: float = 1.0


class EstimatorOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Numbers of the advantage estimators.

    Attributes:
        ddof: of the group deviation in `grpo`: 1 sample, 0 population; they differ by sqrt(n / (n - 1)).
        component_weights: of each named reward component, for `gdpo` alone.
        discount: gamma of `gae`, per action token.
        trace: lambda of `gae`.
    """

    ddof: Literal[0, 1] = 1
    component_weights: dict[str, float] = {}
    discount: float = 1.0
    trace: float = 1.0


class Critic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The value model of `gae`; it exists with that advantage and no other.

    Attributes:
        learning_rate: of its AdamW.
        value_clip: largest move of a value in one update that lowers the loss; 0 for none.
        warmup_updates: updates at the start in which the policy does not move.
    """

    learning_rate: float = 1e-3
    value_clip: float = 0.2
    warmup_updates: int = 0


class Guard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When an update pauses the run before its version is published. 0 turns a bound off.

    Attributes:
        max_kl: k3 estimate of KL(behaviour, policy) per trained token, nats.
        max_step_kl: exact KL(new, previous) on the fixed sequences, nats per token. A healthy step moves by hundredths; one
            that moves by more than a nat has replaced the policy.
        min_entropy_share: entropy per token over that of the first update.
    """

    max_kl: float = 1.0
    max_step_kl: float = 1.0
    min_entropy_share: float = 0.01


def check_corrections(corrections: Sequence[Correction], anchor: Anchor) -> None:
    """Raises ConfigError for corrections that contradict each other or the anchor."""
    kinds = [tag_of(item) for item in corrections]
    if len(set(kinds)) != len(kinds):
        raise ConfigError(f"algorithm.corrections are {kinds}; each kind once")
    weighting = [tag_of(item) for item in corrections if isinstance(item, WEIGHTING)]
    if len(weighting) > 1:
        raise ConfigError(f"algorithm.corrections {weighting} both weigh by the ratio; keep one of them")
    if "none" in kinds and len(kinds) > 1:
        raise ConfigError(f"algorithm.corrections are {kinds}; `none` stands alone")
    if anchor == "behavior" and weighting:
        raise ConfigError(
            f"algorithm.corrections {weighting} with anchor behavior: the loss's own ratio is that weight already and would "
            'count twice; set algorithm.anchor = "old"'
        )
    if anchor != "behavior" and not kinds:
        raise ConfigError(
            f"algorithm.anchor is {anchor} without a correction: data of another version would count as on-policy; name a "
            'correction, or write corrections = [{ kind = "none" }]'
        )


def check_kl(kl: Kl) -> None:
    """Raises ConfigError for a KL term whose gradient or place has no meaning."""
    if not kl.coefficient >= 0:
        raise ConfigError(f"algorithm.kl.coefficient is {kl.coefficient}; it must be at least 0")
    if kl.place == "reward" and (kl.gradient == "straight_through" or kl.importance):
        raise ConfigError(
            "algorithm.kl in the reward has no gradient of its own: leave `gradient` and `importance` out"
        )
    is_zero = kl.estimator == "k1" and kl.gradient == "own" and not kl.importance
    if kl.coefficient > 0 and kl.place == "loss" and is_zero:
        raise ConfigError(
            "algorithm.kl: k1 in the loss has an expected gradient of 0 and holds nothing; use k2, straight_through or "
            "importance, or put it in the reward"
        )


def check_filters(filters: Filters) -> None:
    """Raises ConfigError for a number out of its bounds."""
    if filters.overlong_buffer < 1 or filters.tolerance < 0:
        raise ConfigError(
            f"algorithm.filters: overlong_buffer is {filters.overlong_buffer}, at least 1 is needed; tolerance is "
            f"{filters.tolerance}, at least 0"
        )


def tag_of(choice: Choice) -> str:
    """The choice's `kind`."""
    return str(type(choice).__struct_config__.tag)
