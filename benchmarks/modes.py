"""The main job in three modes, ordinary and with a slow tenth of the tasks; and the memory of a waiting episode.

Run: `python -m benchmarks.modes [--updates N] [--latency S] [--json PATH] [override …]`. Each cell is a live run of
`examples/arithmetic/train.toml` on child processes, one after the other. Every tool call waits `--latency` seconds; with the
slow tenth, the calls of a tenth of the tasks wait ten times as long. Rates are over the wall time between the first and the
last version, so the warm start and the held-out rounds at both ends are in none. The fluid bound is one update for each
stretch of the busiest resource, fitted from the run's own log; shared devices do one thing at a time.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import json
import sys
import tempfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.config import Config, load_config
from headrace.control.context import Ports
from headrace.planning.bottleneck import Demands, demands_of
from headrace.planning.fit import fit_run
from headrace.ports import Environment, Handle
from headrace.records.action import Action
from headrace.records.execution import Lease, Receipt
from headrace.reporting.report import RunReport, report_run
from headrace.runtime.local import LocalRun, run_local
from headrace.runtime.simulated import Simulation, simulate
from headrace.simulation.laws import Constant
from headrace.simulation.loop import StuckLoop
from headrace.simulation.scenario import load_scenario
from headrace.store.reader import open_reader

JOB = Path(__file__).parents[1] / "examples" / "arithmetic" / "train.toml"
MODES = {"sync": 0, "colocate_async": 1, "separate_async": 1}
LOADS = {"ordinary": 0.0, "slow tenth": 0.1}
FEW, MANY = 256, 2_048
_WORKERS = [
    tracemalloc.Filter(inclusive=False, filename_pattern=pattern)
    for pattern in ("*/headrace/simulation/*", tracemalloc.__file__)
]
"""The simulated workers: a live run holds their state in processes of its own."""
HEADINGS = ("load", "mode", "held out", "wall", "groups/s", "of the bound", "info/h", "lag", "standstill", "idle")


def job(mode: str, share: float, arguments: argparse.Namespace) -> Config:
    """The main job in one mode under one load, with held-out rounds at both ends alone."""
    tools = f'{{ tools = ["calculator"], latency_s = {arguments.latency}, slow_share = {share} }}'
    return load_config(
        JOB,
        (
            f"run.updates={arguments.updates}",
            f"evaluation.every_updates={arguments.updates}",
            "evaluation.temperatures=[1.0]",
            f"environment.options={tools}",
            f'schedule.mode="{mode}"',
            f"schedule.credit_batches={MODES[mode]}",
            *arguments.overrides,
        ),
    )


def bound_s(demands: Demands, mode: str) -> float:
    """Least seconds of an update: of the busiest resource, where shared devices are one."""
    engine, trainer = demands.decode + demands.prefill, demands.trainer
    devices = [engine + trainer + demands.switch] if mode == "colocate_async" else [engine, trainer]
    return max(*devices, demands.environment_cpu, demands.external_wait, demands.grader)


def cell(load: str, mode: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of one run."""
    config = job(mode, LOADS[load], arguments)
    folder.mkdir(parents=True)
    asyncio.run(run_local(LocalRun(config, folder)))
    with open_reader(folder) as reader:
        report = report_run(reader.events(), reader.read)
    fitted = fit_run(folder)
    demands = demands_of(fitted.scenario, fitted.cpu_s_per_episode, fitted.cores)
    times = [item.t_s for item in report.updates.updates if item.t_s is not None]
    begin_s = next(row.t_s for row in report.held_out.rounds) - next(row.wall_s for row in report.held_out.rounds)
    wall_s = times[-1] - begin_s
    groups_per_s = len(times) * config.schedule.batch_groups / wall_s
    rounds = [row.overall.rate for row in report.held_out.rounds]
    return {
        "load": load,
        "mode": mode,
        "held_out": (rounds[0], rounds[-1]),
        "wall_s": wall_s,
        "groups_per_s": groups_per_s,
        "fluid_fraction": groups_per_s * bound_s(demands, mode) / config.schedule.batch_groups,
        "demands_s": demands.table(),
        "information_per_h": report.information.total / (wall_s / 3600.0),
        "mean_lag": report.updates.mean_lag,
        "largest_lag": report.updates.largest_lag,
        "standstill_share": report.updates.standstill_share,
        "trainer_idle": report.flow.starvation,
        "turns": msgspec.to_builtins(report.turns),
        "states": _states(report),
    }


