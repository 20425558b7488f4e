"""What waiting for a slot cost trajectories of each length, as a grid."""

from collections.abc import Iterator

from headrace.reporting.grids import Grid
from headrace.reporting.quantities import ABSENT, duration, number
from headrace.reporting.report import RunReport


def slowdown(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    """The section's grid and what its words mean."""
    if not report.slowdowns:
        yield f"{ABSENT} no trajectory was sealed"
        return
    yield Grid(
        ("trajectories of", "number", "turns", "wait for slots", "slowdown", "p95", "largest"),
        tuple(
            (
                row.length,
                f"{row.trajectories:,}",
                number(row.mean_turns),
                duration(row.mean_wait_s),
                number(row.mean_slowdown),
                number(row.p95_slowdown),
                number(row.max_slowdown),
            )
            for row in report.slowdowns
        ),
    )
    yield (
        "slowdown: wall time of a trajectory over the same without its turns' wait for a slot of the engine; that slots "
        "share the engine's rate is not in it."
    )
