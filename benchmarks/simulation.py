"""E1: CPU per task of a simulated run through the whole orchestrator, beside SimPy and a plain loop over a heap.

Run: `python -m benchmarks.simulation [--tasks N] [--long]`. W-E: 50,000 tasks, 64 workers, one in ten takes ten times as
long, groups beyond two updates of lag are dropped. All sides must agree on makespan, on what was accepted and on what was
dropped. The product runs admission, episodes, sealing, grading, batches, plans and publication; the others only the rule.
`deciders` is the heap loop with the product's own deciders in it. `--long` runs 100,000 episodes once: time and memory.
"""

import heapq
import itertools
import resource
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import msgspec
import numpy as np
import simpy

from benchmarks.sitting.measure import Figure, Side, options, sit, tree_cpu_s
from headrace.config import Config, decode_config
from headrace.planning.experiment import Cell, run_cell
from headrace.records.batch import BatchPlanned, GroupRejected
from headrace.records.events import Event
from headrace.records.update import WeightsActivated
from headrace.runtime.simulated import Simulation, simulate
from headrace.scheduling.admission import Admission, AdmissionState
from headrace.scheduling.ordering import BatchOrder, OpenGroup
from headrace.scheduling.staleness import Sampled, StalenessRule, lag_of
from headrace.simulation.scenario import Scenario, load_scenario

TASKS, WORKERS, BATCH, CREDIT, MAX_LAG, UPDATE_S = 50_000, 64, 8, 15, 2, 0.231
FIRST_TOKEN_S = 1.0
OUTSTANDING = (CREDIT + 1) * BATCH
Result = tuple[float, int, int]


def durations_of(num_tasks: int) -> list[float]:
    """Distinct times, so that no two tasks end at one instant and every side breaks the same ties: none."""
    generator = np.random.Generator(np.random.Philox(7))
    is_long = generator.random(num_tasks) < 0.1
    return (np.where(is_long, 10.0, 1.0) * (1.0 + 1e-3 * (1.0 + generator.random(num_tasks)))).tolist()


