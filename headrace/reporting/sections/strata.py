"""Training groups as grids by difficulty, family, length and duration: what became of each, in which order."""

from collections.abc import Callable, Iterator

from headrace.reporting.folds.strata import StratumFate
from headrace.reporting.grids import Grid, signed
from headrace.reporting.plaintext import one_line
from headrace.reporting.quantities import duration, number, percent
from headrace.reporting.report import RunReport

_FEW = 12


def strata(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    """Fates by stratum, the mix by difficulty with its alarms, and rejections."""
    drift = {row.difficulty: row.mean_drift for row in report.order.strata}
    tables = {
        "difficulty": report.strata.difficulty,
        "family": report.strata.family,
        "length": report.strata.length,
        "duration": report.strata.duration,
    }
    rows = [(kind, row) for kind, found in tables.items() for row in found]
    ends: tuple[tuple[str, Callable[[StratumFate], int]], ...] = (
        ("filtered", lambda row: row.filtered),
        ("abandoned", lambda row: row.abandoned),
        ("cut off", lambda row: row.cut_off),
    )
    shown = [(name, get) for name, get in ends if is_full or any(get(row) for _, row in rows)]
    yield Grid(
        ("by", "stratum", "drawn", "trained", *(name for name, _ in shown), "kept", "reward", "drift"),
        tuple(
            (
                kind,
                one_line(row.stratum, 28),
                f"{row.drawn:,}",
                f"{row.trained:,}",
                *(f"{get(row):,}" for _, get in shown),
                percent(row.trained_share),
                number(row.mean_reward),
                signed(drift.get(row.stratum)) if kind == "difficulty" else "",
            )
            for kind, row in rows
        ),
        left=2,
    )
    missing = ", ".join(name for name, get in ends if not any(get(row) for _, row in rows))
    if missing:
        yield f"No group was {missing.replace(', ', ' or ')}."
    yield (
        "filtered: turned away by a rule on the data; abandoned: could not be finished; kept: trained of those decided; cut "
        "off: open when the log ends, or closed by the end of the run; drift: groups trained so many places later than "
        "their turn."
    )
    if report.order.strata:
        yield Grid(
            ("mix by difficulty", "offered", "trained", "furthest behind", "furthest ahead"),
            tuple(
                (
                    one_line(row.difficulty, 30),
                    percent(row.drawn_share),
                    percent(row.trained_share),
                    signed(row.max_drift),
                    signed(row.min_drift),
                )
                for row in report.order.strata
            ),
        )
        yield from (f"ALARM {alarm}" for alarm in report.order.alarms)
    rejections = report.strata.rejections if is_full else report.strata.rejections[:_FEW]
    if rejections:
        yield Grid(
            ("rejected as", "reason", "difficulty", "groups", "mean tokens", "mean duration", "oldest lag"),
            tuple(
                (
                    row.state,
                    one_line(row.reason, 60 if is_full else 32),
                    one_line(row.difficulty, 16),
                    f"{row.groups:,}",
                    number(row.mean_tokens),
                    duration(row.mean_duration_s),
                    number(row.oldest_lag),
                )
                for row in rejections
            ),
            left=3,
        )
