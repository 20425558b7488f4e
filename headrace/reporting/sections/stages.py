"""Waiting per stage as grids, with Little's law beside it."""

from collections.abc import Iterator

from headrace.reporting.grids import Grid
from headrace.reporting.quantities import duration, number, percent
from headrace.reporting.report import RunReport


def stages(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    """Waits, the law's residuals, and what its words mean."""
    found = report.stages
    yield Grid(
        ("stage", "passed", "inside", "mean", "p50", "p95"),
        tuple(
            (
                row.stage,
                f"{row.left:,} {row.unit}",
                str(row.inside),
                duration(row.mean_s),
                duration(row.p50_s),
                duration(row.p95_s),
            )
            for row in found.waits
        ),
    )
    if found.engine:
        yield Grid(
            ("engine", "turns", "prefilled", "in", "sampled", "in"),
            tuple(
                (
                    row.purpose,
                    f"{row.turns:,}",
                    f"{row.prefill_tokens:,} tokens",
                    duration(row.prefill_s),
                    f"{row.sampled_tokens:,} tokens",
                    duration(row.decode_s),
                )
                for row in found.engine
            ),
        )
    yield Grid(
        ("Little's law", "λ", "W", "L", "λW", "residual", ""),
        tuple(
            (
                row.stage,
                f"{number(row.arrival_rate)} /s",
                duration(row.mean_wait_s),
                number(row.measured),
                number(row.expected),
                percent(row.residual),
                "" if row.is_stationary else "not stationary",
            )
            for row in found.little
        ),
    )
    yield (
        "engine: seconds of its passes; the rest of generation is waiting for the passes of others. inside: still there at "
        "the end. L is the counted mean number inside, λ arrivals, W the mean stay of what left, from "
        f"{duration(found.window_s[0])} to {duration(found.window_s[1])}; residual: (L - λW) / L. A stay that only partly "
        "lies in that time counts in L by its part and in λW whole or not at all, so a few long stays, as of publication, "
        "leave a residual; not stationary: arrivals and departures differ by more than 5%. Quantiles are exact."
    )
