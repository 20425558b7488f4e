import json
import math
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from headrace.algorithms import advantages as adv
from headrace.algorithms.advantages import RewardTable, group_advantages
from headrace.records.learning.advantages import AdvantageName, EstimatorOptions

FOLDER = Path(__file__).parents[1] / "oracles"
ORACLE = json.loads((FOLDER / "advantages.json").read_text())
ABS = ORACLE["tolerance"]


def close(actual, expected):
    return actual == pytest.approx(expected, abs=ABS)


def one(estimator, rewards, **options):
    return estimator(RewardTable.of([rewards]), **options).lists()[0]


def test_every_estimator_gives_the_known_advantages_of_a_mixed_group():
    case = ORACLE["mixed_group"]
    rewards = case["rewards"]
    assert close(one(adv.grpo, rewards), case["grpo_ddof1"])
    assert close(one(adv.grpo, rewards, ddof=0), case["grpo_ddof0"])
    assert close(one(adv.rloo, rewards), case["rloo"])
    assert close(one(adv.leave_one_out_std, rewards), case["loo_std"])
    assert close(one(adv.maxrl, rewards), case["maxrl"])


def test_the_two_deviations_differ_by_the_root_of_n_over_n_minus_1():
    case = ORACLE["mixed_group"]
    assert not close(one(adv.grpo, case["rewards"]), case["grpo_ddof0"])
    ratio = one(adv.grpo, case["rewards"], ddof=0, epsilon=0.0)[0] / one(adv.grpo, case["rewards"], epsilon=0.0)[0]
    assert ratio == pytest.approx(math.sqrt(8 / 7))


def test_rloo_is_mean_only_times_n_over_n_minus_1():
    rewards = ORACLE["mixed_group"]["rewards"]
    assert one(adv.rloo, rewards) == pytest.approx([8 / 7 * value for value in one(adv.mean_only, rewards)])


def test_a_lone_success_is_not_divided_by_the_zero_deviation_of_the_others():
    case = ORACLE["lone_success"]
    assert close(one(adv.leave_one_out_std, case["rewards"]), case["loo_std"])
    unguarded = one(adv.leave_one_out_std, case["rewards"], tolerance=-1.0)
    assert unguarded[0] == pytest.approx(case["wrong_unguarded_first"])


def test_grader_noise_becomes_a_signal_only_without_a_tolerance():
    case = ORACLE["grader_noise"]
    assert close(one(adv.grpo, case["rewards"]), [0.0] * 4)
    assert close(one(adv.grpo, case["rewards"], tolerance=0.0), case["grpo_without_tolerance"])
    assert one(adv.mean_only, case["rewards"]) == pytest.approx(case["mean"], rel=1e-4)


@pytest.mark.parametrize("estimator", get_args(adv.Estimator))
def test_a_single_member_has_no_advantage(estimator):
    case = ORACLE["singleton"]
    assert group_advantages(estimator, [case["rewards"], [0.3, None]]) == [[None], [None, None]]
    assert one(adv.grpo, case["rewards"]) != [pytest.approx(case["wrong_mean_0_std_1"])]


@pytest.mark.parametrize("estimator", get_args(adv.Estimator))
@pytest.mark.parametrize("value", [0.0, 0.1, 1.0])
def test_a_constant_group_has_exactly_zero_advantages(estimator, value):
    assert group_advantages(estimator, [[value] * 3, [1.0, 0.0]])[0] == [0.0] * 3


def test_a_member_without_a_reward_has_no_vote_and_no_advantage():
    case = ORACLE["absent_member"]
    for estimator, name in ((adv.mean_only, "mean"), (adv.grpo, "grpo_ddof1"), (adv.rloo, "rloo")):
        values = one(estimator, case["rewards"])
        assert values[1] is None
        assert close([value for value in values if value is not None], case[name])


def test_absent_and_zero_reward_differ():
    case = ORACLE["absent_member"]
    absent = one(adv.mean_only, case["rewards"])
    as_zero = one(adv.mean_only, [value or 0 for value in case["rewards"]])
    as_one = one(adv.mean_only, [1 if value is None else value for value in case["rewards"]])
    assert close(as_zero, case["wrong_absent_as_0"])
    assert close(as_one, case["wrong_absent_as_1"])
    assert absent[0] not in (as_zero[0], as_one[0])


def test_the_baseline_with_token_whitening_lets_long_members_weigh_more():
    case = ORACLE["two_groups"]
    table = RewardTable.of(case["rewards"])
    flat = [value for group in adv.reinforce_pp_baseline(table, case["lengths"]).lists() for value in group]
    assert close(flat, case["reinforce_pp_baseline"])
    equal = [value for group in adv.reinforce_pp_baseline(table, [[1] * 4] * 2).lists() for value in group]
    assert not close(equal, case["reinforce_pp_baseline"])


def test_the_batch_deviation_is_taken_over_all_rewards():
    case = ORACLE["two_groups"]
    flat = [value for group in group_advantages("batch_std", case["rewards"]) for value in group]
    assert close(flat, case["batch_std"])


