import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from planning.expectations import fraction_of_optimum, optimum_per_hour

from headrace.algorithms import information as info
from headrace.algorithms.information import GroupSignal

FOLDER = Path(__file__).parents[1] / "oracles"
ORACLE = json.loads((FOLDER / "information.json").read_text())
ABS = ORACLE["tolerance"]


def signal(task, *rewards, stratum="easy"):
    return GroupSignal(task, stratum, tuple(rewards))


def test_the_information_of_a_group_is_its_unbiased_variance_over_the_largest():
    values = [info.group_information(group) for group in ORACLE["groups"]]
    assert values == pytest.approx(ORACLE["v"], abs=ABS)


def expectation(rate, members, of):
    total = 0.0
    for outcome in itertools.product((0, 1), repeat=members):
        total += rate ** sum(outcome) * (1 - rate) ** (members - sum(outcome)) * of(outcome)
    return total


def test_its_expectation_is_4p_1_minus_p_and_a_cap_would_break_that():
    case = ORACLE["unbiased"]
    for rate, expected in zip(case["rates"], case["expectation"], strict=True):
        for members in (2, case["members"], 6):
            assert expectation(rate, members, info.group_information) == pytest.approx(expected, abs=ABS)
        capped = expectation(rate, case["members"], lambda group: min(1.0, info.group_information(group)))
        mixed = expectation(rate, case["members"], lambda group: float(len(set(group)) > 1))
        assert capped < expected - 1e-3
        assert mixed != pytest.approx(expected, abs=1e-3)


def test_a_reward_range_scales_the_information():
    assert info.group_information((2.0, 0.0), 0.0, 2.0) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="empty"):
        info.group_information((1.0, 0.0), 1.0, 1.0)


def test_verdict_noise_discounts_to_nothing_at_one_half():
    case = ORACLE["noise"]
    assert [info.noise_discount(rate) for rate in case["flip_rates"]] == pytest.approx(case["kappa"], abs=ABS)
    with pytest.raises(ValueError, match="inverted"):
        info.noise_discount(0.6)


def test_pure_noise_would_look_best_without_its_discount():
    groups = [signal("a", 1, 0, 1, 0)]
    assert info.effective_information(groups, {"easy": 1.0})["easy"] > 4
    assert info.effective_information(groups, {"easy": 1.0}, {"easy": 0.5}) == {"easy": 0.0}


def test_a_task_trained_twice_counts_once():
    once = [signal("a", 1, 0), signal("b", 1, 0, 1, 1)]
    twice = [*once, signal("a", 0, 1), signal("b", 1, 1, 1, 0)]
    fresh = {"easy": 1.0}
    assert info.effective_information(twice, fresh) == info.effective_information(once, fresh) == {"easy": 8.0}
    distinct = [*once, replace(once[0], task="c")]
    assert info.effective_information(distinct, fresh)["easy"] == 12.0


def test_staleness_and_absent_members_lower_the_figure():
    groups = [signal("a", 1, 0, None, None)]
    assert info.effective_information(groups, {"easy": 1.0}) == {"easy": 4.0}
    assert info.effective_information(groups, {"easy": 0.25}) == {"easy": 1.0}


def test_a_stratum_without_a_sample_size_is_not_taken_for_fresh():
    with pytest.raises(KeyError):
        info.effective_information([signal("a", 1, 0)], {})
    with pytest.raises(ValueError, match=r"1\.2"):
        info.effective_information([signal("a", 1, 0)], {"easy": 1.2})


def test_retention_names_the_worst_stratum():
    case = ORACLE["retention"]
    result = info.retention(case["trained"], case["offered"])
    assert result.by_stratum == pytest.approx(case["by_stratum"], abs=ABS)
    assert (result.worst, result.overall) == (case["worst"], pytest.approx(case["overall"], abs=ABS))


def test_retention_of_nothing_offered_is_absent():
    result = info.retention({}, {"easy": 0.0})
    assert (result.by_stratum, result.worst, result.overall) == ({"easy": None}, None, None)


def test_the_fraction_of_the_optimum_uses_mix_information_and_noise():
    case = ORACLE["optimum"]
    best = optimum_per_hour(case["max_rate_per_s"], case["mix"], case["v"], case["kappa"])
    assert best == pytest.approx(case["optimum_per_hour"], abs=ABS)
    assert fraction_of_optimum(case["information_per_hour"], best) == pytest.approx(case["fraction"], abs=ABS)
    assert fraction_of_optimum(1.0, 0.0) is None
