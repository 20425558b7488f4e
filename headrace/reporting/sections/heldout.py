"""Success on the held-out tasks as grids: every round, and the last one by difficulty and family."""

from collections.abc import Iterator

from headrace.reporting.folds.heldout import Round
from headrace.reporting.grids import Grid, interval, thinned
from headrace.reporting.plaintext import one_line
from headrace.reporting.quantities import ABSENT, duration, percent
from headrace.reporting.report import RunReport


def held_out(report: RunReport, is_full: bool) -> Iterator[str | Grid]:
    """Rounds by temperature and version, then strata of the last rounds."""
    found = report.held_out
    if not found.rounds:
        yield f"{ABSENT} no held-out round was completed"
        return
    shown = [
        item for temperature in found.temperatures for item in thinned(found.at(temperature), None if is_full else 3)
    ]
    yield Grid(
        ("temperature", "version", "success", "95% interval", "episodes", "unscored", "round took"),
        tuple(_round(item) for item in shown),
    )
    last = [found.at(temperature)[-1] for temperature in found.temperatures]
    names = sorted({("difficulty", s.name) for r in last for s in r.difficulties}) + sorted(
        {("family", s.name) for r in last for s in r.families}
    )
    yield Grid(
        ("last round by", "", *(f"temperature {item.temperature:g}" for item in last)),
        tuple((kind, one_line(name, 40), *(_stratum_rate(item, kind, name) for item in last)) for kind, name in names),
        left=2,
    )


def _round(item: Round) -> tuple[str, ...]:
    rate = item.overall
    return (
        f"{item.temperature:g}",
        str(item.version),
        percent(rate.rate),
        interval(rate),
        f"{rate.successes}/{rate.graded}",
        str(item.unscored),
        duration(item.wall_s),
    )


def _stratum_rate(item: Round, kind: str, name: str) -> str:
    found = {s.name: s.rate for s in (item.difficulties if kind == "difficulty" else item.families)}.get(name)
    if found is None:
        return ABSENT
    return f"{percent(found.rate)} ({found.successes}/{found.graded}), {interval(found)}"
