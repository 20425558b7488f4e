import math

import pytest

from headrace.algorithms.intervals import wilson_interval


def test_the_ends_solve_the_score_equation():
    z = 1.959963984540054
    for successes, trials in ((8, 10), (1, 50), (300, 1000)):
        interval = wilson_interval(successes, trials)
        for end in (interval.low, interval.high):
            assert abs(successes / trials - end) == pytest.approx(z * math.sqrt(end * (1 - end) / trials))


def test_known_intervals_are_met():
    eight = wilson_interval(8, 10)
    assert (eight.low, eight.high) == (pytest.approx(0.4901625, abs=1e-6), pytest.approx(0.9433178, abs=1e-6))
    all_of_them = wilson_interval(10, 10)
    assert (all_of_them.low, all_of_them.high) == (pytest.approx(0.7224672, abs=1e-6), 1.0)


def test_nothing_tried_says_nothing():
    assert wilson_interval(0, 0).low == 0.0
    assert wilson_interval(0, 0).high == 1.0


def test_coverage_stays_near_95_percent_at_extreme_rates():
    for rate in (0.02, 0.5, 0.95):
        covered = 0.0
        for successes in range(101):
            probability = math.comb(100, successes) * rate**successes * (1 - rate) ** (100 - successes)
            interval = wilson_interval(successes, 100)
            covered += probability * (interval.low <= rate <= interval.high)
        assert covered == pytest.approx(0.95, abs=0.035)


def test_more_successes_than_trials_are_refused():
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson_interval(3, 2)
