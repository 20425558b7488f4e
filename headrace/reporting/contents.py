"""The report's sections in their order, and its headline, for a terminal and for a page alike."""

from collections.abc import Callable, Iterator

from headrace.reporting.grids import Grid, Section
from headrace.reporting.plaintext import one_line
from headrace.reporting.quantities import ABSENT, duration, number
from headrace.reporting.report import RunReport
from headrace.reporting.sections.claims import claims
from headrace.reporting.sections.flow import flow
from headrace.reporting.sections.funnel import funnel
from headrace.reporting.sections.guards import guards
from headrace.reporting.sections.heldout import held_out
from headrace.reporting.sections.information import information
from headrace.reporting.sections.learning import learning
from headrace.reporting.sections.limits import limits
from headrace.reporting.sections.recovery import recoveries
from headrace.reporting.sections.slowdown import slowdown
from headrace.reporting.sections.stages import stages
from headrace.reporting.sections.strata import strata
from headrace.reporting.sections.updates import updates
from headrace.reporting.sections.workers import workers


def sections(report: RunReport, *, is_full: bool) -> tuple[Section, ...]:
    """All sections; without `is_full` long grids are thinned out to what fits a screen."""
    builders: tuple[tuple[str, str, Callable[[RunReport, bool], Iterator[str | Grid]]], ...] = (
        ("held-out", "Held-out success: tasks that never train, 95% Wilson intervals", held_out),
        ("information", "Effective training information, in effective trajectories", information),
        ("funnel", "Stage funnel", funnel),
        ("strata", "Training groups by difficulty, family, length and duration", strata),
        ("stages", "Waiting per stage, and Little's law", stages),
        ("slowdown", "Slowdown by length of the trajectory, from waiting for a slot", slowdown),
        ("flow", "Flow", flow),
        ("updates", "Updates", updates),
        ("signal", "Learning signal", learning),
        ("recovery", "Checkpoints and resumes", recoveries),
        ("workers", "Where the workers' time went, and copies of weights", workers),
        ("limits", "Timeouts and other limits", limits),
        ("guards", "Alarms, shut environments and refusals", guards),
        ("claims", "The environment's claim against the grader's verdict, in episodes", claims),
    )
    return tuple(Section(name, title, tuple(build(report, is_full))) for name, title, build in builders)


def headline(report: RunReport) -> list[str]:
    """What the run was, in a few lines."""
    facts = report.facts
    used = ", ".join(f"{number(amount)} {one_line(name)}" for name, amount in facts.resources.items()) or ABSENT
    planned = ABSENT if facts.updates_planned is None else str(facts.updates_planned)
    seed = ABSENT if facts.seed is None else str(facts.seed)
    lines = [
        f"{one_line(facts.ending or 'no end recorded')}: {facts.updates_done}/{planned} updates in "
        f"{duration(facts.wall_s)} on {used}",
        f"runtime {one_line(facts.runtime)}  seed {seed}  {one_line(facts.wall_clock)}".rstrip(),
    ]
    lines += [f"{one_line(name)}: {one_line(note)}" for name, note in facts.notes.items()]
    if facts.runtime == "simulated":
        lines.append("Simulated: these figures show scheduling behaviour, not hardware.")
    if facts.starts > 1:
        lines.append(f"{facts.starts} processes worked on this run, one after the other.")
    return lines
