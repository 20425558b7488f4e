"""`plan`."""

import argparse
from pathlib import Path

from headrace.cli.commands import Commands, add_command, add_runs


def add_commands(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "plan",
        "Fits a run's own event log, replays it in the simulator, and recommends a layout. Predicted stands beside "
        "measured, and the recommendation names its bottleneck and its uncertainty.",
        "headrace plan run-001\nheadrace plan run-001 --json plan.json",
    )
    parser.add_argument("run", nargs="?", default=None, help="a run's name or folder (default: the newest)")
    add_runs(parser)
    parser.add_argument("--json", type=Path, default=None, help="also write everything there as JSON")
    parser.set_defaults(run_command=_plan)


def _plan(options: argparse.Namespace) -> int:
    from headrace.planning.fit import fit_run
    from headrace.planning.plan_text import render_plan, write_plan
    from headrace.planning.whatif import plan_run
    from headrace.runtime.folders import find_run

    plan = plan_run(fit_run(find_run(options.runs, options.run)))
    print(render_plan(plan))
    if options.json is not None:
        write_plan(plan, options.json)
    return 0
