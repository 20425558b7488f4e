"""The scheduling experiment: the same workload under several rules, and what each of them gives up.

Invariant: every arm meets the same draws, since a duration is a function of (seed, task, attempt) alone; so arms differ by
their rule and by nothing else. It measures scheduling behaviour, not hardware.
"""

import concurrent.futures
import os
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from headrace.config import Config, decode_config
from headrace.records.batch import BatchPlanned, GroupClosed, GroupRejected
from headrace.records.events import Event
from headrace.records.ids import Purpose
from headrace.records.run import WorkerState, WorkerStateChanged
from headrace.records.task import TaskDrawn
from headrace.records.update import WeightsActivated
from headrace.runtime.simulated import Simulation, simulate
from headrace.simulation.scenario import Scenario

_FOREVER_S = 1e9


class Arm(msgspec.Struct, frozen=True):
    """One rule of the comparison.

    Attributes:
        name: as it stands in the table.
        schedule: overrides of the configuration's `schedule` section.
    """

    name: str
    schedule: dict[str, Any]


ARMS: tuple[Arm, ...] = (
    Arm("synchronous", {"mode": "sync", "credit_batches": 0}),
    Arm("one step asynchronous", {"mode": "separate_async", "credit_batches": 1}),
    Arm("pace, credit 4", {"mode": "separate_async", "credit_batches": 4}),
    Arm("pace, credit 8", {"mode": "separate_async", "credit_batches": 8}),
    Arm("in order, credit 4", {"mode": "separate_async", "credit_batches": 4, "order": "ordinal"}),
    Arm("wait, lag <= 4", {"mode": "separate_async", "credit_batches": 4, "staleness": "wait", "max_lag": 4}),
    Arm("drop, lag <= 4", {"mode": "separate_async", "credit_batches": 4, "staleness": "drop", "max_lag": 4}),
)


class StratumOutcome(msgspec.Struct, frozen=True):
    """What became of the tasks of one difficulty.

    Attributes:
        drawn: tasks drawn.
        trained: tasks trained.
        rejected: tasks rejected by a rule.
    """

    drawn: int
    trained: int
    rejected: int


class ArmOutcome(msgspec.Struct, frozen=True):
    """What one arm gave.

    Attributes:
        arm: its name.
        makespan_s: virtual seconds from the first admission to the last version.
        accepted_groups: groups trained.
        accepted_samples: members with a reward in trained groups.
        rejected_groups: groups that a rule rejected.
        oldest_lag_mean: lag of each update's oldest token, mean over updates, in updates.
        oldest_lag_max: the same, largest.
        token_lag_mean: token-weighted lag, mean over updates.
        span_max: largest version span inside one trajectory.
        trainer_idle: share of the makespan in which the trainer did nothing.
        fluid_fraction: accepted groups per second over the fluid bound that keeps all tasks.
        strata: by difficulty.
    """

    arm: str
    makespan_s: float
    accepted_groups: int
    accepted_samples: int
    rejected_groups: int
    oldest_lag_mean: float
    oldest_lag_max: int
    token_lag_mean: float
    span_max: int
    trainer_idle: float
    fluid_fraction: float
    strata: dict[str, StratumOutcome]

    @property
    def groups_per_ks(self) -> float:
        """Accepted groups per 1000 virtual seconds."""
        return 1000.0 * self.accepted_groups / self.makespan_s


def arm_config(arm: Arm, scenario: Scenario, *, seed: int, updates: int) -> Config:
    """The configuration of an arm; deadlines are out of the way, since simulated seconds cost nothing."""
    timeouts = ("generate_s", "tool_s", "environment_s", "grade_s", "update_s", "publish_s")
    tree: dict[str, Any] = {
        "run": {"seed": seed, "updates": updates},
        "schedule": {"group_size": scenario.group_size, "batch_groups": scenario.batch_groups, **arm.schedule},
        "evaluation": {"every_updates": 0},
        "timeouts": dict.fromkeys(timeouts, _FOREVER_S),
    }
    return decode_config(tree, f"arm {arm.name!r}")


