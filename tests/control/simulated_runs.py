"""Small simulated runs for the tests of the control plane."""

import dataclasses
from collections import Counter
from typing import Any

import msgspec

from headrace.config import Config, decode_config
from headrace.control.context import Ports
from headrace.records.events import Event, Payload, kind_of
from headrace.records.task import Budget
from headrace.runtime.simulated import Simulation, SimulationResult, simulate
from headrace.simulation.faults import Fault, FaultInjector, FaultPlan
from headrace.simulation.faulty import FaultyEnvironment, FaultyGrader, FaultyInference, FaultyTrainer
from headrace.simulation.scenario import Scenario, load_scenario
from headrace.simulation.tasks import SimulatedTasks
from headrace.simulation.workload import Draws

MODES: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync", "credit_batches": 0},
    "one step asynchronous": {"mode": "separate_async", "credit_batches": 1},
    "taking turns": {"mode": "colocate_async", "credit_batches": 1},
    "in order": {"mode": "separate_async", "credit_batches": 2, "order": "ordinal"},
    "wait": {"mode": "separate_async", "credit_batches": 2, "staleness": "wait", "max_lag": 2},
    "drop": {"mode": "separate_async", "credit_batches": 3, "staleness": "drop", "max_lag": 1},
}


def scenario(**workload: Any) -> Scenario:
    """The packaged small scenario, with parts of its workload replaced."""
    base = load_scenario("small_mixed")
    return msgspec.structs.replace(base, workload=msgspec.structs.replace(base.workload, **workload))


def faultless(**workload: Any) -> Scenario:
    """The same without any failure of its own."""
    names = ("malformed", "tool_error", "open_failure", "tool_failure", "grade_failure", "grade_invalid")
    return scenario(**{**dict.fromkeys(names, 0.0), **workload})


def config(schedule: dict[str, Any], *, updates: int = 4, seed: int = 7, **sections: dict[str, Any]) -> Config:
    """A configuration of groups of 4 in batches of 4."""
    tree: dict[str, Any] = {
        "run": {"seed": seed, "updates": updates},
        "schedule": {"group_size": 4, "batch_groups": 4, **schedule},
        "evaluation": {"every_updates": 0},
    }
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section}
    return decode_config(tree, "test")


def run(schedule: dict[str, Any], *, of: Scenario | None = None, **options: Any) -> SimulationResult:
    """A simulated run with every law checked after every event."""
    simulation_fields = {field.name for field in dataclasses.fields(Simulation)}
    own = {name: options.pop(name) for name in list(options) if name in simulation_fields}
    return simulate(Simulation(config(schedule, **options), scenario() if of is None else of, **own))


def with_faults(*faults: Fault) -> tuple[Any, list[FaultInjector]]:
    """(adapt, injectors): put the faults before the ports of a run; the injector appears once the run has begun."""
    made: list[FaultInjector] = []

    def adapt(ports: Ports) -> Ports:
        injector = FaultInjector(FaultPlan(faults=faults))
        made.append(injector)
        return dataclasses.replace(
            ports,
            inference=FaultyInference(ports.inference, injector),
            environment=FaultyEnvironment(ports.environment, injector),
            grader=FaultyGrader(ports.grader, injector),
            trainer=FaultyTrainer(ports.trainer, injector),
        )

    return adapt, made


def with_budget(of: Scenario, seed: int = 7, **limits: Any) -> Any:
    """Gives every task another budget."""

    def adapt(ports: Ports) -> Ports:
        return dataclasses.replace(ports, tasks=SimulatedTasks(Draws(of.workload, seed), budget=Budget(**limits)))

    return adapt


def payloads(result: SimulationResult, kind: type[Payload]) -> list[Any]:
    """All payloads of a type, in order."""
    return [event.payload for event in result.events if isinstance(event.payload, kind)]


def kinds(events: tuple[Event, ...]) -> Counter[str]:
    """Number of events of each kind."""
    return Counter(kind_of(event.payload) for event in events)
