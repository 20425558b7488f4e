"""Corrections for data that another version or another engine sampled: weights and masks on tokens, each a value of its own.

Every correction looks at the raw log-ratio of each token, log p_old - log p_behaviour, against the version that sampled it.
They compose: weights multiply, masks meet, and each counts what it removed itself. What each supposes of the supports,
and whether it changes the denominator, is in `FACTS`, which the report prints.

Invariant: a token that one correction removed has weight 0 whatever the others say. A token of probability 0 under the
policy has weight 0, and so has its sequence; a ratio that is not a number removes the whole sequence and is counted,
instead of becoming weight 1. All is computed over the whole batch, so no cut into micro-batches changes it.

Dimensions: N trained tokens of all rows in order, B rows.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt

from headrace.records.learning import corrections as named
from headrace.records.learning.choice import tag_of
from headrace.records.learning.corrections import Correction

Array = npt.NDArray[np.float64]
Values = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]

SAFETY_BOUND = 20.0
"""Log-weights are held in [-20, 20] before the exponential: beyond it a weight says nothing but "far away"."""


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a correction supposes and does.

    Attributes:
        support: the condition under which its weight is what it says.
        bias: what is left wrong even then.
        removes: `tokens`, `sequences` or `nothing`.
    """

    support: str
    bias: str
    removes: str


_SHARED = "behaviour gives positive probability wherever the policy does; truncated sampling breaks it"
_REGION = "none is needed where it removes, shared support where it keeps"
FACTS: dict[str, Facts] = {
    "none": Facts("behaviour equals the policy", "all of the difference between the two", "nothing"),
    "token_tis": Facts(
        _SHARED, "other tokens of the sequence are not weighed; weights above the bound are cut", "nothing"
    ),
    "sequence_tis": Facts(_SHARED, "weights above the bound are cut; exact without a cut", "nothing"),
    "token_mis": Facts(_REGION, "other tokens are not weighed; tokens above the bound are lost", "tokens"),
    "sequence_mis": Facts(_REGION, "sequences above the bound are lost; exact where none is", "sequences"),
    "icepop": Facts(_REGION, "other tokens are not weighed; tokens outside are lost", "tokens"),
    "sequence_mask_tis": Facts(_REGION, "token weights inside kept sequences; the others are lost", "sequences"),
    "geometric_mask": Facts(
        _REGION, "kept sequences are not weighed; the geometric mean hides single tokens", "sequences"
    ),
    "token_veto": Facts(_REGION, "kept sequences are not weighed", "sequences"),
    "opsm": Facts(_REGION, "kept sequences are not weighed; failures far from the policy are lost", "sequences"),
    "m2po": Facts(_REGION, "kept tokens are not weighed; the tokens furthest away are lost", "tokens"),
}


@dataclasses.dataclass(frozen=True)
class Corrected:
    """What the corrections make of a batch.

    Attributes:
        weights_N: factor of each token's loss, without gradient; 0 where removed.
        is_kept_N: False where any correction removed the token.
        is_counted_N: True where the token counts in the loss's denominators.
        removed_tokens: by the correction that removes them; one token may be in several.
        removed_rows: rows that lost every token, by correction.
        truncated_tokens: tokens whose weight was cut to a bound, by correction.
        invalid_rows: rows removed for a ratio that is no number.
    """

    weights_N: Values
    is_kept_N: Mask
    is_counted_N: Mask
    removed_tokens: dict[str, int]
    removed_rows: dict[str, int]
    truncated_tokens: dict[str, int]
    invalid_rows: int


def token_weights(log_ratio_N: Values) -> Values:
    """Exp of each log-ratio within the safety bound; exactly 0 for -inf."""
    weights_N = np.exp(np.clip(log_ratio_N, -SAFETY_BOUND, SAFETY_BOUND))
    if log_ratio_N.size and log_ratio_N.min() == -np.inf:
        weights_N[np.isneginf(log_ratio_N)] = 0.0
    return weights_N