def run_arm(arm: Arm, scenario: Scenario, seed: int, updates: int) -> ArmOutcome:
    """Simulates one arm."""
    config = arm_config(arm, scenario, seed=seed, updates=updates)
    result = simulate(Simulation(config, scenario, is_checked=False))
    return outcome_of(arm.name, result.events, scenario)


def run_arms(arms: Sequence[Arm], scenario: Scenario, seed: int, updates: int) -> list[ArmOutcome]:
    """Simulates all arms, one process per core, in the order given."""
    workers = min(len(arms), len(os.sched_getaffinity(0)))
    with concurrent.futures.ProcessPoolExecutor(max_workers=workers) as pool:
        futures = [pool.submit(run_arm, arm, scenario, seed, updates) for arm in arms]
        return [future.result() for future in futures]


def outcome_of(name: str, events: Iterable[Event], scenario: Scenario) -> ArmOutcome:
    """Folds a run's log."""
    fold = _Fold()
    for event in events:
        fold.observe(event)
    return fold.outcome(name, scenario)


class _Fold:
    def __init__(self) -> None:
        self._difficulty: dict[str, str] = {}
        self._members: dict[str, int] = {}
        self._drawn: dict[str, int] = {}
        self._trained: dict[str, int] = {}
        self._rejected: dict[str, int] = {}
        self._plans: list[BatchPlanned] = []
        self._samples = 0
        self._begin_ns = self._end_ns = 0
        self._idle_ns = 0
        self._idle_since: int | None = None

    def observe(self, event: Event) -> None:
        match event.payload:
            case TaskDrawn(difficulty=difficulty):
                self._difficulty[event.key] = difficulty
                self._drawn[difficulty] = self._drawn.get(difficulty, 0) + 1
            case GroupClosed(members=members):
                self._members[event.key] = sum(member.reward is not None for member in members)
            case GroupRejected(state="filtered", difficulty=difficulty):
                self._rejected[difficulty] = self._rejected.get(difficulty, 0) + 1
            case BatchPlanned():
                self._plan(event.payload)
            case WeightsActivated(policy=policy):
                self._end_ns = event.t_ns
                if policy.version == 0:
                    self._begin_ns = event.t_ns
                    self._idle_ns, self._idle_since = 0, event.t_ns
            case WorkerStateChanged(worker="trainer", state=state):
                self._trainer(event.t_ns, state)
            case _:
                pass

    def outcome(self, name: str, scenario: Scenario) -> ArmOutcome:
        makespan_s = (self._end_ns - self._begin_ns) / 1e9
        groups = sum(len(plan.groups) for plan in self._plans)
        lags = [plan.oldest_lag for plan in self._plans]
        strata = {
            difficulty: StratumOutcome(drawn, self._trained.get(difficulty, 0), self._rejected.get(difficulty, 0))
            for difficulty, drawn in sorted(self._drawn.items())
        }
        return ArmOutcome(
            arm=name,
            makespan_s=makespan_s,
            accepted_groups=groups,
            accepted_samples=self._samples,
            rejected_groups=sum(self._rejected.values()),
            oldest_lag_mean=sum(lags) / len(lags),
            oldest_lag_max=max(lags),
            token_lag_mean=sum(plan.mean_lag for plan in self._plans) / len(self._plans),
            span_max=max(plan.max_span for plan in self._plans),
            trainer_idle=self._idle_ns / (self._end_ns - self._begin_ns),
            fluid_fraction=groups / makespan_s / scenario.fluid_groups_per_s,
            strata=strata,
        )

    def _plan(self, plan: BatchPlanned) -> None:
        self._plans.append(plan)
        for group in plan.groups:
            if group.purpose == Purpose.TRAIN.value:
                difficulty = self._difficulty[str(group)]
                self._trained[difficulty] = self._trained.get(difficulty, 0) + 1
                self._samples += self._members[str(group)]

    def _trainer(self, t_ns: int, state: WorkerState) -> None:
        if self._idle_since is not None:
            self._idle_ns += t_ns - self._idle_since
        self._idle_since = t_ns if state is WorkerState.IDLE else None
