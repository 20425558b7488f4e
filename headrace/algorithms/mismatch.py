"""How far the trainer's log-probs lie from the engine's on the same tokens.

Invariant: every figure is 0 (a ratio 1) when the two agree bit for bit, so whatever is above the noise floor is real. The
direction is stated once: KL is of behaviour against trainer, since behaviour is what was sampled.

Dimensions: N trained tokens of all rows, B rows with a token.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from headrace.algorithms.diagnostics import kl_k2, kl_k3

Array = npt.NDArray[np.float64]


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


def mismatch(trainer_N: Array, behavior_N: Array, rows_N: npt.NDArray[np.int64]) -> Mismatch:
    """The figures of trained tokens, given without the masked ones.

    Args:
        trainer_N: log-probs under the trainer's weights.
        behavior_N: recorded log-probs of the distribution sampled from.
        rows_N: row of each token, rising.

    Source: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"; chi-squared:
        Cover and Thomas 2006, "Elements of information theory", section 11.3; Jensen-Shannon: Lin 1991, equation 3.9, with
        k3 terms in place of both divergences.

    Raises:
        ValueError: when there is no token.
    """
    if not trainer_N.size:
        raise ValueError("there is no token to compare")
    log_ratio_N = trainer_N - behavior_N
    _, index_N = np.unique(rows_N, return_inverse=True)
    counts_B = np.bincount(index_N)
    trainer_B = np.bincount(index_N, weights=trainer_N) / counts_B
    behavior_B = np.bincount(index_N, weights=behavior_N) / counts_B
    sums_B = np.bincount(index_N, weights=log_ratio_N)
    difference_B = behavior_B - trainer_B  # log-perplexity is minus the mean log-prob
    trainer_p_N, behavior_p_N = np.exp(trainer_N), np.exp(behavior_N)
    gap_N = np.abs(trainer_p_N - behavior_p_N)
    with np.errstate(over="ignore"):
        return Mismatch(
            kl_k1=float(-log_ratio_N.mean()),
            kl_k2=float(kl_k2(log_ratio_N).mean()),
            kl_k3=float(kl_k3(-log_ratio_N).mean()),
            mean_abs=float(np.abs(log_ratio_N).mean()),
            max_abs=float(np.abs(log_ratio_N).max()),
            mean_exp_abs=float(np.exp(np.abs(log_ratio_N)).mean()),
            behavior_perplexity=float(np.exp(-behavior_B).mean()),
            trainer_perplexity=float(np.exp(-trainer_B).mean()),
            log_perplexity_difference=float(difference_B.mean()),
            log_perplexity_abs_difference=float(np.abs(difference_B).mean()),
            perplexity_ratio=float(np.exp(difference_B).mean()),
            chi_squared_token=float(np.exp(2.0 * log_ratio_N).mean() - 1.0),
            chi_squared_sequence=float(np.exp(2.0 * sums_B).mean() - 1.0),
            jensen_shannon=_jensen_shannon(trainer_N, behavior_N),
            mean_abs_probability=float(gap_N.mean()),
            max_abs_probability=float(gap_N.max()),
            correlation=_correlation(trainer_p_N, behavior_p_N),
        )


def _jensen_shannon(trainer_N: Array, behavior_N: Array) -> float:
    """Half the mean of x - 1 - log x over trainer / mixture and behaviour / mixture, at the tokens that were sampled."""
    mixture_N = np.logaddexp(trainer_N, behavior_N) - math.log(2.0)
    halves_N = kl_k3(mixture_N - trainer_N) + kl_k3(mixture_N - behavior_N)
    return float(0.5 * halves_N.mean())


def _correlation(first_N: Array, second_N: Array) -> float:
    if np.array_equal(first_N, second_N):
        return 1.0
    first_n, second_n = first_N - first_N.mean(), second_N - second_N.mean()
    scale = float(np.sqrt((first_n**2).sum() * (second_n**2).sum()))
    return float((first_n * second_n).sum()) / scale if scale > 0 else 0.0