def interpolated_logprobs(behavior_N: Values, policy_N: Values, share_N: Values) -> Values:
    """Log of the mixture (1 - share) behaviour + share policy at each token: between the two, and a probability.

    With a share of lag / (lag + 1) it stands where a policy one version back would if versions moved evenly.

    Example: log-probs -1.2 and -0.8 with share 0.75: -0.886, above -0.9 of the mean of logs.

    Source: it stands in for the proximal policy of Hilton et al. 2022, arXiv:2110.00641, section 3.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.logaddexp(np.log1p(-share_N) + behavior_N, np.log(share_N) + policy_N)


def _summed(values_N: Values, counts_B: Rows) -> Array:
    """Sums of the rows in float64, [B], whatever the precision of the values."""
    return _reduced(functools.partial(np.add.reduceat, dtype=np.float64), values_N, counts_B, np.float64(0.0))


def _reduced(reduceat: Callable[..., Any], values_N: npt.NDArray[Any], counts_B: Rows, empty: Any) -> npt.NDArray[Any]:
    """The values of each row reduced, [B]; `empty` for a row without any. Rows lie end to end."""
    has_any_B = counts_B > 0
    starts_b = (np.cumsum(counts_B) - counts_B)[has_any_B]
    found_B = np.full(len(counts_B), empty)
    if len(starts_b):
        found_B[has_any_B] = reduceat(values_N, starts_b)
    return found_B


def invalid_rows(log_ratio_N: Values, rows_N: Rows, num_rows: int) -> Mask:
    """Rows that hold a ratio which is NaN or +inf: behaviour and policy cannot both be right about them, [B]."""
    # NaN and +inf are the two values that are not below +inf.
    return _reduced(np.logical_or.reduceat, ~(log_ratio_N < np.inf), np.bincount(rows_N, minlength=num_rows), False)


def second_moment_mask(log_ratio_N: Values, bound: float) -> Mask:
    """True for the tokens that stay once the largest squared log-ratios are dropped until the mean of the rest < bound.

    Source: M2PO, Zheng et al. 2025, arXiv:2510.01161, algorithm 1.
    """
    squares_N = np.square(log_ratio_N)
    order_N = np.argsort(squares_N, kind="stable")
    means_N = np.cumsum(squares_N[order_N]) / np.arange(1, len(order_N) + 1)
    num_kept = int(np.searchsorted(means_N, bound, side="left"))  # running means of sorted values never fall
    is_kept_N = np.zeros(len(order_N), dtype=np.bool_)
    is_kept_N[order_N[:num_kept]] = True
    return is_kept_N


@dataclasses.dataclass(frozen=True)
class _Effect:
    """One correction: factor of each token (None is 1), which stay (None is all), how many were cut to a bound."""

    weights_N: Values | None = None
    is_kept_N: Mask | None = None
    num_truncated: int = 0


class _Ratios:
    """A batch of log-ratios, with what several corrections need of it, made at most once."""

    def __init__(self, log_N: Values, counts_B: Rows, advantages_N: npt.NDArray[np.floating]) -> None:
        self.log_N = log_N
        self.counts_B = counts_B
        self.advantages_N = advantages_N

    def spread(self, values_B: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The row's value at each of its tokens."""
        return np.repeat(values_B, self.counts_B)

    @functools.cached_property
    def token_N(self) -> Values:
        return token_weights(self.log_N)

    @functools.cached_property
    def log_sums_B(self) -> Array:
        return _summed(self.log_N, self.counts_B)

    def sequence_N(self) -> Values:
        """Product of the row's ratios, at each token; exact for an outcome reward, if the supports agree.

        Source: Precup et al. 2000, "Eligibility traces for off-policy policy evaluation", section 3.
        """
        return self.spread(token_weights(self.log_sums_B))

    def geometric_B(self) -> Array:
        """Geometric mean of the row's ratios. Over many tokens it hides one that is far off."""
        return token_weights(self.log_sums_B / np.maximum(self.counts_B, 1))

    def smallest_B(self) -> Array:
        """Smallest token ratio of each row; 1 for a row without any."""
        return token_weights(_reduced(np.minimum.reduceat, self.log_N, self.counts_B, 0.0))


