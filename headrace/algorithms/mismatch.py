"""How far the trainer's log-probs lie from the engine's on the same tokens.

Invariant: every figure is 0 (a ratio 1) when the two agree bit for bit, so whatever is above the noise floor is real. The
direction is stated once: KL is of behaviour against trainer, since behaviour is what was sampled.

Dimensions: N trained tokens of all rows, B rows with a token.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Values = npt.NDArray[np.floating]


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """Trainer against engine, natural logs.

    Attributes:
        kl_k1: mean log(behaviour / trainer): estimates KL(behaviour, trainer); may be negative on a finite sample.
        kl_k2: half the mean square.
        kl_k3: the estimate that is never negative.
        mean_abs: mean absolute difference of log-probs.
        max_abs: largest.
        mean_exp_abs: mean of exp(absolute difference): factor by which a probability is off.
        behavior_perplexity: mean over rows.
        trainer_perplexity: mean over rows.
        log_perplexity_difference: mean over rows of trainer minus behaviour.
        log_perplexity_abs_difference: mean over rows of its size.
        perplexity_ratio: mean over rows of trainer over behaviour.
        chi_squared_token: mean squared token ratio, minus 1.
        chi_squared_sequence: mean squared sequence ratio, minus 1; inf when it leaves the range of a float.
        jensen_shannon: sample estimate from the sampled tokens alone.
        mean_abs_probability: mean absolute difference of probabilities.
        max_abs_probability: largest.
        correlation: Pearson's, of the probabilities; 1 when they agree, 0 when one of the two does not vary.
    """

    kl_k1: float
    kl_k2: float
    kl_k3: float
    mean_abs: float
    max_abs: float
    mean_exp_abs: float
    behavior_perplexity: float
    trainer_perplexity: float
    log_perplexity_difference: float
    log_perplexity_abs_difference: float
    perplexity_ratio: float
    chi_squared_token: float
    chi_squared_sequence: float
    jensen_shannon: float
    mean_abs_probability: float
    max_abs_probability: float
    correlation: float


def mismatch(trainer_N: Values, behavior_N: Values, rows_N: npt.NDArray[np.int64]) -> Mismatch:
    """The figures of trained tokens, given without the masked ones.

    Args:
        trainer_N: log-probs under the trainer's weights.
        behavior_N: recorded log-probs of the distribution sampled from.
        rows_N: row of each token, rising.

    Source: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"; chi-squared:
        Cover and Thomas 2006, "Elements of information theory", section 11.3; Jensen-Shannon: Lin 1991, equation 3.9, with
        k3 terms
        in place of both divergences.

    Raises:
        ValueError: when there is no token.
    """
    if not trainer_N.size:
        raise ValueError("there is no token to compare")
    starts_B = np.concatenate(([0], np.flatnonzero(np.diff(rows_N)) + 1))
    counts_B = np.diff(np.append(starts_B, len(rows_N)))
    behavior_B = np.add.reduceat(behavior_N, starts_B, dtype=np.float64) / counts_B
    trainer_B = np.add.reduceat(trainer_N, starts_B, dtype=np.float64) / counts_B
    difference_B = behavior_B - trainer_B  # log-perplexity is minus the mean log-prob
    sums = _Sums()
    for start in range(0, len(rows_N), _CHUNK):
        part = slice(start, start + _CHUNK)
        sums.add(trainer_N[part].astype(np.float64), behavior_N[part].astype(np.float64))
    means = {name: value / len(rows_N) for name, value in sums.totals.items()}
    with np.errstate(over="ignore"):
        return Mismatch(
            kl_k1=-means["log_ratio"],
            kl_k2=0.5 * means["square"],
            kl_k3=means["k3"],
            mean_abs=means["size"],
            max_abs=sums.largest_size,
            mean_exp_abs=means["exp_size"],
            behavior_perplexity=float(np.exp(-behavior_B).mean()),
            trainer_perplexity=float(np.exp(-trainer_B).mean()),
            log_perplexity_difference=float(difference_B.mean()),
            log_perplexity_abs_difference=float(np.abs(difference_B).mean()),
            perplexity_ratio=float(np.exp(difference_B).mean()),
            chi_squared_token=means["chi_squared"],
            chi_squared_sequence=float(np.expm1(-2.0 * difference_B * counts_B).mean()),
            jensen_shannon=means["shannon"],
            mean_abs_probability=means["gap"],
            max_abs_probability=sums.largest_gap,
            correlation=_correlation(means),
        )


_CHUNK = 1 << 14
"""Tokens at a time: what is made of them stays in the cache of one core."""


class _Sums:
    """Sums and largest values over tokens."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        self.largest_size = 0.0
        self.largest_gap = 0.0

    def add(self, trainer_n: Array, behavior_n: Array) -> None:
        """Takes more tokens."""
        log_ratio_n = trainer_n - behavior_n
        size_n = np.abs(log_ratio_n)
        p_n, q_n = np.exp(trainer_n), np.exp(behavior_n)
        gap_n = np.abs(p_n - q_n)
        with np.errstate(over="ignore"):
            change_n = np.expm1(log_ratio_n)
            parts = {
                "log_ratio": log_ratio_n,
                "size": size_n,
                "square": np.square(log_ratio_n),
                "k3": np.maximum(change_n - log_ratio_n, 0.0),
                "exp_size": np.exp(size_n),
                "chi_squared": change_n * (change_n + 2.0),
                # Half of 2 log m - log p - log q with the mixture m = (p + q) / 2: the x - 1 parts of both halves cancel.
                "shannon": np.maximum(np.log1p(0.5 * change_n) - 0.5 * log_ratio_n, 0.0),
                "gap": gap_n,
                "p": p_n,
                "q": q_n,
                "pp": p_n * p_n,
                "qq": q_n * q_n,
                "pq": p_n * q_n,
            }
        for name, values_n in parts.items():
            self.totals[name] = self.totals.get(name, 0.0) + float(values_n.sum())
        self.largest_size = max(self.largest_size, float(size_n.max()))
        self.largest_gap = max(self.largest_gap, float(gap_n.max()))


def _correlation(means: dict[str, float]) -> float:
    """Pearson's, from means; 1 when the two agree everywhere, 0 when one of them does not vary."""
    if means["gap"] == 0.0:
        return 1.0
    first, second = means["pp"] - means["p"] ** 2, means["qq"] - means["q"] ** 2
    if first <= 0.0 or second <= 0.0:
        return 0.0
    return (means["pq"] - means["p"] * means["q"]) / math.sqrt(first * second)
