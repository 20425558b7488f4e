"""The main job under four rules, ordinary and with a slow tenth of the tasks; and the memory of a waiting episode.

Run: `python -m benchmarks.modes [--updates N] [--latency S] [--seed N …] [--json PATH] [override …]`.

Each cell is a live run of `examples/arithmetic/train.toml` on child processes, one after the other; cells of a seed begin
with the same weights. Every tool call waits `--latency` seconds; with the slow tenth, the calls of a tenth of the tasks wait
ten times as long. The clock runs from the first admission, so no warm start is in it, and held-out tasks are played
afterwards, without the waits, by the weights of every second version: held-out success against wall time is each rule's own
doing. The fluid bound is one update for each stretch of the busiest resource, fitted from the run's own log; shared devices
do one thing at a time.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import itertools
import json
import sys
import tempfile
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.sitting.main_job import JOB, main_job, run_main_job
from headrace.config import Config, load_config
from headrace.control.context import Ports
from headrace.planning.bottleneck import Demands, demands_of
from headrace.planning.fit import fit_run
from headrace.ports import Environment, Handle
from headrace.records.action import Action
from headrace.records.batch import GroupClosed, GroupRejected
from headrace.records.execution import Lease, Receipt
from headrace.reporting.report import RunReport
from headrace.runtime.evaluating import EvalSettings, evaluate
from headrace.runtime.simulated import Simulation, simulate
from headrace.simulation.laws import Constant
from headrace.simulation.loop import StuckLoop
from headrace.simulation.scenario import load_scenario

BOTH_CORES = ("inference.options.num_threads=2", "trainer.options.num_threads=2")
"""Where engine and trainer never compute at the same time, each may have the cores of both."""
RULES = {
    "sync": ('schedule.mode="sync"', *BOTH_CORES),
    "colocate_async": ('schedule.mode="colocate_async"', *BOTH_CORES),
    "separate_async": ('schedule.mode="separate_async"',),
    "drop": (
        'schedule.mode="separate_async"',
        "schedule.credit_batches=4",
        'schedule.staleness="drop"',
        "schedule.max_lag=2",
    ),
}
"""The modes under the default policy, and the usual rule beside them: far ahead, and what comes too late is thrown away."""
LOADS = {"ordinary": 0.0, "slow tenth": 0.1}
FEW, MANY = 256, 2_048
_WORKERS = [
    tracemalloc.Filter(inclusive=False, filename_pattern=pattern)
    for pattern in ("*/headrace/simulation/*", tracemalloc.__file__)
]
"""The simulated workers: a live run holds their state in processes of its own."""
HEADINGS = ("load", "rule", "seed", "groups/s", "of the bound", "info/h", "lag", "kept", "standstill", "idle", "to 80%")
WIDTHS = (10, 14, 4, 8, 12, 7, 7, 5, 10, 5, 7)
REACHED = 0.8
"""Held-out success whose time is told."""


def job(rule: str, seed: int, tools: Mapping[str, float], arguments: argparse.Namespace) -> Config:
    """The main job under one rule, its tools with these options."""
    return main_job(seed, arguments.updates, tools, ("checkpoint.every_updates=0", *RULES[rule], *arguments.overrides))


def bound_s(demands: Demands, rule: str) -> float:
    """Least seconds of an update: of the busiest resource, where shared devices are one."""
    engine, trainer = demands.decode + demands.prefill, demands.trainer
    devices = [engine + trainer + demands.switch] if rule == "colocate_async" else [engine, trainer]
    return max(*devices, demands.environment_cpu, demands.external_wait, demands.external_service, demands.grader)


def cell(load: str, rule: str, seed: int, *, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of one run."""
    tools = {"latency_s": arguments.latency, "slow_share": LOADS[load], "wall_s": 20.0 * arguments.latency}
    config = job(rule, seed, tools, arguments)
    trained = run_main_job(config, folder)
    events, report, versions_s = trained.events, trained.report, trained.versions_s
    fitted = fit_run(folder)
    demands = demands_of(fitted.scenario, fitted.cpu_s_per_episode, fitted.cores)
    curve = [
        (versions_s[version], held_out(folder, version, job(rule, seed, {}, arguments)))
        for version in range(0, len(versions_s), 2)
    ]
    groups_per_s = (len(versions_s) - 1) * config.schedule.batch_groups / versions_s[-1]
    closed = sum(isinstance(event.payload, GroupClosed) for event in events)
    rejected = sum(isinstance(event.payload, GroupRejected) for event in events)
    return {
        "load": load,
        "rule": rule,
        "seed": seed,
        "curve": curve,
        "reached_s": reached_s(curve),
        "groups_per_s": groups_per_s,
        "fluid_fraction": groups_per_s * bound_s(demands, rule) / config.schedule.batch_groups,
        "demands_s": demands.table(),
        "information_per_h": trained.information_per_h,
        "mean_lag": report.updates.mean_lag,
        "largest_lag": report.updates.largest_lag,
        "kept": 1.0 - rejected / closed,
        "standstill_share": report.updates.standstill_share,
        "trainer_idle": report.flow.starvation,
        "turns": msgspec.to_builtins(report.turns),
        "states": _states(report),
    }


