"""Timeouts and other limits that episodes reached, as a grid."""

from collections.abc import Iterator

from headrace.reporting.grids import Grid
from headrace.reporting.plaintext import one_line
from headrace.reporting.report import RunReport


def limits(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    """A row per limit that was reached."""
    if not report.limits.counts:
        yield f"none was reached in {report.limits.episodes:,} episodes"
        return
    yield Grid(
        ("set by", "limit", "count", "unit"),
        tuple((row.kind, one_line(row.name), f"{row.count:,}", row.unit) for row in report.limits.counts),
        left=2,
    )
    yield f"in {report.limits.episodes:,} sealed episodes of every purpose"
