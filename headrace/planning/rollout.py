"""The cells of the rollout experiment: modes, rules, sweeps, and configurations in which asynchronous training loses."""

from typing import Any

import msgspec

from headrace.planning.experiment import Cell
from headrace.simulation.costs import EngineCost, TrainerCost
from headrace.simulation.laws import Constant
from headrace.simulation.scenario import Scenario, load_scenario
from headrace.simulation.workload import Stratum, Workload

MODES, RULES, LAG, CREDIT, LOSES, CURVE = "modes", "rules", "max_lag", "credit_batches", "loses", "published curve"
SYNC: dict[str, Any] = {"mode": "sync", "credit_batches": 0}
FOUND: dict[str, Any] = {"mode": "separate_async", "credit_batches": "auto"}
LAG_SWEEP = (1, 2, 4, 8)
CREDIT_SWEEP = (1, 2, 4, 8)
PUBLISHED_LAGS = (0, 1, 2, 4, 8, 16, None)
PUBLISHED_THROUGHPUT = (1.0, 2.09, 2.77, 2.77, 2.89, 2.97, 3.08)
"""Throughput against the allowed lag, as published for a 1.5B mathematics run."""
UNBOUNDED = 64
"""Credit that never binds in the published curve."""


def asynchronous(credit: int, **schedule: Any) -> dict[str, Any]:
    """Schedule of separate placement with so much credit."""
    return {"mode": "separate_async", "credit_batches": credit, **schedule}


def in_turns(credit: int) -> dict[str, Any]:
    """Schedule of generation and training that take turns on the same devices, with so much credit."""
    return {"mode": "colocate_async", "credit_batches": credit}


def rollout_cells(scenario: Scenario, updates: int, curve_updates: int) -> list[Cell]:
    """Every cell of the experiment."""
    return [
        *mode_cells(scenario, updates),
        *rule_cells(scenario, updates),
        *lag_cells(scenario, updates),
        *credit_cells(scenario, updates),
        *losing_cells(updates),
        *curve_cells(curve_updates),
    ]


def mode_cells(scenario: Scenario, updates: int) -> list[Cell]:
    """The three modes: synchronous waiting, turns on shared devices, and asynchronous consumption on separate ones."""
    shared = msgspec.structs.replace(scenario, placement="shared")
    return [
        Cell(MODES, "sync", scenario, SYNC, updates),
        Cell(MODES, "colocate_async, credit 1", shared, in_turns(1), updates),
        Cell(MODES, "colocate_async, credit 6", shared, in_turns(6), updates),
        Cell(MODES, "separate_async, credit 1", scenario, asynchronous(1), updates),
        Cell(MODES, "separate_async, credit 6", scenario, asynchronous(6), updates),
        Cell(MODES, "separate_async, credit found", scenario, FOUND, updates),
    ]


def rule_cells(scenario: Scenario, updates: int, lag: int = 4) -> list[Cell]:
    """Every rule of this project, and those in use elsewhere as values of it, at one allowed lag."""
    rules: list[tuple[str, dict[str, Any]]] = [
        ("synchronous", SYNC),
        ("admission by average (1)", asynchronous(1)),
        (f"admission by average ({lag})", asynchronous(lag)),
        ("admission by average (8)", asynchronous(8)),
        (f"in order ({lag})", asynchronous(lag, order="ordinal")),
        (f"wait, lag <= {lag}", asynchronous(lag, staleness="wait", max_lag=lag)),
        (f"window, lag <= {2 * lag}", asynchronous(lag, staleness="window", max_lag=2 * lag)),
        (f"drop at use ({lag})", asynchronous(lag, staleness="drop", max_lag=lag)),
        (f"cancel when stale ({lag})", asynchronous(lag, staleness="cancel", max_lag=lag)),
        (f"requeue when stale ({lag})", asynchronous(lag, staleness="requeue", max_lag=lag)),
        (f"requeue when stale ({lag}), credit 31", asynchronous(31, staleness="requeue", max_lag=lag)),
        ("wait, lag <= 24", asynchronous(6, staleness="wait", max_lag=24)),
        ("pace at the knee (6)", asynchronous(max(lag, 6))),
        ("pace, credit found", FOUND),
    ]
    return [Cell(RULES, name, scenario, schedule, updates) for name, schedule in rules]


