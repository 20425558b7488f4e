"""The section on alarms, shut environments and refusals, in words."""

from collections.abc import Iterator, Mapping

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
    yield _counted("refused late writes", "by", found.refused)
    yield _counted("refused answers", "of", found.answers)


def _counted(what: str, preposition: str, counts: Mapping[str, int]) -> str:
    kinds = ", ".join(f"{count} {preposition} the {name}" for name, count in counts.items())
    return f"{what}: {sum(counts.values())}" + (f" ({kinds})" if kinds else "")
