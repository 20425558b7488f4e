import itertools
import math

import pytest

from headrace.errors import ConfigError
from headrace.training.options import TrainerOptions
from headrace.training.rates import rate_factors


def rates(updates, **options):
    factor = rate_factors(TrainerOptions(**options))
    return [factor(update) for update in range(1, updates + 1)]


def test_a_constant_rate_needs_no_number_of_updates():
    assert rates(3, scheduler="constant") == [1.0] * 3
    assert rates(5, warmup_updates=4) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


@pytest.mark.parametrize("name", ["linear", "cosine", "polynomial"])
def test_a_falling_rate_still_moves_in_the_last_update(name):
    found = rates(10, scheduler=name, warmup_updates=2, total_updates=10)
    assert found[0] == 0.5
    assert found[1] == max(found) == 1.0
    assert 0.0 < found[-1] < 0.2
    assert all(later <= earlier for earlier, later in itertools.pairwise(found[1:]))


def test_the_cosine_is_the_known_one():
    found = rates(9, scheduler="cosine", total_updates=9)
    assert found == pytest.approx([0.5 * (1 + math.cos(math.pi * step / 10)) for step in range(1, 10)])


def test_a_scheduler_of_its_own_shape_takes_its_own_options():
    found = rates(
        8,
        scheduler="warmup_stable_decay",
        total_updates=8,
        warmup_updates=2,
        scheduler_options={"num_decay_steps": 3},
    )
    assert found[1] == found[4] == 1.0
    assert found[-1] < 0.5
    with pytest.raises(ConfigError, match="no_such"):
        rates(1, scheduler="cosine", total_updates=3, scheduler_options={"no_such": 1})


def test_a_falling_scheduler_without_an_end_is_refused():
    with pytest.raises(ValueError, match="total_updates is 0"):
        TrainerOptions(scheduler="cosine")
    with pytest.raises(ValueError, match="total_updates is 5"):
        TrainerOptions(total_updates=5)