def lag_cells(scenario: Scenario, updates: int) -> list[Cell]:
    """A sweep of the largest allowed lag, under each rule that bounds it."""
    cells: list[Cell] = []
    for lag in LAG_SWEEP:
        for rule in ("wait", "drop", "cancel", "requeue"):
            schedule = asynchronous(lag, staleness=rule, max_lag=lag)
            cells.append(Cell(LAG, rule, scenario, schedule, updates, lag))
    return cells


def credit_cells(scenario: Scenario, updates: int) -> list[Cell]:
    """A sweep of credit under `pace` and strictly in order."""
    cells: list[Cell] = []
    for credit in CREDIT_SWEEP:
        cells.append(Cell(CREDIT, "pace", scenario, asynchronous(credit), updates, credit))
        cells.append(Cell(CREDIT, "in order", scenario, asynchronous(credit, order="ordinal"), updates, credit))
    return cells


def losing_cells(updates: int) -> list[Cell]:
    """Pairs (synchronous, asynchronous) in which asynchronous training is the slower one, each for a reason of its own."""
    cells: list[Cell] = []
    for name, synchronous, other, schedule in losing_pairs():
        cells.append(Cell(LOSES, f"{name}: synchronous", synchronous, SYNC, updates))
        cells.append(Cell(LOSES, f"{name}: asynchronous", other, schedule, updates))
    return cells


def losing_pairs() -> list[tuple[str, Scenario, Scenario, dict[str, Any]]]:
    """(name, synchronous scenario, asynchronous scenario, asynchronous schedule)."""
    one_step = asynchronous(1)
    # One published run on 16 devices took 221 s a step on policy and 301 s one step off. With half of the devices for each
    # phase, generation of 150.5 s and training of 70.5 s become 301 and 141 s, and the slower one sets the pace.
    whole, half = _two_phases(150.5, 70.5), _two_phases(301.0, 141.0)
    rebuild = _long_answers(placement="separate")
    switching = _long_answers(placement="shared", switch_s=20.0)
    return [
        ("devices split in halves", whole, half, one_step),
        ("caches rebuilt at each version, generation >> training", rebuild, rebuild, asynchronous(3)),
        ("shared devices with a switch, generation >> training", switching, switching, in_turns(3)),
    ]


def curve_cells(updates: int) -> list[Cell]:
    """Throughput against the allowed lag on the published workload; the rule behind it admits by credit, as `pace` does."""
    scenario = load_scenario("allowed_lag")
    cells: list[Cell] = []
    for lag in PUBLISHED_LAGS:
        credit = UNBOUNDED if lag is None else lag
        schedule = asynchronous(credit) if credit else SYNC
        cells.append(Cell(CURVE, "unbounded" if lag is None else str(lag), scenario, schedule, updates, credit))
    return cells


def _two_phases(generate_s: float, train_s: float) -> Scenario:
    """Equal lengths: a batch is generated in one time, and trained in another."""
    return Scenario(
        workload=Workload(
            name="split devices",
            source="one published 16-device run, 221 s a step on policy and 301 s one step off; halves are assumed",
            tokens=Constant(value=generate_s),
            strata=(Stratum(name="equal"),),
        ),
        engine=EngineCost(slots=64, decode=((64, 64.0),)),
        trainer=TrainerCost(update_s=Constant(value=train_s)),
        group_size=4,
        batch_groups=16,
    )


def _long_answers(placement: str, switch_s: float = 0.0) -> Scenario:
    """Answers of 8000 tokens +- 10% on an engine that one batch saturates: an update takes 2% of generating a batch.

    Overlap can hide no more than that 2%, while each version makes the engine compute the caches of all that runs again.
    """
    return msgspec.convert(
        {
            "workload": {
                "name": "long answers",
                "source": "stated, not measured",
                "tokens": {"law": "normal", "mean": 8000.0, "sigma": 800.0},
                "strata": [{"name": "long answers"}],
            },
            "engine": {"slots": 64, "decode": [[32, 640.0], [64, 640.0]], "prefill_tokens_per_s": 1000.0},
            "trainer": {"update_s": {"law": "constant", "value": 8.0}},
            "group_size": 4,
            "batch_groups": 8,
            "placement": placement,
            "switch_s": switch_s,
        },
        Scenario,
    )
