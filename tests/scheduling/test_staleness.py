"""Lag of groups and the earliest-deadline rule behind `wait`, against brute force."""

import itertools

import pytest

from headrace.scheduling.staleness import Sampled, StalenessRule, lag_of, must_train_now


def test_lag_is_token_weighted_and_span_is_within_one_trajectory() -> None:
    lag = lag_of([Sampled(((3, 10), (5, 30))), Sampled(((5, 40),))], version=6)
    assert (lag.oldest, lag.newest, lag.span) == (3, 1, 2)
    assert lag.mean == pytest.approx((3 * 10 + 1 * 70) / 80)


def test_two_trajectories_of_different_versions_have_no_span() -> None:
    assert lag_of([Sampled(((1, 5),)), Sampled(((4, 5),))], version=4).span == 0


def test_a_group_that_sampled_nothing_has_no_lag() -> None:
    assert lag_of([Sampled(())], version=4).oldest == -1


def test_only_rules_that_give_up_work_reject_and_only_beyond_the_bound() -> None:
    at_bound, beyond = lag_of([Sampled(((1, 5),))], 3).oldest, lag_of([Sampled(((0, 5),))], 3).oldest
    for policy in ("drop", "cancel", "requeue"):
        assert StalenessRule(policy, 2).drop_reason(at_bound) is None
        assert StalenessRule(policy, 2).drop_reason(beyond) == "stale: lag 3 > 2"
    for policy in ("pace", "wait", "window"):
        assert StalenessRule(policy, 2).drop_reason(beyond) is None


def test_a_running_group_is_ended_only_by_cancel_and_a_task_drawn_again_only_by_requeue() -> None:
    assert StalenessRule("requeue", 2).cancel_reason(0, 9) is None
    assert StalenessRule("cancel", 2).cancel_reason(1, 3) is None
    assert StalenessRule("cancel", 2).cancel_reason(0, 3) == "cancelled: lag 3 > 2"
    assert [StalenessRule(policy, 2).requeues for policy in ("drop", "cancel", "requeue")] == [False, False, True]


def can_all_train_in_time(slacks: list[int], batch_groups: int) -> bool:
    """Brute force: earliest deadline first, one batch per update, the first at slack 0."""
    order = sorted(slacks)
    return all(position // batch_groups <= slack for position, slack in enumerate(order))


@pytest.mark.parametrize("batch_groups", [1, 2, 3])
def test_taking_as_many_as_must_train_now_keeps_the_rest_feasible_and_one_fewer_does_not(batch_groups: int) -> None:
    for versions in itertools.product(range(4), repeat=4):
        version, max_lag = 3, 3
        needed = must_train_now(versions, version, max_lag, batch_groups)
        slack = sorted(w + max_lag - version for w in versions)
        if not can_all_train_in_time(slack, batch_groups):
            assert needed > batch_groups
            continue
        assert needed <= batch_groups
        left = [s - 1 for s in slack[needed:]]
        assert can_all_train_in_time(left, batch_groups)
        if needed:
            assert not can_all_train_in_time([s - 1 for s in slack[needed - 1 :]], batch_groups)
