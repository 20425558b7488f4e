"""Updates as a grid: reward, staleness, weights of the correction and durations of each."""

from collections.abc import Iterator

from headrace.reporting.grids import Grid, thinned
from headrace.reporting.quantities import ABSENT, duration, number, percent
from headrace.reporting.report import RunReport


def updates(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    """A row per update, extremes over the run, and what its words mean."""
    found = report.updates
    if not found.updates:
        yield f"{ABSENT} no update was made"
        return
    yield Grid(
        (
            "update",
            "reward",
            "lag",
            "mean lag",
            "span",
            "ESS",
            "weight",
            "diff",
            "KL to last",
            "train",
            "publish",
            "standstill",
        ),
        tuple(
            (
                str(item.update),
                number(item.mean_reward),
                number(item.oldest_lag),
                number(item.mean_lag),
                number(item.max_span),
                number(item.ess_fraction),
                number(item.mean_weight),
                number(item.mismatch, 2),
                number(item.kl_to_previous, 2),
                duration(item.train_s),
                duration(item.publish_s),
                percent(item.standstill_share),
            )
            for item in thinned(found.updates, None if is_full else 8)
        ),
    )
    yield (
        f"engine/trainer log-prob difference at most {number(found.largest_mismatch, 2)} nats on fresh tokens; lag at "
        f"most {number(found.largest_lag)} updates (p95 {number(found.lag_p95)}, token-weighted mean "
        f"{number(found.mean_lag)}); span at most {number(found.largest_span)}; smallest ESS fraction "
        f"{number(found.smallest_ess)}; {number(found.rows_per_episode)} rows per episode"
    )
    if found.old_cache_tokens:
        yield (
            f"{found.old_cache_tokens:,} trained tokens saw a cache that an older version had a part in; those of the "
            f"base version differ by up to {number(found.old_cache_difference, 2)} nats and are held to no bound"
        )
    yield (
        "lag: updates between the oldest trained token and the gradient; span: versions inside one trajectory; ESS: "
        "effective sample size of raw sequence weights over their count; weight: their mean; diff: largest log-prob "
        "difference of engine and trainer under the same weights, nats; KL to last: of the new policy to the one before, "
        "nats per token; train: selection to optimizer step; publish: from there until the engine serves it; "
        "standstill: share of both in which loading, canary and switch kept the engine from sampling."
    )
