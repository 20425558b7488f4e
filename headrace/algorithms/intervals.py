"""Confidence intervals of rates. Invariant: the interval lies in [0, 1] and is never of width 0 for a finite sample."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Interval:
    """A confidence interval.

    Attributes:
        low: lower end.
        high: upper end.
    """

    low: float
    high: float


NORMAL_QUANTILE_95 = 1.959963984540054
"""0.975 quantile of the standard normal distribution: two-sided 95%."""


def wilson_interval(successes: int, trials: int, quantile: float = NORMAL_QUANTILE_95) -> Interval:
    """Score interval of a success rate, 95% by default; [0, 1] when nothing was tried.

    It keeps its coverage at rates near 0 and 1, where the textbook interval p ± z·sqrt(p(1-p)/n) collapses to a point.

    Example: 8 of 10 give [0.490, 0.943]; 10 of 10 give [0.722, 1.0].

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference", JASA 22, pages 209-212.

    Raises:
        ValueError: unless 0 <= successes <= trials.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials; successes must lie in [0, trials]")
    if trials == 0:
        return Interval(0.0, 1.0)
    rate = successes / trials
    square = quantile * quantile / trials
    centre = (rate + square / 2) / (1 + square)
    half = quantile / (1 + square) * math.sqrt(rate * (1 - rate) / trials + square / (4 * trials))
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return Interval(low, high)
