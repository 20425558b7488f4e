"""`explore`."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.commands import Commands, add_command

if TYPE_CHECKING:
    from headrace.planning.explorer.cases import Case

_TEXT = """\
Sweeps random faults and interleavings over small simulated runs. Each seed stands for one run of a few groups: its world
(mode, staleness, what its actions do to the world), the order in which ready callbacks run, and what happens to it. The
control process dies at an await on a disk or on a network port, and another one goes on from the journal; calls are
refused, lost, delayed, delivered twice; workers crash; commits fail. Consecutive seeds walk through all kill points, one
after the other. Every law (C1 to C14) is checked on every log, some seeds are run twice and have to give the same log, and
a sweep of 1,000 seeds or more has to have been at every kill point and to have taken every way of recovery (C15).

A failure is shrunk, first its faults, then its size, and comes with the one command that replays it. The exit status is 0
when every law holds, 1 when one is broken, 2 for wrong usage. It simulates: nothing here is a statement about hardware."""


def add_commands(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "explore",
        _TEXT,
        "headrace explore                                    200 seeds, every kind of fault\n"
        "headrace explore --seeds 10000 --json sweep.json    the long one: minutes on two cores\n"
        "headrace explore --seeds 500 --faults kill,pair     only crashes of the control process\n"
        "headrace explore --first-seed 4711 --seeds 1        one seed again\n"
        'headrace explore --case \'{"seed":7,"world":"sync"}\'  one case, as a failure prints it',
    )
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="how many seeds (default 200)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="S", help="the first one (default 0)")
    parser.add_argument(
        "--faults",
        default="all",
        metavar="NAMES",
        help="`all`, or some of kill, pair, stop, shuffle, reject, lose, delay, duplicate, crash, disk (default all)",
    )
    parser.add_argument("--workers", type=int, default=None, metavar="P", help="processes (default: one per core)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="also write the result there as JSON")
    parser.add_argument("--case", default=None, metavar="JSON", help="run this one case and show what came of it")
    parser.set_defaults(run_command=_explore)


def _explore(options: argparse.Namespace) -> int:
    from headrace.planning.explorer.cases import fault_names, parse_case
    from headrace.planning.explorer.sweep import explore
    from headrace.planning.explorer.text import render_sweep, write_sweep

    if options.case is not None:
        return _replay(parse_case(options.case))
    kinds = frozenset(fault_names() if options.faults == "all" else options.faults.split(","))
    problem = _problem(options, kinds - frozenset(fault_names()), fault_names())
    if problem:
        print(f"headrace explore: {problem}", file=sys.stderr)
        return 2
    workers = options.workers or len(os.sched_getaffinity(0))
    sweep = explore(
        options.first_seed,
        options.seeds,
        kinds,
        workers=workers,
        on_progress=lambda done, failed: _progress(done, options.seeds, failed),
    )
    print(render_sweep(sweep))
    if options.json is not None:
        write_sweep(sweep, options.json)
        print(f"wrote {options.json}")
    return 0 if sweep.is_sound else 1


def _problem(options: argparse.Namespace, unknown: frozenset[str], known: tuple[str, ...]) -> str:
    """What is wrong with the options; empty when nothing is."""
    if unknown:
        return f"--faults names {', '.join(sorted(unknown))}; there are {', '.join(known)}"
    if options.seeds < 1 or options.first_seed < 0:
        return f"--seeds is {options.seeds}, --first-seed {options.first_seed}; at least 1 and at least 0"
    if options.workers is not None and options.workers < 1:
        return f"--workers is {options.workers}; it must be at least 1"
    return ""


def _replay(case: "Case") -> int:
    from headrace.planning.explorer.judging import run_case
    from headrace.planning.explorer.text import render_found

    found = run_case(case)
    print(render_found(found))
    return 1 if found.violations else 0


def _progress(done: int, total: int, failed: int) -> None:
    """A line that is rewritten on a terminal; elsewhere one for every tenth."""
    text = f"{done}/{total} seeds, {failed} failed"
    if sys.stderr.isatty():
        print(f"\r{text}", end="" if done < total else "\n", file=sys.stderr, flush=True)
    elif done * 10 // total > (done - 25) * 10 // total or done == total:
        print(text, file=sys.stderr, flush=True)
