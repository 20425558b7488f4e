"""A sweep of concurrency past the knee: sampled tokens per second go on rising, information per resource-hour does not.

Run: `python -m benchmarks.concurrency [--updates N]`. Simulated: it measures scheduling behaviour, not hardware. All rows
have one workload, one engine and one trainer, so that their hours are the same resource-hours; what rises is the number of
batches that a run may be ahead. A group older than two updates is dropped, and tokens grow old with each update that goes
by (`drift`), as they do where the policy moves.
"""

import argparse
from typing import Any

import msgspec

from headrace.config import decode_config
from headrace.reporting.report import RunReport, report_run
from headrace.runtime.simulated import SimulatedDisk, Simulation, simulate
from headrace.simulation.scenario import Scenario, load_scenario
from headrace.store.memory import MemoryJournal

CREDITS = (0, 1, 2, 4, 8, 16)
MAX_LAG = 2
_DEADLINES = ("generate_s", "tool_s", "environment_s", "grade_s", "update_s", "publish_s")


def scenario() -> Scenario:
    """The packaged small workload on an engine that is faster the more runs on it, and a policy that moves."""
    base = load_scenario("small_mixed")
    engine = msgspec.structs.replace(base.engine, slots=256, decode=((1, 40.0), (256, 1600.0)))
    return msgspec.structs.replace(base, engine=engine, trainer=msgspec.structs.replace(base.trainer, drift=0.02))


def sweep_point(credit: int, updates: int, seed: int = 7) -> RunReport:
    """The report of a run that may be so many batches ahead."""
    simulated = scenario()
    ahead: dict[str, Any] = {
        "mode": "separate_async",
        "credit_batches": credit,
        "staleness": "drop",
        "max_lag": MAX_LAG,
    }
    rule = ahead if credit else {"mode": "sync", "credit_batches": 0}
    tree = {
        "run": {"seed": seed, "updates": updates},
        "schedule": {"group_size": simulated.group_size, "batch_groups": simulated.batch_groups, **rule},
        "evaluation": {"every_updates": 0},
        "checkpoint": {"every_updates": 0},
        "timeouts": dict.fromkeys(_DEADLINES, 1e9),
    }
    disk = SimulatedDisk()
    simulate(Simulation(decode_config(tree, f"credit {credit}"), simulated, is_checked=False), disk=disk)
    journal = MemoryJournal(disk.storage)
    return report_run(journal.events(), journal.read)


def main() -> None:
    """Prints a row per credit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=40, help="updates of each run (default: 40)")
    updates = parser.parse_args().updates
    print(f"{'credit':<8}{'tokens/s':>10}{'information/h':>15}{'retention':>11}{'duplicates':>12}")
    for credit in CREDITS:
        report = sweep_point(credit, updates)
        found = report.information
        print(
            f"{credit:<8}{report.flow.generated_rate or 0.0:>10.0f}{found.per_hour or 0.0:>15.0f}"
            f"{found.retention or 0.0:>11.0%}{found.duplicate_groups:>12}",
            flush=True,
        )


if __name__ == "__main__":
    main()
