import itertools
import json
from pathlib import Path

import pytest
from planning.expectations import group_loss, groups_per_kept

from headrace.algorithms.advantages import group_advantages
from headrace.algorithms.filters import is_informative, overlong_penalty

ORACLE = json.loads((Path(__file__).parents[1] / "oracles" / "filters.json").read_text())
ABS = ORACLE["tolerance"]


def test_the_overlong_penalty_rises_over_the_buffer():
    case = ORACLE["overlong"]
    shape = {name: case[name] for name in ("budget", "buffer", "penalty")}
    assert [overlong_penalty(length, **shape) for length in case["lengths"]] == pytest.approx(
        case["penalties"], abs=ABS
    )
    assert overlong_penalty(10**9, **shape) == -1.0
    with pytest.raises(ValueError, match="buffer is 0"):
        overlong_penalty(1, budget=10, buffer=0, penalty=1.0)


def test_dynamic_sampling_keeps_groups_whose_rewards_differ():
    case = ORACLE["dynamic_sampling"]
    kept = [name for name, rewards in case["groups"].items() if is_informative(rewards, case["tolerance"])]
    assert kept == case["kept"]
    assert is_informative(case["groups"]["d"], 0.0)  # without a tolerance grader noise would count as a signal
    assert not is_informative([1.0, None])
    assert not is_informative([])


def test_what_dynamic_sampling_costs_is_the_inverse_of_the_share_it_keeps():
    case = ORACLE["cost"]
    assert groups_per_kept(case["rate"], case["members"]) == pytest.approx(case["groups_per_kept"], abs=ABS)
    rate, members = 0.3, 4
    mixed = sum(
        rate ** sum(outcome) * (1 - rate) ** (members - sum(outcome))
        for outcome in itertools.product((0, 1), repeat=members)
        if is_informative([float(value) for value in outcome])
    )
    assert groups_per_kept(rate, members) == pytest.approx(1 / mixed)
    with pytest.raises(ValueError, match="never"):
        groups_per_kept(1.0, 8)


def test_dropping_whole_groups_for_one_lost_member_would_cost_a_third():
    case = ORACLE["group_loss"]
    assert group_loss(case["rate"], case["members"]) == pytest.approx(case["share"], abs=ABS)


def test_a_truncated_member_leaves_loss_and_baseline_together():
    case = ORACLE["truncated"]
    rewards = [None if cut else reward for reward, cut in zip(case["rewards"], case["is_truncated"], strict=True)]
    (masked,) = group_advantages("mean", [rewards])
    assert masked[2] is None
    assert [value for value in masked if value is not None] == pytest.approx(case["mean"], abs=ABS)
    (kept,) = group_advantages("mean", [case["rewards"]])
    assert [kept[0], kept[1], kept[3]] == pytest.approx(case["wrong_kept_as_0"], abs=ABS)
