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
from collections.abc import Sequence
from typing import assert_never

import numpy as np
import numpy.typing as npt

from headrace.records import learning as named
from headrace.records.learning import Correction, tag_of

Array = npt.NDArray[np.float64]
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

    weights_N: Array
    is_kept_N: Mask
    is_counted_N: Mask
    removed_tokens: dict[str, int]
    removed_rows: dict[str, int]
    truncated_tokens: dict[str, int]
    invalid_rows: int


def token_weights(log_ratio_N: Array) -> Array:
    """Exp of each log-ratio within the safety bound; exactly 0 for -inf."""
    return np.where(np.isneginf(log_ratio_N), 0.0, np.exp(np.clip(log_ratio_N, -SAFETY_BOUND, SAFETY_BOUND)))


def sequence_log_ratios(log_ratio_N: Array, rows_N: Rows, num_rows: int) -> Array:
    """Sum over the tokens of each row, [B]; 0 for a row without any."""
    sums_B = np.bincount(rows_N, weights=np.where(np.isneginf(log_ratio_N), 0.0, log_ratio_N), minlength=num_rows)
    return np.where(np.bincount(rows_N, weights=np.isneginf(log_ratio_N), minlength=num_rows) > 0, -np.inf, sums_B)


def sequence_weights(log_ratio_N: Array, rows_N: Rows, num_rows: int) -> Array:
    """Product of the token ratios of each row, [B]; exact for an outcome reward, if the supports agree.

    Source: Precup et al. 2000, "Eligibility traces for off-policy policy evaluation", section 3.
    """
    return token_weights(sequence_log_ratios(log_ratio_N, rows_N, num_rows))


def geometric_weights(log_ratio_N: Array, rows_N: Rows, num_rows: int) -> Array:
    """Geometric mean of the token ratios of each row, [B]. Over many tokens it hides one that is far off."""
    counts_B = np.maximum(np.bincount(rows_N, minlength=num_rows), 1)
    return token_weights(sequence_log_ratios(log_ratio_N, rows_N, num_rows) / counts_B)


def invalid_rows(log_ratio_N: Array, rows_N: Rows, num_rows: int) -> Mask:
    """Rows that hold a ratio which is NaN or +inf: behaviour and policy cannot both be right about them, [B]."""
    is_bad_N = np.isnan(log_ratio_N) | np.isposinf(log_ratio_N)
    return np.bincount(rows_N, weights=is_bad_N, minlength=num_rows) > 0


def second_moment_mask(log_ratio_N: Array, bound: float) -> Mask:
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
    """One correction: factor of each token, which stay, and how many were cut to a bound."""

    weights_N: Array
    is_kept_N: Mask
    num_truncated: int = 0


