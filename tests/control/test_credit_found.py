"""A run that finds its credit: every decision on record, bounds kept at every event, and the same after a crash."""

import pytest
from control.simulated_runs import config, faultless, payloads, run

from headrace.config import ScheduleSection
from headrace.control.capacity import CapacityControl, CapacityWatch
from headrace.errors import ConfigError
from headrace.records.batch import CapacityDecided, GroupAdmitted
from headrace.records.update import WeightsActivated

FOUND = {"mode": "separate_async", "max_credit_batches": 3}


def test_every_version_records_the_credit_that_admission_goes_by_from_then_on() -> None:
    result = run(FOUND, of=faultless(), updates=10)
    decided = payloads(result, CapacityDecided)
    assert [item.version for item in decided] == list(range(1, 11))
    assert len({item.credit_batches for item in decided}) > 1
    limit, peak = 8, 0
    for event in result.events:
        if isinstance(event.payload, CapacityDecided):
            limit = event.payload.max_outstanding
            assert 4 * 2 <= limit <= 4 * 4
        if isinstance(event.payload, GroupAdmitted):
            assert event.payload.outstanding <= limit
            peak = max(peak, event.payload.outstanding)
    assert peak > 4


def test_a_fixed_credit_records_no_decision() -> None:
    result = run({"mode": "separate_async", "credit_batches": 2}, of=faultless(), updates=3)
    assert payloads(result, WeightsActivated)
    assert payloads(result, CapacityDecided) == []


def test_a_run_that_goes_on_begins_with_the_credit_that_it_had_come_to() -> None:
    schedule = ScheduleSection(mode="separate_async", batch_groups=4)
    assert CapacityControl(schedule, CapacityWatch(), None).max_outstanding == 8
    assert CapacityControl(schedule, CapacityWatch(), 4.5).max_outstanding == 22


def test_auto_is_zero_in_sync_bounded_by_the_lag_of_policies_that_wait_and_refused_where_order_must_not_depend_on_time() -> (
    None
):
    assert config({"mode": "sync"}).schedule.most_credit_batches == 0
    assert config({"mode": "separate_async"}).schedule.most_credit_batches == 16
    assert config({"mode": "separate_async", "staleness": "wait", "max_lag": 4}).schedule.most_credit_batches == 4
    with pytest.raises(ConfigError, match=r"credit_batches auto; batches then depend on arrival"):
        config({"mode": "separate_async", "order": "ordinal"}, run={"deterministic": True})
    with pytest.raises(ConfigError, match=r"max_lag is 1 with credit_batches 2; under `window`"):
        config({"mode": "separate_async", "credit_batches": 2, "staleness": "window", "max_lag": 1})
    with pytest.raises(ConfigError, match=r"max_credit_batches is 2; it must be at least 3"):
        config({"mode": "separate_async", "start_credit_batches": 3, "max_credit_batches": 2})
