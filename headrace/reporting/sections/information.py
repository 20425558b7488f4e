"""Effective training information as text: how much, for what it cost, and which difficulties it came from."""

from collections.abc import Iterator

from headrace.reporting.grids import Grid, per_resource
from headrace.reporting.plaintext import one_line
from headrace.reporting.quantities import duration, number, percent
from headrace.reporting.report import RunReport


def information(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    """Totals and costs, the grid by difficulty, and what its words mean."""
    info = report.information
    yield f"{number(info.total)} in {duration(info.hours * 3600)}: {number(info.per_hour)} per hour" + "".join(
        f", {number(item.information_per_hour)} per {per_resource(item.name)} ({number(item.hours)} used)"
        for item in info.resources
    )
    yield (
        f"environment CPU {duration(info.environment_cpu_s)}, trainer compute {duration(info.trainer_compute_s)}; trained "
        f"groups that count nothing: {info.duplicate_groups} duplicates, {info.unweighted_groups} without weights"
    )
    if info.strata:
        yield Grid(
            ("difficulty", "groups", "information", "on offer", "retention", "unknown", "flips", "kappa"),
            tuple(
                (
                    one_line(row.difficulty, 30),
                    str(row.groups),
                    number(row.trained),
                    number(row.offered),
                    percent(row.retention),
                    f"{row.unknown_groups:,}",
                    percent(row.flip_rate),
                    "1, assumed" if row.flip_rate is None else number(row.kappa),
                )
                for row in info.strata
            ),
        )
    if info.regrades:
        flips = f"{info.disputes} of {info.regrades} repeated gradings differed"
    else:
        flips = "not measured, since no transcript was graded twice; kappa is assumed to be 1"
    yield (
        "Information: of trained groups, reward variance against its largest value, times members, times the effective "
        "sample size share of the difficulty in the batch, times kappa. On offer: of all groups decided; retention is "
        f"their ratio. Kappa: (1 - 2 x flip rate) squared. Verdict flips: {flips}. Unknown: groups rejected with fewer "
        "than two rewards, so nobody knows what they had to offer."
    )
