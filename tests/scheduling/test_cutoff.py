from headrace.scheduling.cutoff import Cutoff
from headrace.scheduling.staleness import Sampled, lag_of


def test_a_finished_group_is_ended_only_beyond_the_bound() -> None:
    rule = Cutoff(2)
    assert rule.drop_reason(lag_of([Sampled(((1, 5),))], 3)) is None
    assert rule.drop_reason(lag_of([Sampled(((0, 5),))], 3)) == "stale: lag 3 > 2"


def test_a_running_group_is_ended_only_by_a_rule_that_cancels() -> None:
    assert Cutoff(2).cancel_reason(0, 9) is None
    assert Cutoff(2, cancels=True).cancel_reason(1, 3) is None
    assert Cutoff(2, cancels=True).cancel_reason(0, 3) == "cancelled: lag 3 > 2"