class Rule:
    """The rule in its plainest form: state in, what to train out. Shared by both reference loops."""

    def __init__(self, num_tasks: int) -> None:
        self.num_tasks = num_tasks
        self.drawn = self.outstanding = self.accepted = self.dropped = self.version = 0
        self.ready: dict[int, int] = {}
        self.first: dict[int, int] = {}
        self.is_exhausted = False

    def admit(self) -> list[int]:
        admitted: list[int] = []
        while (
            not self.is_exhausted and self.outstanding < OUTSTANDING and self.accepted + self.outstanding < self.needed
        ):
            if self.drawn == self.num_tasks:
                self.is_exhausted = True
                break
            admitted.append(self.drawn)
            self.drawn += 1
            self.outstanding += 1
        return admitted

    @property
    def needed(self) -> int:
        return -(-self.num_tasks // BATCH) * BATCH

    def drop(self) -> None:
        for task in [task for task in self.ready if self.version - self.first[task] > MAX_LAG]:
            del self.ready[task]
            self.dropped += 1
            self.outstanding -= 1

    def choose(self) -> list[int]:
        size = min(BATCH, self.outstanding) if self.is_exhausted else BATCH
        if size == 0 or len(self.ready) < size:
            return []
        chosen = list(itertools.islice(self.ready, size))
        for task in chosen:
            del self.ready[task]
        return chosen

    def consume(self, batch: list[int]) -> None:
        self.version += 1
        self.accepted += len(batch)
        self.outstanding -= len(batch)


class DecidedRule(Rule):
    """The same, decided by the product's deciders."""

    def __init__(self, num_tasks: int) -> None:
        super().__init__(num_tasks)
        self._admission = Admission(self.needed // BATCH, BATCH)
        self._order = BatchOrder("ready", BATCH, None)
        self._staleness = StalenessRule("drop", MAX_LAG)
        self._sampled: dict[int, Sampled] = {}

    def _state(self) -> AdmissionState:
        return AdmissionState(self.outstanding, OUTSTANDING, self.version, self.is_exhausted)

    def admit(self) -> list[int]:
        admitted: list[int] = []
        while self._admission.hold_reason(self._state()) is None:
            if self.drawn == self.num_tasks:
                self.is_exhausted = True
                break
            admitted.append(self.drawn)
            self.drawn += 1
            self.outstanding += 1
        return admitted

    def drop(self) -> None:
        for task in list(self.ready):
            lag = lag_of([Sampled(((self.first[task], 1),))], self.version)
            if self._staleness.drop_reason(lag.oldest) is not None:
                del self.ready[task]
                self.dropped += 1
                self.outstanding -= 1

    def choose(self) -> list[int]:
        if len(self.ready) < BATCH and not self.is_exhausted:
            return []
        groups = [OpenGroup(task, self.first[task], rank) for rank, task in enumerate(self.ready)]
        groups += [OpenGroup(-1, self.version, None)] * (self.outstanding - len(groups))
        chosen = self._order.choose(groups, self.version, is_last=self.is_exhausted)
        for task in chosen or ():
            del self.ready[task]
        return list(chosen or ())


def run_heap(durations: list[float], make_rule: Callable[[int], Rule] = Rule) -> Result:
    """The plain loop: a heap of ends, a queue for workers."""
    rule, ends, queue = make_rule(len(durations)), list[tuple[float, int]](), deque[int]()
    now_s, free, batch = 0.0, WORKERS, list[int]()

    def start() -> None:
        nonlocal free
        while queue and free:
            task = queue.popleft()
            free -= 1
            heapq.heappush(ends, (now_s + FIRST_TOKEN_S, -2 - task))
            heapq.heappush(ends, (now_s + durations[task], task))

    def settle() -> None:
        nonlocal batch
        while not batch:
            rule.drop()
            batch = rule.choose()
            if batch:
                heapq.heappush(ends, (now_s + UPDATE_S, -1))
            admitted = rule.admit()
            queue.extend(admitted)
            start()
            if not admitted:
                return
        queue.extend(rule.admit())
        start()

    queue.extend(rule.admit())
    start()
    last_s = 0.0
    while ends:
        now_s, task = heapq.heappop(ends)
        if task < -1:
            rule.first[-2 - task] = rule.version
            continue
        if task >= 0:
            free += 1
            rule.ready[task] = rule.version
            start()
        else:
            rule.consume(batch)
            batch, last_s = [], now_s
        settle()
    return last_s, rule.accepted, rule.dropped


def run_simpy(durations: list[float]) -> Result:
    """The same on SimPy: a process a task, a resource of workers."""
    environment, rule = simpy.Environment(), Rule(len(durations))
    workers = simpy.Resource(environment, WORKERS)
    changed = [environment.event()]
    last_s = 0.0

    def notify() -> None:
        event, changed[0] = changed[0], environment.event()
        event.succeed()

    def task_process(task: int) -> Generator[Any, Any, None]:
        with workers.request() as request:
            yield request
            yield environment.timeout(FIRST_TOKEN_S)
            rule.first[task] = rule.version
            yield environment.timeout(durations[task] - FIRST_TOKEN_S)
        rule.ready[task] = rule.version
        notify()

    def admit() -> bool:
        admitted = rule.admit()
        for task in admitted:
            environment.process(task_process(task))
        return bool(admitted)

    def trainer() -> Generator[Any, Any, None]:
        nonlocal last_s
        while True:
            rule.drop()
            batch = rule.choose()
            is_new = admit()
            if batch:
                yield environment.timeout(UPDATE_S)
                rule.consume(batch)
                last_s = environment.now
                admit()
            elif rule.is_exhausted and rule.outstanding == 0:
                return
            elif not is_new:
                yield changed[0]

    admit()
    environment.process(trainer())
    environment.run()
    return float(last_s), rule.accepted, rule.dropped


def scenario_of(durations: list[float]) -> Scenario:
    return msgspec.convert(
        {
            "workload": {
                "name": "W-E",
                "tokens": {"law": "constant", "value": 1.0},
                "trace": durations,
                "strata": [{"name": "all"}],
            },
            "engine": {"slots": WORKERS, "decode": [[WORKERS, float(WORKERS)]]},
            "trainer": {"update_s": {"law": "constant", "value": UPDATE_S}},
            "group_size": 1,
            "batch_groups": BATCH,
        },
        Scenario,
    )


def config_of(num_tasks: int) -> Config:
    schedule = {"mode": "separate_async", "credit_batches": CREDIT, "staleness": "drop", "max_lag": MAX_LAG}
    tree: dict[str, Any] = {
        "run": {"updates": -(-num_tasks // BATCH)},
        "algorithm": {"advantage": "reinforce_pp"},
        "schedule": {"group_size": 1, "batch_groups": BATCH, **schedule},
        "evaluation": {"every_updates": 0},
        "checkpoint": {"every_updates": 0},
        "timeouts": dict.fromkeys(("generate_s", "tool_s", "environment_s", "grade_s", "update_s", "publish_s"), 1e9),
    }
    return decode_config(tree, "W-E")


def run_product(durations: list[float]) -> Result:
    """The whole orchestrator on simulated workers."""
    last_ns = accepted = dropped = 0

    def observe(event: Event) -> None:
        nonlocal last_ns, accepted, dropped
        match event.payload:
            case WeightsActivated():
                last_ns = event.t_ns
            case BatchPlanned(groups=groups):
                accepted += len(groups)
            case GroupRejected(state="filtered"):
                dropped += 1
            case _:
                pass

    simulation = Simulation(
        config_of(len(durations)), scenario_of(durations), is_checked=False, keeps_log=False, num_train=len(durations)
    )
    simulate(simulation, observers=[observe])
    return last_ns / 1e9, accepted, dropped


def timed(run: Callable[[], Result], expected: Result) -> Callable[[], float]:
    def side() -> float:
        began_s = tree_cpu_s()
        found = run()
        used_s = tree_cpu_s() - began_s
        assert found[1:] == expected[1:], (found, expected)
        assert abs(found[0] - expected[0]) < 1e-3, (found, expected)
        return used_s

    return side


def run_long() -> None:
    """100,000 episodes of the ten-times workload in one process."""
    scenario = load_scenario("ten_times")
    updates = -(-100_000 // (scenario.group_size * scenario.batch_groups))
    cell = Cell("long", "pace", scenario, {"mode": "separate_async", "credit_batches": 6}, updates)
    began_s, cpu_s = time.monotonic(), tree_cpu_s()
    outcome = run_cell(cell, 7).outcome
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"\nE1  {outcome.accepted_samples} episodes trained: {time.monotonic() - began_s:.0f} s, CPU "
        f"{tree_cpu_s() - cpu_s:.0f} s, peak memory {peak:.0f} MiB (goals: 180 s, 2048 MiB); "
        f"{outcome.steady_groups_per_ks:.0f} groups per 1000 simulated seconds"
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--tasks", type=int, default=TASKS, help=f"tasks of the load (default {TASKS})")
    parser.add_argument("--long", action="store_true", help="100,000 episodes once instead: time and memory")
    arguments = parser.parse_args()
    if arguments.long:
        run_long()
        return
    durations = durations_of(arguments.tasks)
    expected = run_heap(durations)
    print(f"W-E, {len(durations)} tasks: makespan {expected[0]:.3f} s, {expected[1]} accepted, {expected[2]} dropped")
    figure = Figure("E1", f"W-E: {len(durations)} tasks on virtual time", "us per task", 1e6 / len(durations), 150.0)
    sides = [
        Side("product", timed(lambda: run_product(durations), expected)),
        Side("floor", timed(lambda: run_heap(durations), expected)),
        Side("deciders", timed(lambda: run_heap(durations, DecidedRule), expected)),
        Side(f"SimPy {simpy.__version__}", timed(lambda: run_simpy(durations), expected)),
    ]
    sit(figure, sides, arguments.repeats)


if __name__ == "__main__":
    main()
