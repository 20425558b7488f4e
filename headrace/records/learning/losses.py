"""Losses by name, and how they are summed up; `Loss` is any of them."""

from typing import Literal

from headrace.records.learning.choice import Choice

AggregationName = Literal[
    "token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm", "prompt_mean"
]


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