def correct(
    corrections: Sequence[Correction],
    log_ratio_N: Values,
    rows_N: Rows,
    *,
    num_rows: int,
    advantages_N: npt.NDArray[np.floating],
) -> Corrected:
    """Weights and masks of all corrections together.

    Args:
        corrections: in any order.
        log_ratio_N: log of old over behaviour of each trained token; -inf for a token the policy never takes. Sums over rows
            are in float64 and weights in the precision that is given.
        rows_N: row of each token, rising.
        num_rows: number of rows.
        advantages_N: advantage of each token; only its sign is read.
    """
    counts_B = np.bincount(rows_N, minlength=num_rows)
    is_bad_B = invalid_rows(log_ratio_N, rows_N, num_rows)
    is_valid_N = np.repeat(~is_bad_B, counts_B)
    log_valid_N = np.where(is_valid_N, log_ratio_N, log_ratio_N.dtype.type(0)) if is_bad_B.any() else log_ratio_N
    ratios = _Ratios(log_valid_N, counts_B, advantages_N)
    weights_N, is_kept_N, is_counted_N = None, is_valid_N.copy(), is_valid_N.copy()
    removed_tokens: dict[str, int] = {}
    removed_rows: dict[str, int] = {}
    truncated: dict[str, int] = {}
    for correction in corrections:
        effect, name = _effect(correction, ratios), tag_of(correction)
        if effect.weights_N is not None:
            weights_N = effect.weights_N if weights_N is None else weights_N * effect.weights_N
        if effect.is_kept_N is not None:
            is_kept_N &= effect.is_kept_N
        if isinstance(correction, named.MASKING) and effect.is_kept_N is not None:
            if correction.denominator == "kept":
                is_counted_N &= effect.is_kept_N
            removed_tokens[name] = int(np.count_nonzero(is_valid_N & ~effect.is_kept_N))
            is_left_B = _reduced(np.logical_or.reduceat, effect.is_kept_N, counts_B, False)
            removed_rows[name] = int(((counts_B > 0) & ~is_bad_B & ~is_left_B).sum())
        if isinstance(correction, (named.TokenTis, named.SequenceTis)):
            truncated[name] = effect.num_truncated
    factors_N = is_kept_N.astype(log_ratio_N.dtype) if weights_N is None else weights_N * is_kept_N
    return Corrected(
        factors_N, is_kept_N, is_counted_N, removed_tokens, removed_rows, truncated, invalid_rows=int(is_bad_B.sum())
    )


def _effect(correction: Correction, ratios: _Ratios) -> _Effect:
    """What the correction alone does."""
    match correction:
        case named.NoCorrection():
            return _Effect()
        case named.TokenTis(bound=bound):
            raw_N = ratios.token_N
            return _Effect(np.minimum(raw_N, bound), num_truncated=int(np.count_nonzero(raw_N > bound)))
        case named.SequenceTis(bound=bound):
            raw_N = ratios.sequence_N()
            return _Effect(np.minimum(raw_N, bound), num_truncated=int(np.count_nonzero(raw_N > bound)))
        case named.TokenMis(bound=bound):
            return _Effect(ratios.token_N, ratios.token_N <= bound)
        case named.SequenceMis(bound=bound):
            raw_N = ratios.sequence_N()
            return _Effect(raw_N, raw_N <= bound)
        case named.IcePop(low=low, high=high):
            return _Effect(ratios.token_N, (ratios.token_N >= low) & (ratios.token_N <= high))
        case named.M2po(bound=bound):
            return _Effect(is_kept_N=second_moment_mask(ratios.log_N, bound))
        case _:
            return _sequence_mask(correction, ratios)


def _sequence_mask(
    correction: named.SequenceMaskTis | named.GeometricMask | named.TokenVeto | named.Opsm, ratios: _Ratios
) -> _Effect:
    """Corrections that keep or remove whole sequences."""
    match correction:
        case named.SequenceMaskTis(low=low, high=high):
            geometric_B = ratios.geometric_B()
            return _Effect(ratios.token_N, ratios.spread((geometric_B >= low) & (geometric_B <= high)))
        case named.GeometricMask(low=low, high=high, veto=veto):
            geometric_B = ratios.geometric_B()
            is_kept_B = (geometric_B >= low) & (geometric_B <= high)
            if veto is not None:
                is_kept_B &= ratios.smallest_B() >= veto
            return _Effect(is_kept_N=ratios.spread(is_kept_B))
        case named.TokenVeto(bound=bound):
            return _Effect(is_kept_N=ratios.spread(ratios.smallest_B() >= bound))
        case named.Opsm(bound=bound):
            is_far_N = ratios.spread(-ratios.log_sums_B / np.maximum(ratios.counts_B, 1) > bound)
            return _Effect(is_kept_N=~(is_far_N & (ratios.advantages_N < 0)))
        case _ as never:
            assert_never(never)
