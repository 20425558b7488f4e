"""Where the workers' time went, and where copies of the weights lie, as grids."""

from collections.abc import Iterator

from headrace.reporting.grids import Grid
from headrace.reporting.plaintext import one_line
from headrace.reporting.quantities import duration, percent, size
from headrace.reporting.report import RunReport


def workers(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    """Shares of every worker's time by state, then the copies."""
    found = report.workers
    if found.workers:
        states = tuple(found.workers[0].states_ns)
        yield Grid(
            ("worker", *states, "sums to wall time"),
            tuple(
                (
                    one_line(row.worker),
                    *(percent(row.shares.get(state)) for state in states),
                    "yes" if row.sums_to_wall else "NO",
                )
                for row in found.workers
            ),
        )
        yield (
            f"Shares of {duration(found.wall_ns / 1e9)}. busy: at least one call is out; sync: hands weights over; "
            "unreported: before its first word."
        )
    if found.copies:
        rows = [
            (one_line(c.role), one_line(c.policy_id), one_line(c.worker), one_line(c.device), size(c.size_bytes))
            for c in found.copies
        ]
        total = ("all copies", "", "", "", size(found.weights_bytes))
        yield Grid(("copy of weights", "policy", "worker", "device", "size"), (*rows, total), left=4)
