"""The stage funnel as grids: what passed each stage, and what became of the rest."""

from collections.abc import Iterator

from headrace.reporting.grids import Grid
from headrace.reporting.plaintext import one_line
from headrace.reporting.report import RunReport


def funnel(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    """Counts by stage and by outcome, and whether tasks are conserved."""
    found = report.funnel
    yield Grid(
        ("stage", "unit", *found.purposes),
        tuple((row.stage, row.unit, *(f"{row.counts[p]:,}" for p in found.purposes)) for row in found.stages),
        left=2,
    )
    yield Grid(
        ("what happened", "", *found.purposes),
        tuple(
            (row.stage, one_line(row.reason, 60), *(f"{row.counts[p]:,}" for p in found.purposes))
            for row in found.outcomes
        ),
        left=2,
    )
    tasks, word = found.frontier, "holds" if found.is_conserved else "IS BROKEN"
    yield (
        f"drawn {tasks.drawn:,} = trained {tasks.trained:,} + filtered {tasks.filtered:,} + abandoned "
        f"{tasks.abandoned:,} + open {tasks.open:,}: {word}"
    )
