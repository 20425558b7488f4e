"""The scheduling experiment: the same workload under several rules, and what each of them gives up.

Invariant: every cell of a section meets the same draws, since a duration is a function of (seed, task, attempt) alone; so
cells differ by their rule and by nothing else. It measures scheduling behaviour, not hardware.
"""

import concurrent.futures
import gc
import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.config import Config, ScheduleSection, decode_config, decode_options
from headrace.planning.outcome import Outcome, OutcomeFold
from headrace.runtime.simulated import Simulation, simulate
from headrace.simulation.scenario import Scenario

_FOREVER_S = 1e9
_MOST_DRAINED = 12
"""Updates that are simulated beyond the measured ones at most."""


class Cell(msgspec.Struct, frozen=True):
    """One simulated run of the experiment.

    Attributes:
        section: which comparison it belongs to.
        name: its row there.
        scenario: workload and costs.
        schedule: overrides of the configuration's `schedule` section.
        updates: policy updates that are measured; the run goes on for as many as its credit, so that none of them drains.
        x: its place on the axis of a sweep; None in a plain comparison.
    """

    section: str
    name: str
    scenario: Scenario
    schedule: dict[str, Any]
    updates: int
    x: float | None = None


class Measured(msgspec.Struct, frozen=True):
    """A cell and what it gave.

    Attributes:
        section: of the cell.
        name: of the cell.
        x: of the cell.
        fluid_groups_per_ks: most groups per 1000 s that its scenario allows when all tasks are kept.
        outcome: what the run gave.
    """

    section: str
    name: str
    x: float | None
    fluid_groups_per_ks: float
    outcome: Outcome

    @property
    def fluid_fraction(self) -> float:
        """Steady throughput over the fluid bound."""
        return self.outcome.steady_groups_per_ks / self.fluid_groups_per_ks


def cell_config(cell: Cell, seed: int) -> Config:
    """The configuration of a cell; deadlines are out of the way, since simulated seconds cost nothing."""
    timeouts = ("generate_s", "tool_s", "environment_s", "grade_s", "update_s", "publish_s")
    scenario, credit = cell.scenario, _deepest_credit(cell.schedule)
    tree: dict[str, Any] = {
        "run": {"seed": seed, "updates": cell.updates + (min(credit, _MOST_DRAINED) + 2 if credit else 0)},
        "schedule": {"group_size": scenario.group_size, "batch_groups": scenario.batch_groups, **cell.schedule},
        "evaluation": {"every_updates": 0},
        "checkpoint": {"every_updates": 0},
        "timeouts": dict.fromkeys(timeouts, _FOREVER_S),
    }
    return decode_config(tree, f"cell {cell.name!r}")


def _deepest_credit(schedule: dict[str, Any]) -> int:
    """The largest credit that the cell can come to."""
    return decode_options(schedule, ScheduleSection, "cell").most_credit_batches


def run_cell(cell: Cell, seed: int, is_checked: bool = False) -> Measured:
    """Simulates one cell; `is_checked` checks every law after every event."""
    fold = OutcomeFold(cell.updates)
    config = cell_config(cell, seed)
    simulation = Simulation(config, cell.scenario, is_checked=is_checked, keeps_log=is_checked)
    outcome = fold.outcome(simulate(simulation, observers=[fold.observe]).slot_seconds)
    return Measured(cell.section, cell.name, cell.x, 1e3 * cell.scenario.fluid_groups_per_s, outcome)


def _run_and_clear(cell: Cell, seed: int) -> Measured:
    """Leaves nothing of the run in the process: its episodes in flight hang together in cycles."""
    measured = run_cell(cell, seed)
    gc.collect()
    return measured


def run_cells(cells: Sequence[Cell], seed: int, on_done: Callable[[int], None] = lambda _: None) -> list[Measured]:
    """Simulates all cells, one process per core, in the order given; the slowest start first.

    Args:
        cells: what to run.
        seed: root of every draw.
        on_done: called with the number of finished cells after each.
    """
    workers = max(1, min(len(cells), len(os.sched_getaffinity(0))))
    order = sorted(range(len(cells)), key=lambda index: -cells[index].updates * cells[index].scenario.batch_groups)
    found: dict[int, Measured] = {}
    context = multiprocessing.get_context("spawn")  # a fork would copy threads
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = {pool.submit(_run_and_clear, cells[index], seed): index for index in order}
        for future in concurrent.futures.as_completed(futures):
            found[futures[future]] = future.result()
            on_done(len(found))
    return [found[index] for index in range(len(cells))]
