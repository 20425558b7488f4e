"""Throughput, lag and mix together: nothing beats the credit that is found, and no rule in use elsewhere lies outside."""

import msgspec
import pytest
from planning.scenarios import small

from headrace.planning.experiment import Cell, Measured, run_cell
from headrace.planning.frontier import REFERENCES, Reference, covering, frontier
from headrace.planning.rollout import FOUND, RULES, SYNC, asynchronous
from headrace.simulation.scenario import Scenario, load_scenario


def measure(schedule: dict[str, object], updates: int, of: Scenario | None = None, seed: int = 7) -> Measured:
    return run_cell(Cell(RULES, str(schedule), of or load_scenario("ten_times"), schedule, updates), seed)


@pytest.fixture(scope="module")
def slow_and_fast() -> tuple[Measured, Measured]:
    return measure(asynchronous(1), 12, small()), measure(asynchronous(6), 12, small())


def test_cores_that_engine_and_trainer_want_at_once_slow_a_run_that_overlaps_them() -> None:
    engine = msgspec.structs.replace(small().engine, while_training=0.25)
    contended = msgspec.structs.replace(small(), engine=engine)
    (sync, same_sync), (ahead, same_ahead) = (
        [measure(schedule, 6, scenario).outcome.makespan_s for scenario in (small(), contended)]
        for schedule in (SYNC, asynchronous(2))
    )
    assert same_sync == pytest.approx(sync)
    assert same_ahead > 1.1 * ahead


def test_a_cell_that_another_one_beats_everywhere_is_not_on_the_frontier(
    slow_and_fast: tuple[Measured, Measured],
) -> None:
    slow, fast = slow_and_fast
    lags = msgspec.structs.replace(slow.outcome.lags, token_p95=fast.outcome.lags.token_p95 + 1)
    worse = msgspec.structs.replace(slow, outcome=msgspec.structs.replace(slow.outcome, lags=lags))
    assert frontier([worse, fast]) == [fast]
    assert frontier([slow, fast]) == [slow, fast]


def test_a_reference_is_covered_only_by_a_rule_as_good_in_throughput_lag_and_mix(
    slow_and_fast: tuple[Measured, Measured],
) -> None:
    slow, fast = slow_and_fast
    rate, lag = fast.outcome.groups_per_ks, fast.outcome.lags.oldest_max
    share = fast.outcome.strata["long"].trained_share
    assert covering(Reference("same", rate, lag, share), [slow, fast]) == fast
    assert covering(Reference("faster", 1.1 * rate, lag, share), [slow, fast]) is None
    assert covering(Reference("fresher", rate, lag - 1, share), [slow, fast]) is None
    assert covering(Reference("fairer", rate, lag, share + 0.1), [slow, fast]) is None


@pytest.mark.slow
@pytest.mark.parametrize("start", [1, 16])
def test_the_credit_that_is_found_keeps_the_slots_full_the_mix_whole_and_the_wait_short(start: int) -> None:
    found = measure({**FOUND, "start_credit_batches": start}, 120)
    lags = found.outcome.lags
    assert found.outcome.steady_groups_per_ks >= 0.95 * 281.0
    assert found.outcome.strata["long"].trained_share >= 0.095
    assert found.outcome.rejected_groups == 0
    assert lags.wait_mean <= 0.8
    assert lags.wait_max <= 2
    assert 0 < lags.token_mean < lags.token_p95 < lags.oldest_max
    for reference in REFERENCES:
        if reference.rule.startswith("admission by average (8"):
            assert covering(reference, [found]) == found
