"""Which groups that trained fill up a batch."""

import pytest

from headrace.records.experience import Replay
from headrace.scheduling.replay import ReplayRule, TrainedGroup


def rule(batch_groups: int = 6, **replay: object) -> ReplayRule:
    numbers: dict[str, object] = {"kind": "recent", "uses": 3, "max_lag": 4, "share": 0.25, **replay}
    return ReplayRule(Replay(**numbers), batch_groups)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch_groups", "share", "places"),
    [(12, 0.25, 4), (6, 0.25, 2), (4, 0.5, 4), (4, 0.2, 1), (4, 0.19, 0), (1, 0.75, 3)],
)
def test_replayed_groups_make_up_the_share_of_the_batch_at_most(batch_groups: int, share: float, places: int) -> None:
    found = rule(batch_groups, share=share).places
    assert found == places
    assert found / (found + batch_groups) <= share


def test_the_smallest_lag_comes_first_then_the_fewest_uses_then_the_order_drawn() -> None:
    groups = [TrainedGroup(0, 1, 2), TrainedGroup(1, 2, 1), TrainedGroup(2, 1, 1), TrainedGroup(3, 1, 1)]
    decision = rule().choose(groups)
    assert decision.uses == {2: 2, 3: 2}
    assert rule(batch_groups=9).choose(groups).uses == {2: 2, 3: 2, 1: 3}
    assert decision.retired == {}


def test_a_group_beyond_a_bound_is_retired_with_the_reason_and_never_chosen() -> None:
    decision = rule(batch_groups=30).choose([TrainedGroup(0, 3, 1), TrainedGroup(1, 1, 5), TrainedGroup(2, 2, 4)])
    assert decision.uses == {2: 3}
    assert decision.retired == {0: "used 3 times, 3 are allowed", 1: "lag 5 > 4"}


def test_without_the_rule_nothing_is_kept_and_nothing_chosen() -> None:
    none = rule(kind="none")
    assert (none.keeps, none.places, none.choose([TrainedGroup(0, 1, 0)]).uses) == (False, 0, {})
