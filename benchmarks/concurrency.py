"""A sweep of concurrency past the knee: sampled tokens per second go on rising, information per resource-hour does not.

Run: `python -m benchmarks.concurrency [--live] [--updates N]`. All rows have one workload and the same devices, so that
their hours are the same resource-hours; what rises is the number of batches that a run may be ahead. A group older than two
updates is dropped.

Simulated, it measures scheduling behaviour, not hardware: one engine and one trainer, and tokens grow old with each update
that goes by (`drift`), as they do where the policy moves. With `--live` each row is the main job on child processes, one
after the other and from the same weights: each tool call waits, and the engine has a slot for every episode that may run, so
that more of them keep it fuller. The clock runs from the first admission to the last version.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.sitting.main_job import Trained, main_job, run_main_job
from headrace.config import decode_config
from headrace.records.segment import TurnGenerated
from headrace.reporting.report import RunReport, report_run
from headrace.runtime.simulated import SimulatedDisk, Simulation, simulate
from headrace.simulation.scenario import Scenario, load_scenario
from headrace.store.memory import MemoryJournal

CREDITS = (0, 1, 2, 4, 8, 16)
LIVE_CREDITS = (0, 1, 2, 4, 8)
BATCH_GROUPS, GROUP_SIZE = 8, 8
"""Of the live job: half its usual batch, so that nine batches in flight fit into memory."""
MAX_LAG = 2
_DEADLINES = ("generate_s", "tool_s", "environment_s", "grade_s", "update_s", "publish_s")


def scenario() -> Scenario:
    """The packaged small workload on an engine that is faster the more runs on it, and a policy that moves."""
    base = load_scenario("small_mixed")
    engine = msgspec.structs.replace(base.engine, slots=256, decode=((1, 40.0), (256, 1600.0)))
    return msgspec.structs.replace(base, engine=engine, trainer=msgspec.structs.replace(base.trainer, drift=0.02))


def rule(credit: int) -> dict[str, Any]:
    """The schedule that may be so many batches ahead."""
    if not credit:
        return {"mode": "sync", "credit_batches": 0}
    return {"mode": "separate_async", "credit_batches": credit, "staleness": "drop", "max_lag": MAX_LAG}


def sweep_point(credit: int, updates: int, seed: int = 7) -> RunReport:
    """The report of a run that may be so many batches ahead."""
    simulated = scenario()
    tree = {
        "run": {"seed": seed, "updates": updates},
        "schedule": {"group_size": simulated.group_size, "batch_groups": simulated.batch_groups, **rule(credit)},
        "evaluation": {"every_updates": 0},
        "checkpoint": {"every_updates": 0},
        "timeouts": dict.fromkeys(_DEADLINES, 1e9),
    }
    disk = SimulatedDisk()
    simulate(Simulation(decode_config(tree, f"credit {credit}"), simulated, is_checked=False), disk=disk)
    journal = MemoryJournal(disk.storage)
    return report_run(journal.events(), journal.read)


def live_point(credit: int, folder: Path, arguments: argparse.Namespace) -> Trained:
    """The main job so many batches ahead, with an engine slot for each episode that may run."""
    episodes = BATCH_GROUPS * GROUP_SIZE * (credit + 1)
    overrides = (
        f"schedule.batch_groups={BATCH_GROUPS}",
        f"schedule.group_size={GROUP_SIZE}",
        f"inference.options.slots={episodes}",
        *(f"schedule.{name}={json.dumps(value)}" for name, value in rule(credit).items()),
    )
    tools = {"latency_s": arguments.latency, "wall_s": 20.0 * arguments.latency}
    return run_main_job(main_job(arguments.seed, arguments.updates, tools, overrides), folder)


def sampled_per_s(trained: Trained) -> float:
    """Tokens sampled per second from the first admission to the last version."""
    end_s = trained.begin_s + trained.versions_s[-1]
    sampled = (
        sum(len(segment) for segment in event.payload.segments)
        for event in trained.events
        if isinstance(event.payload, TurnGenerated) and event.t_ns / 1e9 <= end_s
    )
    return sum(sampled) / trained.versions_s[-1]


def print_row(credit: int, tokens_per_s: float, information_per_h: float, report: RunReport) -> None:
    """One line of the table."""
    found, updates = report.information, report.updates
    print(
        f"{credit:<8}{tokens_per_s:>10.0f}{information_per_h:>15.0f}{found.retention or 0.0:>11.0%}"
        f"{updates.mean_lag or 0.0:>8.2f}{found.duplicate_groups:>12}",
        flush=True,
    )


def main() -> None:
    """Prints a row per credit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, help="updates of each run (default: 40, live 16)")
    parser.add_argument("--live", action="store_true", help="the main job on child processes")
    parser.add_argument("--latency", type=float, default=0.3, help="live: seconds that every tool call waits")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--credit", type=int, action="append", help="only these numbers of batches ahead")
    arguments = parser.parse_args()
    arguments.updates = arguments.updates or (16 if arguments.live else 40)
    print(f"{'credit':<8}{'tokens/s':>10}{'information/h':>15}{'retention':>11}{'lag':>8}{'duplicates':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for credit in arguments.credit or (LIVE_CREDITS if arguments.live else CREDITS):
            if arguments.live:
                trained = live_point(credit, Path(folder) / str(credit), arguments)
                print_row(credit, sampled_per_s(trained), trained.information_per_h, trained.report)
            else:
                report = sweep_point(credit, arguments.updates, arguments.seed)
                print_row(credit, report.flow.generated_rate or 0.0, report.information.per_hour or 0.0, report)


if __name__ == "__main__":
    main()
