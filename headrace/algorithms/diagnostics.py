"""Diagnostics of importance weights: effective sample size, tail, mean, KL estimates, clip fractions.

Invariant: everything is computed from raw weights in log space, before any truncation; after it the effective sample size is
highest exactly where the bias is largest. What none of these can see: regions that were never sampled. Effective sample
size is weight concentration, not proof of unbiasedness, and is blind to a common factor; hence the mean weight beside it.

Dimensions: N weights (one per sequence unless said otherwise).
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Values = npt.NDArray[np.floating] | list[float] | tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class EffectiveSampleSize:
    """Kish's effective sample size.

    Attributes:
        size: between 1 and N; 0 when all weights are 0.
        fraction: size over N; rejected items keep weight 0 and stay in N.
    """

    size: float
    fraction: float


def effective_sample_size(log_weights_N: Values) -> EffectiveSampleSize:
    """(sum w)^2 / sum w^2 of the raw weights, from their logs; -inf is weight 0.

    Example: weights 1, 1, 1, 1, 4 give 3.2 of 5. Token log-ratios of ±0.02 give a fraction of 0.9996, the weights of whole
    sequences of 100 such tokens 0.52: use sequences.

    Source: Kong 1992, "A note on importance sampling using standardized weights"; Kish 1965.

    Raises:
        ValueError: on NaN, +inf or no weights at all.
    """
    return _effective_size(_scaled(log_weights_N))


def _effective_size(weights: "_Weights") -> EffectiveSampleSize:
    squares = float(np.add.reduce(weights.scaled_N**2))
    size = weights.total**2 / squares if squares > 0 else 0.0
    return EffectiveSampleSize(size, size / len(weights.scaled_N))


@dataclasses.dataclass(frozen=True)
class MeanWeight:
    """Mean of the raw weights; 1 in expectation when the support is shared.

    Attributes:
        mean: mean weight; inf when it leaves the range of a float.
        standard_error: of the mean; 0 for equal weights, inf for a single one.
        z: (mean - 1) / standard_error; beyond ±4 the weights do not belong to a shared support.
    """

    mean: float
    standard_error: float
    z: float


def mean_weight(log_weights_N: Values) -> MeanWeight:
    """Mean weight with its standard error and z-score against 1.

    Example: weights 1, 1, 1, 1, 4 give 1.6 ± 0.6, z = 1.

    Source: E_mu[pi/mu] = 1; Owen 2013, "Monte Carlo theory, methods and examples", section 9.3.

    Raises:
        ValueError: on NaN, +inf or no weights at all.
    """
    return _mean_weight(_scaled(log_weights_N))


def _mean_weight(weights: "_Weights") -> MeanWeight:
    count, shift = len(weights.scaled_N), weights.shift
    scale = math.exp(shift) if shift < 709.0 else math.inf
    mean = weights.total / count
    if count < 2:
        return MeanWeight(scale * mean, math.inf, 0.0)
    squares = float(np.add.reduce((weights.scaled_N - mean) ** 2))
    error = math.sqrt(squares / (count - 1)) / math.sqrt(count)
    gap = mean - (math.exp(-shift) if shift > -709.0 else math.inf)
    if error <= 0:
        return MeanWeight(scale * mean, 0.0, 0.0 if abs(gap) <= 1e-12 else math.copysign(math.inf, gap))
    return MeanWeight(scale * mean, scale * error, gap / error)


@dataclasses.dataclass(frozen=True)
class Tail:
    """The upper end of the raw weights.

    Attributes:
        p50: median weight.
        p95: 95% quantile, linear between order statistics.
        p99: 99% quantile.
        maximum: largest weight.
        minimum: smallest weight.
        fraction_above_2: share of items whose weight exceeds 2.
        fraction_below_half: share of items whose weight is below 0.5.
        largest_share: share of the largest weight in their sum.
    """

    p50: float
    p95: float
    p99: float
    maximum: float
    minimum: float
    fraction_above_2: float
    fraction_below_half: float
    largest_share: float


def tail(log_weights_N: Values) -> Tail:
    """Quantiles of the weights, and how much of their sum the largest one holds.

    Raises:
        ValueError: on NaN, +inf or no weights at all.
    """
    return _tail(_scaled(log_weights_N))


def _tail(weights: "_Weights") -> Tail:
    ordered_N = weights.ordered_N
    quantiles_5 = [_quantile(ordered_N, share) for share in (0.5, 0.95, 0.99, 1.0, 0.0)]
    with np.errstate(over="ignore", divide="ignore"):
        p50, p95, p99, maximum, minimum = np.exp(np.log(quantiles_5) + weights.shift).tolist()
    return Tail(
        p50=p50,
        p95=p95,
        p99=p99,
        maximum=maximum,
        minimum=minimum,
        fraction_above_2=np.count_nonzero(weights.logs_N > math.log(2.0)) / len(ordered_N),
        fraction_below_half=np.count_nonzero(weights.logs_N < -math.log(2.0)) / len(ordered_N),
        largest_share=float(ordered_N[-1]) / weights.total if weights.total > 0 else 0.0,
    )


def _quantile(ordered_N: Array, share: float) -> float:
    """Quantile of rising values, linear between order statistics, to the last bit as `numpy.quantile` rounds it."""
    place = share * (len(ordered_N) - 1)
    low = min(int(place), len(ordered_N) - 1)
    part, below, above = place - low, float(ordered_N[low]), float(ordered_N[min(low + 1, len(ordered_N) - 1)])
    return above - (above - below) * (1.0 - part) if part >= 0.5 else below + (above - below) * part


def pareto_k_hat(log_weights_N: Values, *, has_prior: bool = False) -> float | None:
    """Shape of the generalised Pareto distribution fitted to the largest M = min(0.2 N, 3 sqrt N) weights.

    Below 0.5 the variance is finite, up to 0.7 estimates are usable, above they are not. None for fewer than 5 exceedances
    or when all of them are equal.

    Args:
        log_weights_N: logs of raw weights.
        has_prior: shrink towards 0.5 as if 10 more exceedances had said so, as PSIS does for small samples.

    Source: Vehtari et al. 2024, arXiv:1507.02646, sections 2 and 3; fit: Zhang and Stephens 2009, Technometrics 51.

    Raises:
        ValueError: on NaN, +inf or no weights at all.
    """
    return _k_hat(_scaled(log_weights_N), has_prior)


def _k_hat(weights: "_Weights", has_prior: bool) -> float | None:
    ordered_N = weights.ordered_N
    count = math.ceil(min(0.2 * len(ordered_N), 3.0 * math.sqrt(len(ordered_N))))
    if count < 5 or count >= len(ordered_N):
        return None
    exceedances_M = ordered_N[-count:] - ordered_N[-count - 1]
    # Ties with the threshold exceed nothing; weights that are all nearly one are mostly ties.
    exceedances_M = exceedances_M[exceedances_M > 0]
    count = len(exceedances_M)
    if count < 5 or exceedances_M[0] == exceedances_M[-1]:
        return None
    k = _generalised_pareto_shape(exceedances_M)
    return (count * k + 10 * 0.5) / (count + 10) if has_prior else k


@dataclasses.dataclass(frozen=True)
class WeightFigures:
    """All that is recorded of the raw weights of a batch.

    Attributes:
        size: `effective_sample_size`.
        mean: `mean_weight`.
        tail: `tail`.
        k_hat: `pareto_k_hat`, with its prior.
    """

    size: EffectiveSampleSize
    mean: MeanWeight
    tail: Tail
    k_hat: float | None


def weight_figures(log_weights_N: Values) -> WeightFigures:
    """The four diagnostics of one set of weights, checked, scaled and sorted once.

    Raises:
        ValueError: on NaN, +inf or no weights at all.
    """
    weights = _scaled(log_weights_N)
    return WeightFigures(
        _effective_size(weights), _mean_weight(weights), _tail(weights), _k_hat(weights, has_prior=True)
    )


def kl_k1(log_ratio_N: Values) -> Array:
    """Unbiased, can be negative: log(p/q) of samples from p, where `log_ratio_N` is log(p/q). An estimate of KL(p, q).

    Source: Schulman 2020, "Approximating KL divergence", k1.
    """
    return np.asarray(log_ratio_N, dtype=np.float64)


def kl_k2(log_ratio_N: Values) -> Array:
    """Biased, low variance: half the square of log(p/q). Source: Schulman 2020, k2."""
    return 0.5 * np.asarray(log_ratio_N, dtype=np.float64) ** 2


def kl_k3(log_ratio_N: Values) -> Array:
    """Unbiased and never negative: q/p - 1 + log(p/q) of samples from p.

    `expm1` keeps its digits where the policies nearly agree. Source: Schulman 2020, k3.
    """
    logs_N = np.asarray(log_ratio_N, dtype=np.float64)
    with np.errstate(over="ignore"):
        return np.maximum(np.expm1(-logs_N) + logs_N, 0.0)


@dataclasses.dataclass(frozen=True)
class ClipFlags:
    """Which trained tokens are clipped, by definitions that are not interchangeable; each [N].

    Attributes:
        branch_binds: the clipped term is the one taken and is constant in the policy: the token has no gradient.
        ratio_outside: the ratio lies outside the interval, whatever the advantage.
        low_negative_advantage: below the lower bound with a negative advantage.
        high_positive_advantage: above the upper bound with a positive advantage.
        dual: held by the bound on negative advantages.
    """

    branch_binds: npt.NDArray[np.bool_]
    ratio_outside: npt.NDArray[np.bool_]
    low_negative_advantage: npt.NDArray[np.bool_]
    high_positive_advantage: npt.NDArray[np.bool_]
    dual: npt.NDArray[np.bool_]


def clip_flags(
    log_ratio_N: Values, advantages_N: Values, clip_low: float, clip_high: float, *, dual_bound: float | None = None
) -> ClipFlags:
    """Clipped tokens among trained ones, given without the masked ones.

    Args:
        log_ratio_N: log of policy over anchor of each trained token.
        advantages_N: advantage of each.
        clip_low: lower distance; the interval is [1 - clip_low, 1 + clip_high].
        clip_high: upper distance.
        dual_bound: bound on the ratio of tokens with a negative advantage, if the loss has one.

    Source: PPO, Schulman et al. 2017, arXiv:1707.06347, equation 7; dual clip: Ye et al. 2020, arXiv:1912.09729.
    """
    advantages = np.asarray(advantages_N, dtype=np.float64)
    with np.errstate(over="ignore"):
        ratio = np.exp(np.asarray(log_ratio_N, dtype=np.float64))
    is_below, is_above = ratio < 1.0 - clip_low, ratio > 1.0 + clip_high
    low, high = is_below & (advantages < 0), is_above & (advantages > 0)
    dual = (advantages < 0) & (ratio > (math.inf if dual_bound is None else dual_bound))
    return ClipFlags(low | high, is_below | is_above, low, high, dual)


def _generalised_pareto_shape(exceedances_M: Array) -> float:
    """Posterior mean of the shape under Zhang and Stephens' profile likelihood, for rising positive exceedances."""
    count = len(exceedances_M)
    num_grid = 30 + math.isqrt(count)
    quartile = float(exceedances_M[math.floor(count / 4 + 0.5) - 1])
    steps_J = np.arange(1, num_grid + 1, dtype=np.float64)
    theta_J = 1.0 / float(exceedances_M[-1]) + (1.0 - np.sqrt(num_grid / (steps_J - 0.5))) / (3.0 * quartile)
    shape_J = np.log1p(-theta_J[:, None] * exceedances_M).mean(axis=1)
    log_likelihood_J = count * (np.log(-theta_J / shape_J) - shape_J - 1.0)
    weights_J = np.exp(log_likelihood_J - log_likelihood_J.max())
    theta = float((weights_J * theta_J).sum() / weights_J.sum())
    return float(np.log1p(-theta * exceedances_M).mean())