def test_opo_weighs_the_baseline_by_length():
    case = ORACLE["opo"]
    assert close(adv.opo(RewardTable.of([case["rewards"]]), [case["lengths"]]).lists()[0], case["opo"])
    equal = adv.opo(RewardTable.of([case["rewards"]]), [[1] * 4]).lists()[0]
    assert close(equal, case["wrong_equal_weights"])
    absent = adv.opo(RewardTable.of([[1.0, None, 0.0]]), [[2, 50, 2]]).lists()[0]
    assert absent == [0.5, None, -0.5]


def test_reinforce_pp_whitens_over_tokens_and_needs_no_group():
    rewards, lengths = [[1.0], [0.0], [None], [1.0]], [[3], [5], [9], [2]]
    values = adv.reinforce_pp(RewardTable.of(rewards), lengths).lists()
    tokens = np.repeat([1.0, 0.0, 1.0], [3, 5, 2])
    expected = [(value - tokens.mean()) / tokens.std(ddof=1) for value in (1.0, 0.0, 1.0)]
    assert [values[0][0], values[1][0], values[3][0]] == pytest.approx(expected, abs=1e-6)
    assert values[2] == [None]


def test_every_named_advantage_leaves_absent_members_out():
    data = adv.MemberData(
        [[1.0, None, 0.0, 0.0], [0.25, 1.0]],
        [[3, 7, 2, 2], [4, 1]],
        [[{"a": 1.0}, None, {"a": 0.0}, {"a": 0.0}], [{"a": 0.25}, {"a": 1.0}]],
    )
    for name in get_args(AdvantageName):
        weights = {"a": 1.0} if name == "gdpo" else {}
        found = adv.batch_advantages(name, data, EstimatorOptions(component_weights=weights))
        without = adv.MemberData(
            [[1.0, 0.0, 0.0], [0.25, 1.0]],
            [[3, 2, 2], [4, 1]],
            [[{"a": 1.0}, {"a": 0.0}, {"a": 0.0}], [{"a": 0.25}, {"a": 1.0}]],
        )
        alone = adv.batch_advantages(name, without, EstimatorOptions(component_weights=weights))
        assert found[0][1] is None, name
        assert [v for group in found for v in group if v is not None] == pytest.approx([v for g in alone for v in g])


def test_the_deviation_of_grpo_is_a_named_choice():
    data = adv.MemberData([ORACLE["mixed_group"]["rewards"]], [[1] * 8], [[None] * 8])
    population = adv.batch_advantages("grpo", data, EstimatorOptions(ddof=0))
    assert close(population[0], ORACLE["mixed_group"]["grpo_ddof0"])


def test_a_weighted_component_that_a_verdict_lacks_is_refused():
    data = adv.MemberData([[1.0, 0.0]], [[1, 1]], [[{"a": 1.0}, {"b": 0.0}]])
    with pytest.raises(ValueError, match="`a` is weighted"):
        adv.batch_advantages("gdpo", data, EstimatorOptions(component_weights={"a": 1.0}))


def test_gdpo_normalises_each_component_before_it_adds_them():
    case = ORACLE["two_components"]
    parts = {name: RewardTable.of([case[name]]) for name in case["weights"]}
    assert close(adv.gdpo(parts, case["weights"]).lists()[0], case["gdpo"])
    summed = [a + b for a, b in zip(case["correct"], case["format"], strict=True)]
    assert close(one(adv.grpo, summed), case["wrong_sum_then_grpo"])
    assert not close(case["wrong_sum_then_grpo"], case["gdpo"])


def test_a_member_that_lacks_one_component_has_no_advantage_under_gdpo():
    parts = {"a": RewardTable.of([[1.0, 0.0, 1.0, 0.0]]), "b": RewardTable.of([[1.0, None, 0.0, 1.0]])}
    values = adv.gdpo(parts, {"a": 1.0, "b": 1.0}).lists()[0]
    assert [value is None for value in values] == [False, True, False, False]


def test_maxrl_refuses_negative_rewards():
    with pytest.raises(ValueError, match=r"-0\.5"):
        group_advantages("maxrl", [[1.0, -0.5]])


def test_a_reward_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="not finite"):
        RewardTable.of([[1.0, float("nan")]])


@pytest.mark.parametrize("estimator", get_args(adv.Estimator))
def test_groups_of_unequal_size_do_not_touch_each_other(estimator):
    groups = [[1.0, 0.0, 0.5], [0.0, 1.0], [1.0, None, 0.0, 0.0, 0.25]]
    together = group_advantages(estimator, groups)
    assert [len(group) for group in together] == [3, 2, 5]
    if estimator != "batch_std":
        for group, values in zip(groups, together, strict=True):
            alone = group_advantages(estimator, [group])[0]
            assert [v is None for v in values] == [v is None for v in alone]
            assert [v for v in values if v is not None] == pytest.approx([v for v in alone if v is not None], abs=1e-12)


def test_advantages_of_a_group_sum_to_zero_under_a_group_baseline():
    rng = np.random.default_rng(3)
    groups = rng.random((20, 7)).tolist()
    for estimator in ("mean", "grpo", "rloo", "maxrl"):
        sums = [sum(v for v in group if v is not None) for group in group_advantages(estimator, groups)]
        assert sums == pytest.approx([0.0] * 20, abs=1e-9)