@dataclasses.dataclass(frozen=True)
class _Ratios:
    """A batch of log-ratios, with what several corrections need of it."""

    log_N: Array
    rows_N: Rows
    num_rows: int
    advantages_N: Array

    @property
    def token_N(self) -> Array:
        return token_weights(self.log_N)

    def per_token(self, values_B: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The row's value at each of its tokens."""
        return values_B[self.rows_N]

    def geometric_B(self) -> Array:
        return geometric_weights(self.log_N, self.rows_N, self.num_rows)

    def sequence_B(self) -> Array:
        return sequence_weights(self.log_N, self.rows_N, self.num_rows)

    def smallest_B(self) -> Array:
        """Smallest token ratio of each row; 1 for a row without any."""
        smallest_B = np.full(self.num_rows, np.inf)
        np.minimum.at(smallest_B, self.rows_N, self.token_N)
        return np.where(np.isinf(smallest_B), 1.0, smallest_B)


def correct(
    corrections: Sequence[Correction], log_ratio_N: Array, rows_N: Rows, *, num_rows: int, advantages_N: Array
) -> Corrected:
    """Weights and masks of all corrections together.

    Args:
        corrections: in any order.
        log_ratio_N: log of old over behaviour of each trained token, float64; -inf for a token the policy never takes.
        rows_N: row of each token, rising.
        num_rows: number of rows.
        advantages_N: advantage of each token; only its sign is read.
    """
    is_bad_B = invalid_rows(log_ratio_N, rows_N, num_rows)
    is_valid_N = ~is_bad_B[rows_N]
    ratios = _Ratios(np.where(is_valid_N, log_ratio_N, 0.0), rows_N, num_rows, advantages_N)
    weights_N, is_kept_N, is_counted_N = is_valid_N.astype(np.float64), is_valid_N.copy(), is_valid_N.copy()
    removed_tokens: dict[str, int] = {}
    removed_rows: dict[str, int] = {}
    truncated: dict[str, int] = {}
    for correction in corrections:
        effect, name = _effect(correction, ratios), tag_of(correction)
        weights_N = weights_N * np.where(effect.is_kept_N, effect.weights_N, 0.0)
        is_kept_N &= effect.is_kept_N
        if isinstance(correction, named.MASKING):
            if correction.denominator == "kept":
                is_counted_N &= effect.is_kept_N
            removed_tokens[name] = int((is_valid_N & ~effect.is_kept_N).sum())
            removed_rows[name] = _emptied(effect.is_kept_N, is_valid_N, rows_N, num_rows)
        if effect.num_truncated or isinstance(correction, (named.TokenTis, named.SequenceTis)):
            truncated[name] = effect.num_truncated
    return Corrected(
        weights_N, is_kept_N, is_counted_N, removed_tokens, removed_rows, truncated, invalid_rows=int(is_bad_B.sum())
    )


def _emptied(is_kept_N: Mask, is_valid_N: Mask, rows_N: Rows, num_rows: int) -> int:
    before_B = np.bincount(rows_N, weights=is_valid_N, minlength=num_rows)
    after_B = np.bincount(rows_N, weights=is_valid_N & is_kept_N, minlength=num_rows)
    return int(((before_B > 0) & (after_B == 0)).sum())


def _effect(correction: Correction, ratios: _Ratios) -> _Effect:
    """What the correction alone does."""
    ones_N, all_N = np.ones(len(ratios.log_N)), np.ones(len(ratios.log_N), dtype=np.bool_)
    match correction:
        case named.NoCorrection():
            return _Effect(ones_N, all_N)
        case named.TokenTis(bound=bound):
            return _Effect(np.minimum(ratios.token_N, bound), all_N, int((ratios.token_N > bound).sum()))
        case named.SequenceTis(bound=bound):
            raw_N = ratios.sequence_B()[ratios.rows_N]
            return _Effect(np.minimum(raw_N, bound), all_N, int((raw_N > bound).sum()))
        case named.TokenMis(bound=bound):
            return _Effect(ratios.token_N, ratios.token_N <= bound)
        case named.SequenceMis(bound=bound):
            raw_N = ratios.sequence_B()[ratios.rows_N]
            return _Effect(raw_N, raw_N <= bound)
        case named.IcePop(low=low, high=high):
            return _Effect(ratios.token_N, (ratios.token_N >= low) & (ratios.token_N <= high))
        case named.M2po(bound=bound):
            return _Effect(ones_N, second_moment_mask(ratios.log_N, bound))
        case _:
            return _sequence_mask(correction, ratios)


def _sequence_mask(
    correction: named.SequenceMaskTis | named.GeometricMask | named.TokenVeto | named.Opsm, ratios: _Ratios
) -> _Effect:
    """Corrections that keep or remove whole sequences."""
    ones_N = np.ones(len(ratios.log_N))
    match correction:
        case named.SequenceMaskTis(low=low, high=high):
            geometric_B = ratios.geometric_B()
            return _Effect(ratios.token_N, ((geometric_B >= low) & (geometric_B <= high))[ratios.rows_N])
        case named.GeometricMask(low=low, high=high, veto=veto):
            geometric_B = ratios.geometric_B()
            is_kept_B = (geometric_B >= low) & (geometric_B <= high)
            if veto is not None:
                is_kept_B &= ratios.smallest_B() >= veto
            return _Effect(ones_N, is_kept_B[ratios.rows_N])
        case named.TokenVeto(bound=bound):
            return _Effect(ones_N, (ratios.smallest_B() >= bound)[ratios.rows_N])
        case named.Opsm(bound=bound):
            counts_B = np.maximum(np.bincount(ratios.rows_N, minlength=ratios.num_rows), 1)
            distance_B = -sequence_log_ratios(ratios.log_N, ratios.rows_N, ratios.num_rows) / counts_B
            return _Effect(ones_N, ~((ratios.advantages_N < 0) & (distance_B[ratios.rows_N] > bound)))
        case _ as never:
            assert_never(never)