def held_out(run: Path, version: int, config: Config) -> float:
    """Held-out success of one version's weights at temperature 1."""
    score = evaluate([f"{run}@{version}"], config, run.parent, EvalSettings()).scores[0]
    return sum(task.successes for task in score.tasks) / len(score.tasks)


def reached_s(curve: Sequence[tuple[float, float]]) -> float | None:
    """Seconds until the line through the points of (seconds, success) first comes to `REACHED`."""
    for (before_s, low), (after_s, high) in itertools.pairwise(curve):
        if low < REACHED <= high:
            return before_s + (after_s - before_s) * (REACHED - low) / (high - low)
    return None


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

    return (
        found["load"],
        found["rule"],
        str(found["seed"]),
        f"{found['groups_per_s']:.1f}",
        percent(found["fluid_fraction"]),
        f"{found['information_per_h']:.0f}",
        f"{found['mean_lag']:.2f}, {found['largest_lag']}",
        percent(found["kept"]),
        "-" if found["standstill_share"] is None else f"{100 * found['standstill_share']:.1f}%",
        percent(found["trainer_idle"]),
        "-" if found["reached_s"] is None else f"{found['reached_s']:.1f} s",
    )


def print_row(texts: Sequence[str]) -> None:
    """One line of the table."""
    print("  ".join(text.rjust(width) for text, width in zip(texts, WIDTHS, strict=True)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--latency", type=float, default=0.5, help="seconds that every tool call waits")
    parser.add_argument("--seed", type=int, action="append", help="seeds of the runs, one after the other (default: 7)")
    parser.add_argument("--rule", action="append", choices=sorted(RULES), help="only these rules")
    parser.add_argument("--load", action="append", choices=sorted(LOADS), help="only these loads")
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*", help="such as schedule.batch_groups=8")
    arguments = parser.parse_args()
    episode_bytes = waiting_bytes()
    print(f"a waiting episode: {episode_bytes / 1024:.1f} KiB in the control plane", flush=True)
    print_row(HEADINGS)
    cells: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for load, seed, rule in itertools.product(
            arguments.load or LOADS, arguments.seed or [7], arguments.rule or RULES
        ):
            found = cell(load, rule, seed, folder=Path(folder) / f"{load} {rule} {seed}", arguments=arguments)
            cells.append(found)
            print_row(row(found))
            print(
                "    " + "  ".join(f"{100 * success:.0f}% at {at_s:.1f} s" for at_s, success in found["curve"]),
                flush=True,
            )
            if arguments.json:
                results = {"command": " ".join(sys.argv), "waiting_episode_bytes": episode_bytes, "cells": cells}
                arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
