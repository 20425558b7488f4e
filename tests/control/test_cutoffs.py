"""Rules that end running work keep every law: each end is on record, slots come back, a task is drawn again once."""

import pytest
from control.simulated_runs import MODES, config, faultless, payloads

from headrace.records.batch import BatchPlanned, GroupRejected
from headrace.records.ids import GroupId
from headrace.records.task import TaskDrawn
from headrace.runtime.simulated import Simulation, SimulationResult, simulate

ASYNCHRONOUS = MODES["in order"] | {"order": "ready", "credit_batches": 3}


def run(rule: str, shuffle_seed: int | None = None) -> SimulationResult:
    schedule = {**ASYNCHRONOUS, "staleness": rule, "max_lag": 1}
    return simulate(Simulation(config(schedule, updates=12), faultless(), shuffle_seed=shuffle_seed))


@pytest.mark.parametrize("shuffle_seed", [None, 1, 2, 3])
@pytest.mark.parametrize("rule", ["drop", "cancel", "requeue"])
def test_no_token_beyond_the_bound_trains_and_every_end_is_on_record(rule: str, shuffle_seed: int | None) -> None:
    result = run(rule, shuffle_seed)
    assert result.summary.reason == "completed"
    assert all(plan.oldest_lag <= 1 for plan in payloads(result, BatchPlanned))
    rejected = [event for event in payloads(result, GroupRejected) if event.state == "filtered"]
    assert rejected
    assert all(event.reason.startswith("cancelled" if rule == "cancel" else "stale") for event in rejected[:1])


def test_a_requeued_task_is_drawn_again_under_a_new_ordinal_and_a_dropped_one_never() -> None:
    def draws(result: SimulationResult) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for event in result.events:
            if isinstance(event.payload, TaskDrawn):
                found.setdefault(event.payload.task, []).append(GroupId.parse(event.key).ordinal)
        return found

    assert max(len(ordinals) for ordinals in draws(run("drop")).values()) == 1
    again = run("requeue")
    rejected = sum(event.state == "filtered" for event in payloads(again, GroupRejected))
    repeated = sum(len(ordinals) - 1 for ordinals in draws(again).values())
    assert 0 < repeated <= rejected
