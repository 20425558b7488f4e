"""pass@k and paired comparisons against values worked out by hand or by enumeration."""

import itertools
import math

import numpy as np
import pytest

from headrace.algorithms.comparison import bootstrap_mean, compare_paired, mcnemar_exact, pass_at_k
from headrace.records.streams import stream


def draw() -> np.random.Generator:
    return stream(7, "test", "comparison")


@pytest.mark.parametrize("attempts", [1, 4, 7])
def test_pass_at_k_is_the_share_of_subsets_with_a_success(attempts: int) -> None:
    for successes in range(attempts + 1):
        outcomes = [1] * successes + [0] * (attempts - successes)
        for k in range(1, attempts + 1):
            subsets = list(itertools.combinations(outcomes, k))
            share = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at_k(attempts, successes, k) == pytest.approx(share)


@pytest.mark.parametrize(("attempts", "successes", "k"), [(4, 5, 1), (4, 2, 5), (4, 2, 0)])
def test_impossible_counts_are_refused(attempts: int, successes: int, k: int) -> None:
    with pytest.raises(ValueError, match="must lie in"):
        pass_at_k(attempts, successes, k)


def test_mcnemar_is_the_exact_binomial_test_of_discordant_pairs() -> None:
    assert mcnemar_exact(8, 1) == pytest.approx(0.0390625)
    assert mcnemar_exact(5, 5) == 1.0
    assert mcnemar_exact(0, 0) == 1.0
    for first, second in itertools.product(range(7), repeat=2):
        discordant = first + second
        likely = [math.comb(discordant, count) / 2**discordant for count in range(discordant + 1)]
        two_sided = sum(chance for chance in likely if chance <= likely[min(first, second)] + 1e-12)
        assert mcnemar_exact(first, second) == pytest.approx(min(1.0, two_sided))


def test_the_bootstrap_interval_covers_the_mean_as_often_as_it_says() -> None:
    random, covered = draw(), 0
    for _ in range(200):
        interval = bootstrap_mean((random.random(60) < 0.4).astype(float).tolist(), random, resamples=400)
        covered += interval.low <= 0.4 <= interval.high
    assert 0.88 <= covered / 200 <= 0.99


def test_a_paired_comparison_sees_a_difference_that_two_intervals_would_not() -> None:
    first = [1.0] * 40 + [0.0] * 50 + [1.0] * 10
    second = [1.0] * 40 + [0.0] * 50 + [0.0] * 10
    found = compare_paired(first, second, draw(), is_single=True)
    assert (found.difference, found.first_only, found.second_only) == (pytest.approx(0.1), 10, 0)
    assert found.interval.low > 0.0
    assert found.p_value == pytest.approx(2 / 2**10)
    assert compare_paired(first, first, draw(), is_single=False).p_value is None
    with pytest.raises(ValueError, match="same ones"):
        compare_paired(first, second[:-1], draw(), is_single=True)