def _states(report: RunReport) -> dict[str, dict[str, float]]:
    return {
        worker.worker: {state: share for state, share in worker.shares.items() if share}
        for worker in report.workers.workers
    }


class _Waiting:
    """An environment whose calls never answer.

    Attributes:
        number: episodes that wait.
        held_bytes: memory of the control plane when the last one began to, simulated workers left out.
    """

    def __init__(self, inner: Environment, last: int) -> None:
        self._inner = inner
        self._last = last
        self.number = 0
        self.held_bytes = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def execute(self, handle: Handle, action: Action, lease: Lease, timeout_s: float) -> Receipt:
        self.number += 1
        if self.number == self._last:
            gc.collect()
            kept = tracemalloc.take_snapshot().filter_traces(_WORKERS)
            self.held_bytes = sum(trace.size for trace in kept.traces)
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody answers")


def waiting_bytes() -> float:
    """Bytes that the control plane holds for one more episode that waits for its tool."""
    seen: dict[int, _Waiting] = {}
    scenario = load_scenario("small_mixed")
    quiet = dict.fromkeys(
        ("malformed", "tool_error", "open_failure", "tool_failure", "grade_failure", "grade_invalid"), 0.0
    )
    # Everybody has a tool to wait for: what others leave behind is no episode's that waits.
    workload = msgspec.structs.replace(scenario.workload, turns=Constant(value=3.0), **quiet)
    scenario = msgspec.structs.replace(scenario, workload=workload, environment_slots=None)
    tracemalloc.start()
    for number in (FEW, MANY, FEW, MANY):  # the first two only say which call is the last one
        config = load_config(
            JOB, ("schedule.group_size=8", f"schedule.batch_groups={number // 8}", "evaluation.every_updates=0")
        )

        def adapt(ports: Ports, number: int = number) -> Ports:
            last = seen[number].number if number in seen else 0
            seen[number] = _Waiting(ports.environment, last)
            return dataclasses.replace(ports, environment=seen[number])

        with contextlib.suppress(StuckLoop):
            simulate(Simulation(config, scenario, is_checked=False, adapt=adapt, keeps_log=False))
    tracemalloc.stop()
    few, many = seen[FEW], seen[MANY]
    return (many.held_bytes - few.held_bytes) / (many.number - few.number)


def row(found: dict[str, Any]) -> Sequence[str]:
    """The cell as text."""

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.0f}%"

    before, after = found["held_out"]
    return (
        found["load"],
        found["mode"],
        f"{percent(before)} to {percent(after)}",
        f"{found['wall_s']:.1f} s",
        f"{found['groups_per_s']:.1f}",
        percent(found["fluid_fraction"]),
        f"{found['information_per_h']:.0f}",
        f"{found['mean_lag']:.2f}, {found['largest_lag']}",
        "-" if found["standstill_share"] is None else f"{100 * found['standstill_share']:.1f}%",
        percent(found["trainer_idle"]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds that every tool call waits")
    parser.add_argument("--mode", action="append", choices=sorted(MODES), help="only these modes")
    parser.add_argument("--load", action="append", choices=sorted(LOADS), help="only these loads")
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*", help="such as schedule.batch_groups=8")
    arguments = parser.parse_args()
    episode_bytes = waiting_bytes()
    print(f"a waiting episode: {episode_bytes / 1024:.1f} KiB in the control plane", flush=True)
    widths = (10, 15, 12, 9, 8, 12, 7, 8, 10, 5)
    print("  ".join(text.rjust(width) for text, width in zip(HEADINGS, widths, strict=True)), flush=True)
    cells: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for load in arguments.load or LOADS:
            for mode in arguments.mode or MODES:
                cells.append(cell(load, mode, Path(folder) / f"{load} {mode}", arguments))
                print(
                    "  ".join(text.rjust(width) for text, width in zip(row(cells[-1]), widths, strict=True)), flush=True
                )
    if arguments.json:
        results = {"command": " ".join(sys.argv), "waiting_episode_bytes": episode_bytes, "cells": cells}
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