def _checked(log_weights_N: Values) -> tuple[Array, float]:
    """The logs as an array, and the largest of them."""
    logs_N = np.asarray(log_weights_N, dtype=np.float64)
    if not logs_N.size:
        raise ValueError("there are no weights; a diagnostic of nothing has no value")
    largest = float(np.maximum.reduce(logs_N, axis=None))  # a maximum carries a NaN on
    if not largest < math.inf:
        raise ValueError("a log-weight is NaN or +inf; a rejected item has -inf")
    return logs_N, largest


class _Weights(NamedTuple):
    """Raw weights over the largest one.

    Attributes:
        logs_N: their logs.
        scaled_N: weights over the largest one; all 0 when every weight is 0.
        ordered_N: the same, rising.
        shift: log of the largest one; 0 when every weight is 0.
        total: sum of `scaled_N`.
    """

    logs_N: Array
    scaled_N: Array
    ordered_N: Array
    shift: float
    total: float


def _scaled(log_weights_N: Values) -> _Weights:
    logs_N, shift = _checked(log_weights_N)
    if shift == -math.inf:
        zeros_N = np.zeros_like(logs_N)
        return _Weights(logs_N, zeros_N, zeros_N, 0.0, 0.0)
    scaled_N = np.exp(logs_N - shift)
    return _Weights(logs_N, scaled_N, np.sort(scaled_N), shift, float(np.add.reduce(scaled_N)))
