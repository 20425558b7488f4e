"""A sweep as text for people and as JSON for programs."""

import shlex
from pathlib import Path

import msgspec

from headrace.planning.explorer.cases import Case, point_name
from headrace.planning.explorer.judging import Found
from headrace.planning.explorer.sweep import COVERAGE_SEEDS, Sweep, expected_points
from headrace.simulation.faults import ENDINGS, Fault, FaultKind

_MOST_SHOWN = 5


def replay_command(case: Case) -> str:
    """The one command that runs the case again."""
    return f"headrace explore --case {shlex.quote(case.to_json())}"


def render_found(found: Found) -> str:
    """What came of one case."""
    case = found.case
    lines = [
        f"seed {case.seed}, world {case.world}: {case.updates} updates of {case.batch_groups} groups of {case.group_size}, "
        f"{'shuffled' if case.shuffle is not None else 'in order'}; {found.events} events, {found.cpu_s:.2f} CPU s",
        *(f"  fault: {describe(fault)}" for fault in case.faults),
        *(f"  process {number}: {ended}" for number, ended in enumerate(found.lives, start=1)),
        *(f"  recovery: {name}" for name in found.branches),
        *(f"  broken: {violation}" for violation in found.violations[:_MOST_SHOWN]),
        f"  log {found.head[:16]}",
    ]
    return "\n".join(lines if found.violations else [*lines, "  every law holds"])


def describe(fault: Fault) -> str:
    """A fault in words."""
    times = f" to {fault.call + fault.times - 1}" if fault.times > 1 else ""
    delay = f", {fault.delay_s:g} s" if fault.delay_s else ""
    if fault.kind in ENDINGS:
        verb = "is stopped" if fault.kind is FaultKind.STOP else "dies"
        return f"the process {verb} {point_name(fault)}, call {fault.call}{delay}"
    return f"{fault.kind.value} {fault.worker}.{fault.method}, call {fault.call}{times}{delay}"


def render_sweep(sweep: Sweep) -> str:
    """The tables, and for a failure the command that replays it."""
    done = f"{sweep.seeds} seeds from {sweep.first_seed}, faults {','.join(sweep.faults)}"
    cost = f"{sweep.wall_s:.1f} s with {sweep.workers} processes, {sweep.cpu_s / sweep.seeds:.3f} CPU s a seed"
    points = expected_points()
    lines = [
        f"{done}: {cost}",
        "processes of a run: " + ", ".join(f"{count} runs took {lives}" for lives, count in sweep.lives.items()),
        "faults that struck: " + ", ".join(f"{name} {count}" for name, count in sweep.kinds.items()),
        f"kill points: {len(points & sweep.points.keys())} of {len(points)} fired",
        *_missing(sorted(points - sweep.points.keys())),
        "ways of recovery, with the runs that took them:",
        *(f"  {name:<42} {count or 'never':>6}" for name, count in sweep.branches.items()),
        f"same log twice: {sweep.run_twice - len(sweep.irreproducible)} of {sweep.run_twice}",
    ]
    if sweep.seeds < COVERAGE_SEEDS:
        lines.append(f"coverage is judged from {COVERAGE_SEEDS} seeds on")
    lines += [f"not reproducible: seed {seed}" for seed in sweep.irreproducible]
    lines += [f"not covered: {item.message}" for item in sweep.uncovered]
    return "\n".join([*lines, *_failures(sweep)])


def write_sweep(sweep: Sweep, path: Path) -> None:
    """The result as JSON, failures with the command that replays each."""
    tree = msgspec.to_builtins(sweep, str_keys=True)
    tree["is_sound"] = sweep.is_sound
    tree["replay"] = [replay_command(found.case) for found in sweep.failures]
    path.write_bytes(msgspec.json.format(msgspec.json.encode(tree), indent=2) + b"\n")


def _missing(names: list[str]) -> list[str]:
    return [f"  never: {', '.join(names[:8])}{' …' if len(names) > 8 else ''}"] if names else []


def _failures(sweep: Sweep) -> list[str]:
    if not sweep.failed:
        return ["every law holds in every run" if sweep.is_sound else "every law that was judged on a single run holds"]
    first = sweep.failures[0]
    seeds = ", ".join(str(found.case.seed) for found in sweep.failures)
    return [
        f"{sweep.failed} of {sweep.seeds} seeds broke a law: {seeds}",
        "the first one, shrunk:",
        render_found(first),
        "replay it with:",
        f"  {replay_command(first.case)}",
    ]
