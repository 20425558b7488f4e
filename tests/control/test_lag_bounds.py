"""The bounds of docs/staleness.md, recounted from simulated runs in which some tasks take ten times as long."""

from typing import Any

import msgspec
import pytest
from control.simulated_runs import config

from headrace.planning.outcome import outcome_of
from headrace.records.batch import BatchPlanned, BatchSelected, GroupAdmitted, GroupRejected
from headrace.records.events import Event
from headrace.records.update import WeightsActivated
from headrace.runtime.simulated import Simulation, simulate
from headrace.simulation.laws import Constant
from headrace.simulation.scenario import Scenario, load_scenario

BATCH, UPDATES = 4, 16


def ten_times(**workload: Any) -> Scenario:
    """Groups of 4 in batches of 4 on 32 slots."""
    base = load_scenario("ten_times")
    engine = msgspec.structs.replace(base.engine, slots=32, decode=((32, 32.0),))
    workloads = msgspec.structs.replace(base.workload, **workload)
    return msgspec.structs.replace(base, workload=workloads, engine=engine, group_size=4, batch_groups=BATCH)


def log(of: Scenario, shuffle_seed: int | None = None, **schedule: Any) -> tuple[Event, ...]:
    timeouts = dict.fromkeys(("generate_s", "tool_s", "environment_s", "grade_s", "update_s", "publish_s"), 1e9)
    configured = config({"mode": "separate_async", **schedule}, updates=UPDATES, timeouts=timeouts)
    return simulate(Simulation(configured, of, shuffle_seed=shuffle_seed)).events


def outstanding(events: tuple[Event, ...]) -> list[int]:
    """Groups that hold a slot after each event, recounted."""
    held: set[str] = set()
    batch: tuple[str, ...] = ()
    counts: list[int] = []
    for event in events:
        match event.payload:
            case GroupAdmitted():
                held.add(event.key)
            case GroupRejected():
                held.discard(event.key)
            case BatchPlanned(groups=groups):
                batch = tuple(map(str, groups))
            case WeightsActivated():
                held.difference_update(batch)
            case _:
                pass
        counts.append(len(held))
    return counts


def admission_lags(events: tuple[Event, ...]) -> list[int]:
    """Versions from admission to hand-over of every trained group."""
    admitted: dict[str, int] = {}
    version, found = 0, list[int]()
    for event in events:
        match event.payload:
            case GroupAdmitted(version=at):
                admitted[event.key] = at
            case WeightsActivated(policy=policy):
                version = policy.version
            case BatchSelected(groups=groups):
                found += [version - admitted[str(group)] for group in groups]
            case _:
                pass
    return found


@pytest.mark.parametrize("shuffle_seed", [None, 3])
@pytest.mark.parametrize("credit", [1, 2, 4])
@pytest.mark.parametrize("order", ["ready", "ordinal"])
def test_credit_bounds_slots_at_every_instant_and_the_mean_lag_and_order_the_largest(
    order: str, credit: int, shuffle_seed: int | None
) -> None:
    events = log(ten_times(), shuffle_seed, credit_batches=credit, order=order)
    assert max(outstanding(events)) == (credit + 1) * BATCH
    lags = admission_lags(events)
    assert sum(lags) / len(lags) <= credit
    if order == "ordinal":
        assert max(lags) == credit
    else:
        assert max(lags) > credit, "credit bounds the mean, no single group"


@pytest.mark.parametrize("max_lag", [2, 3, 5])
@pytest.mark.parametrize("policy", ["wait", "window", "drop", "cancel", "requeue"])
def test_every_policy_but_pace_holds_its_bound_and_only_three_of_them_end_work(policy: str, max_lag: int) -> None:
    events = log(ten_times(), credit_batches=2, staleness=policy, max_lag=max_lag)
    planned = [event.payload for event in events if isinstance(event.payload, BatchPlanned)]
    assert len(planned) == UPDATES
    assert max(plan.oldest_lag for plan in planned) <= max_lag
    assert max(outstanding(events)) <= 3 * BATCH
    rejected = [e.payload for e in events if isinstance(e.payload, GroupRejected) and e.payload.state == "filtered"]
    assert bool(rejected) == (policy in ("drop", "cancel", "requeue"))
    for event in rejected:
        assert event.difficulty
        assert event.duration_s > 0.0
        assert event.newest_lag <= event.mean_lag <= event.oldest_lag
        assert event.is_requeued == (policy == "requeue")


def test_the_window_of_the_credit_alone_is_strict_order() -> None:
    strict = log(ten_times(), credit_batches=2, order="ordinal")
    window = log(ten_times(), credit_batches=2, staleness="window", max_lag=2)
    assert [e.payload.groups for e in strict if isinstance(e.payload, BatchPlanned)] == [
        e.payload.groups for e in window if isinstance(e.payload, BatchPlanned)
    ]


def test_the_worst_case_of_the_mean_is_reached_when_the_trainer_is_the_bottleneck() -> None:
    lags = admission_lags(log(ten_times(tokens=Constant(value=1.0)), credit_batches=3))
    steady = lags[4 * BATCH :]
    assert sum(steady) / len(steady) == pytest.approx(3.0)


def test_lag_is_span_and_wait_and_pacing_makes_the_long_ones_span_not_wait() -> None:
    lags = outcome_of(log(ten_times(), credit_batches=4), UPDATES).lags
    assert lags.oldest_mean == pytest.approx(lags.span_mean + lags.wait_mean)
    assert lags.span_max > 4 > lags.wait_max
