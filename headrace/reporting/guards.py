"""The section on alarms, shut environments and refused writes, in words."""

from collections.abc import Iterator

from headrace.reporting.folds.guards import rate_text
from headrace.reporting.grids import Grid
from headrace.reporting.plaintext import one_line
from headrace.reporting.report import RunReport


def guards(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    """Lines of the section."""
    found = report.guards
    yield from (rate_text(alarm) for alarm in found.alarms)
    if not found.alarms:
        yield f"no rate of failures or missing verdicts rose, in {found.watched} strata with attempts enough to tell"
    for breaker in found.breakers:
        end = ", and is at the end" if breaker.is_shut else ""
        yield f"environment {one_line(breaker.environment)} was shut {breaker.openings} times, {breaker.shut_s:.1f} s{end}"
    kinds = ", ".join(f"{count} by the {where}" for where, count in found.refused.items())
    yield f"refused late writes: {sum(found.refused.values())}" + (f" ({kinds})" if kinds else "")
