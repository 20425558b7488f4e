"""The environment's claim against the grader's verdict, as a grid."""

from collections.abc import Iterator

from headrace.reporting.grids import Grid
from headrace.reporting.plaintext import one_line
from headrace.reporting.quantities import percent
from headrace.reporting.report import RunReport


def claims(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    """Episodes by claim and verdict, and how often the two differ."""
    found = report.claims
    yield Grid(
        ("purpose", "claim", "verdict success", "verdict partial", "verdict failure", "no verdict", "disagree"),
        tuple(
            (
                row.purpose,
                one_line(row.claim),
                f"{row.success:,}",
                f"{row.partial:,}",
                f"{row.failure:,}",
                f"{row.absent:,}",
                f"{row.disagreements:,}",
            )
            for row in found.rows
        ),
        left=2,
    )
    yield (
        f"{found.disagreements:,} of {found.compared:,} claims of success or failure differ from the verdict "
        f"({percent(found.rate)}). Only the verdict becomes a reward; the claim is what the environment can tell without "
        "knowing the answer."
    )
