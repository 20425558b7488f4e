"""`python3 -m labs.run --experiment rollout --seed 7`: synchronous waiting against asynchronous consumption.

Runs the real control plane on simulated workers under virtual time. It measures scheduling behaviour, not hardware.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.planning.experiment import Measured
    from headrace.simulation.scenario import Scenario

STATEMENT = (
    "Discrete-event simulation of the real control plane under virtual time: scheduling behaviour, not hardware.\n"
    "It starts no Ray, no GPU, no inference engine, no container and no tensor library."
)
_LEGEND = """\
steady/ks  groups trained per 1000 simulated seconds, last two thirds  lag    updates between a group's oldest token and its
bound      share of the fluid bound that keeps all tasks; *: not stationary   gradient, mean/largest
idle       share of time in which the trainer had nothing to do        wait   part of the lag after the group's last token
token lag  the lag of every trained segment, token-weighted; p95       waste  slot time whose tokens did not train"""
_SETTLED_UPDATES = 100
_QUICK_UPDATES, _QUICK_CURVE_UPDATES, _FULL_CURVE_UPDATES = 16, 16, 60


def main() -> int:
    """Exit status: 0 done, 2 wrong usage."""
    _use_environment()
    parser = argparse.ArgumentParser(
        prog="python3 -m labs.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experiment", choices=["rollout"], required=True, help="which experiment")
    parser.add_argument("--seed", type=int, default=7, help="root of every draw (default 7)")
    parser.add_argument(
        "--updates", type=int, default=None, help=f"policy updates of each cell (default {_QUICK_UPDATES})"
    )
    parser.add_argument("--full", action="store_true", help="the workload's own number of updates; many minutes")
    parser.add_argument(
        "--workload",
        "--scenario",
        default="ten_times",
        help="name of a packaged workload, a TOML file, or a run's folder, whose event log is fitted (default ten_times)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("experiments/rollout"), help="folder of page, plots, JSON and Parquet"
    )
    options = parser.parse_args()
    return _rollout(options)


def _use_environment() -> None:
    """Goes on in the project's environment when this interpreter lacks the dependencies and that one exists."""
    try:
        import msgspec  # noqa: F401
    except ModuleNotFoundError:
        own = Path(__file__).resolve().parent.parent / ".venv" / "bin" / "python"
        if not own.exists() or Path(sys.executable) == own:
            sys.exit("labs.run: the dependencies are not installed; run `make install` first")
        os.execv(own, [str(own), "-m", "labs.run", *sys.argv[1:]])  # noqa: S606


def _rollout(options: argparse.Namespace) -> int:
    from headrace.errors import HeadraceError
    from headrace.planning.experiment import run_cells
    from headrace.planning.files import write_files
    from headrace.planning.rollout import rollout_cells

    try:
        scenario = _workload(options.workload)
    except HeadraceError as error:
        print(f"labs.run: {error}", file=sys.stderr)
        return 2
    updates = scenario.updates if options.full else (_QUICK_UPDATES if options.updates is None else options.updates)
    if updates < 1:
        print(f"labs.run: --updates is {updates}; it must be at least 1", file=sys.stderr)
        return 2
    print(STATEMENT)
    print(_law(scenario, options.seed, updates), flush=True)
    begin_s = time.monotonic()
    curve_updates = _FULL_CURVE_UPDATES if options.full else min(updates, _QUICK_CURVE_UPDATES)
    cells = rollout_cells(scenario, updates, curve_updates)
    measured = run_cells(cells, options.seed, lambda done: _progress(done, len(cells)))
    print(_report(measured))
    if updates < _SETTLED_UPDATES:
        print(
            f"After {updates} updates the tasks that take longest are still running, so shares of the bound above 100% are "
            "the start of a run,\nnot its pace; `--full` shows that.\n"
        )
    facts = {
        "statement": STATEMENT,
        "command": f"python3 -m labs.run --experiment rollout --seed {options.seed} --updates {updates}",
        "workload": _law(scenario, options.seed, updates),
    }
    for line in write_files(options.out, facts, measured):
        print(f"wrote {line}")
    print(f"\n{len(cells)} cells in {time.monotonic() - begin_s:.0f} s; the same seed gives the same figures.")
    return 0


def _workload(name: str) -> "Scenario":
    """The scenario of a packaged name, a TOML file, or a run's folder."""
    from headrace.simulation.scenario import load_scenario

    path = Path(name)
    if path.is_dir():
        from headrace.planning.fit import fit_run

        return fit_run(path).scenario
    return load_scenario(path if name.endswith(".toml") else name)


def _law(scenario: "Scenario", seed: int, updates: int) -> str:
    workload = scenario.workload
    strata = ", ".join(f"{s.share:.0%} {s.name} (x{s.scale:g})" for s in workload.strata)
    return (
        f"\nWorkload `{workload.name}`: {workload.source}.\n"
        f"  difficulties: {strata}; groups of {scenario.group_size}, batches of {scenario.batch_groups} groups, "
        f"{scenario.engine.slots} slots, update {scenario.trainer.update_s.mean:g} s, {updates} updates, seed {seed}.\n"
        f"  fluid bound, all tasks kept: {1000 * scenario.fluid_groups_per_s:.0f} groups per 1000 s.\n"
    )


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done}/{total} cells", end="" if done < total else "\r", file=sys.stderr, flush=True)


def _report(measured: "Sequence[Measured]") -> str:
    from headrace.planning.rollout import CREDIT, LAG, LOSES, MODES, RULES
    from headrace.planning.tables import curve_table, losses, text_table

    lines: list[str] = []
    for section in (MODES, RULES, LAG, CREDIT, LOSES):
        chosen = [cell for cell in measured if cell.section == section]
        lines += [f"== {section}", text_table(chosen), ""]
    lines += [*losses(measured), "", "== published curve: throughput against the allowed lag, synchronous = 1"]
    for row in curve_table(measured):
        lines.append(
            f"  lag {row['allowed lag']:<10} published {row['published']:<5} simulated {row['simulated']:.2f} "
            f"({row['difference']:+.0%})"
        )
    worst = max(cell.outcome.identities.worst for cell in measured)
    lines += ["", f"identities (lag, Little, slot time): largest relative residual of any cell {worst:.1e}"]
    return "\n".join([*lines, "", _LEGEND, ""])


if __name__ == "__main__":
    sys.exit(main())
