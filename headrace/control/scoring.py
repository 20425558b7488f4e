"""What scoring and updating said of a batch, summed up over all rows and by difficulty.

Invariant: figures are of raw weights, before any correction; rows are joined by (transcript, path), never by position. A
weight is an episode's: rows of one that forked are factors of it.
"""

from collections.abc import Iterable, Mapping, Sequence

from headrace.algorithms.diagnostics import weight_figures
from headrace.records.batch import BatchRow
from headrace.records.ids import Address
from headrace.records.update import (
    BatchScored,
    RowScore,
    RowUpdate,
    SignalFigures,
    StratumScored,
    StratumUpdate,
    TokenCounts,
)


def batch_scored(
    update: int,
    rows: Sequence[BatchRow],
    scores: Sequence[RowScore],
    difficulties: Mapping[Address, str],
    *,
    whole: SignalFigures,
) -> BatchScored:
    """Trainer against engine over the batch.

    Args:
        update: its number.
        rows: of the batch, at least one.
        scores: of each row, in the same order.
        difficulties: stratum of each transcript.
        whole: `signal_figures` of the scores.
    """
    by_stratum: dict[str, list[RowScore]] = {}
    for score in scores:
        by_stratum.setdefault(difficulties[score.transcript], []).append(score)
    again = [score for row, score in zip(rows, scores, strict=True) if row.use > 1]
    return BatchScored(
        update=update,
        rows=whole.rows,
        mismatch=whole.mismatch,
        log_ratio_abs_max=max(score.log_ratio_abs_max for score in scores),
        ess_fraction=whole.ess_fraction,
        mean_weight=whole.mean_weight,
        kl=whole.kl_k1,
        figures=whole,
        strata=tuple(
            StratumScored(name, whole if len(part) == len(scores) else signal_figures(part))
            for name, part in sorted(by_stratum.items())
        ),
        replayed=signal_figures(again) if again else None,
    )


def signal_figures(scores: Sequence[RowScore]) -> SignalFigures:
    """The figures of at least one row."""
    by_episode: dict[Address, float] = {}
    for score in scores:
        by_episode[score.transcript] = by_episode.get(score.transcript, 0.0) + score.log_ratio_sum
    logs_E = list(by_episode.values())
    tokens = sum(score.num_tokens for score in scores)
    weights = weight_figures(logs_E)
    mean, ends = weights.mean, weights.tail
    return SignalFigures(
        rows=len(scores),
        tokens=tokens,
        ess_fraction=weights.size.fraction,
        mean_weight=mean.mean,
        mean_weight_z=mean.z,
        p50=ends.p50,
        p95=ends.p95,
        p99=ends.p99,
        maximum=ends.maximum,
        largest_share=ends.largest_share,
        k_hat=weights.k_hat,
        kl_k1=-sum(logs_E) / max(1, tokens),
        kl_k2=sum(score.k2_sum for score in scores) / max(1, tokens),
        kl_k3=sum(score.k3_sum for score in scores) / max(1, tokens),
        outside=_outside(scores, tokens),
        mismatch=_largest(score.fresh_abs_max for score in scores),
        old_cache_tokens=sum(score.old_cache_tokens for score in scores),
        old_cache_difference=_largest(score.old_cache_abs_max for score in scores),
    )


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _outside(scores: Sequence[RowScore], tokens: int) -> float | None:
    counts = [score.outside for score in scores if score.outside is not None]
    return sum(counts) / max(1, tokens) if len(counts) == len(scores) else None


def stratum_updates(rows: Sequence[RowUpdate], difficulties: Mapping[Address, str]) -> tuple[StratumUpdate, ...]:
    """Token counts by difficulty, in order of name."""
    totals: dict[str, TokenCounts] = {}
    for row in rows:
        name = difficulties[row.transcript]
        totals[name] = totals.get(name, TokenCounts()) + row.counts
    return tuple(StratumUpdate(name, counts) for name, counts in sorted(totals.items()))
