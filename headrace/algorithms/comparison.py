"""Success of one policy on tasks, and of two on the same tasks. Pure numpy; randomness is handed in.

Dimensions: N tasks, K attempts of each, R resamples.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.algorithms.intervals import Interval

Floats = npt.NDArray[np.float64]


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of k attempts succeeds.

    Example: 2 successes of 4 attempts give 0.5, 0.8333 and 1.0 for k = 1, 2 and 3.

    Source: Chen et al. 2021, "Evaluating large language models trained on code", equation 1: 1 - C(n-c, k) / C(n, k).

    Raises:
        ValueError: unless 0 <= successes <= attempts and 1 <= k <= attempts.
    """
    if not 0 <= successes <= attempts or not 1 <= k <= attempts:
        raise ValueError(f"{successes} successes of {attempts} attempts with k = {k}; k must lie in [1, attempts]")
    return 1.0 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def bootstrap_mean(values_N: Sequence[float], draw: np.random.Generator, resamples: int = 10_000) -> Interval:
    """Percentile interval, 95%, of the mean over tasks; the tasks are what is drawn again.

    Source: Efron 1979, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7, pages 1-26.

    Raises:
        ValueError: when there is no value.
    """
    if not len(values_N):
        raise ValueError("no value to draw again; an interval needs at least one task")
    means_R = _resampled_means(np.asarray(values_N, np.float64), draw, resamples)
    low, high = np.quantile(means_R, (0.025, 0.975))
    return Interval(float(low), float(high))


@dataclasses.dataclass(frozen=True)
class PairedComparison:
    """Two policies on the same tasks.

    Attributes:
        tasks: number of tasks that both were scored on.
        difference: mean success of the first minus that of the second.
        interval: 95% interval of the difference, by paired bootstrap over tasks.
        first_only: tasks that only the first solved, of single attempts.
        second_only: tasks that only the second solved, of single attempts.
        p_value: two-sided exact McNemar test of single attempts; None where tasks have several.
    """

    tasks: int
    difference: float
    interval: Interval
    first_only: int
    second_only: int
    p_value: float | None


def compare_paired(
    first_N: Sequence[float], second_N: Sequence[float], draw: np.random.Generator, *, is_single: bool
) -> PairedComparison:
    """The comparison of mean successes per task, in the same order of tasks.

    Args:
        first_N: mean success of the first policy on each task, in [0, 1].
        second_N: of the second.
        draw: source of the resamples.
        is_single: whether each mean is one attempt, 0 or 1.

    Raises:
        ValueError: when there is no task, or the two have different numbers.
    """
    if len(first_N) != len(second_N) or not len(first_N):
        raise ValueError(
            f"{len(first_N)} and {len(second_N)} tasks; a paired comparison needs the same ones, at least one"
        )
    difference_N = np.asarray(first_N, np.float64) - np.asarray(second_N, np.float64)
    first_only, second_only = int((difference_N > 0).sum()), int((difference_N < 0).sum())
    return PairedComparison(
        tasks=len(difference_N),
        difference=float(difference_N.mean()),
        interval=bootstrap_mean(difference_N.tolist(), draw),
        first_only=first_only,
        second_only=second_only,
        p_value=mcnemar_exact(first_only, second_only) if is_single else None,
    )


def mcnemar_exact(first_only: int, second_only: int) -> float:
    """Two-sided p-value of "the two solve equally many", from the tasks that only one of them solved.

    Example: 8 against 1 give 0.0390625; 5 against 5 give 1.0.

    Source: McNemar 1947, "Note on the sampling error of the difference between correlated proportions or percentages",
    Psychometrika 12, pages 153-157; in its exact form a binomial test with p = 1/2 of the discordant pairs.
    """
    discordant, fewer = first_only + second_only, min(first_only, second_only)
    tail = sum(math.comb(discordant, count) for count in range(fewer + 1))
    return min(1.0, tail / 2 ** (discordant - 1)) if discordant else 1.0


def _resampled_means(values_N: Floats, draw: np.random.Generator, resamples: int) -> Floats:
    count = len(values_N)
    return np.array([values_N[draw.integers(count, size=count)].mean() for _ in range(resamples)])
