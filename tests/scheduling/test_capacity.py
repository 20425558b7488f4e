"""The credit that a run finds: what moves it, by how much, and where it stops."""

import pytest

from headrace.scheduling.capacity import TARGET_BATCHES, Capacity, CapacityWindow

RULE = Capacity(batch_groups=16, group_size=8, most_credit_batches=16)


def window(queued: float = 0.0, ready_groups: int = 0, idle_share: float = 0.3) -> CapacityWindow:
    """128 episodes in 60 s, whose wait is so many batches of queue."""
    return CapacityWindow(60.0, 128, 60.0 * queued, ready_groups, idle_share)


def test_waiting_episodes_are_counted_in_batches_by_the_law_of_little() -> None:
    assert RULE.queued_batches(CapacityWindow(60.0, 128, 20.0, 0, 0.0)) == pytest.approx(1 / 3)
    assert RULE.queued_batches(CapacityWindow(60.0, 128, 0.0, 24, 0.0)) == pytest.approx(0.5)
    assert RULE.queued_batches(CapacityWindow(60.0, 0, 0.0, 16, 0.0)) == 0.0


def test_a_starving_trainer_gets_more_and_a_queue_gets_less() -> None:
    more, less = RULE.decide(4.0, window()), RULE.decide(4.0, window(queued=2.0))
    assert more.credit_batches == pytest.approx(4.3)
    assert "starves for 30%" in more.reason
    assert 3.7 < less.credit_batches < 4.0
    assert "more waits" in less.reason
    assert RULE.decide(4.0, window(queued=TARGET_BATCHES)).credit_batches == 4.0


def test_the_nearer_the_queue_is_to_what_is_kept_the_less_is_added() -> None:
    assert RULE.decide(4.0, window(queued=TARGET_BATCHES / 2)).credit_batches == pytest.approx(4.15)


def test_nothing_is_added_for_a_trainer_that_is_busy_and_finished_groups_beyond_a_batch_are_queue() -> None:
    assert RULE.decide(4.0, window(idle_share=0.01)).credit_batches == 4.0
    assert RULE.decide(4.0, window(ready_groups=48, idle_share=0.0)).credit_batches < 4.0
    assert RULE.decide(4.0, window(ready_groups=16)).credit_batches > 4.0


def test_the_credit_stays_within_its_bounds_and_moves_by_half_a_batch_at_most() -> None:
    assert RULE.decide(16.0, window()).credit_batches == 16.0
    assert RULE.decide(1.0, window(queued=9.0)).credit_batches == 1.0
    assert "bound" in RULE.decide(1.0, window(queued=9.0)).reason
    assert RULE.decide(9.0, window(queued=1e6)).credit_batches == 8.5
    assert RULE.decide(9.0, window(idle_share=0.9)).credit_batches == 9.5


def test_a_fraction_of_a_batch_is_a_number_of_groups() -> None:
    assert RULE.max_outstanding(1.0) == 32
    assert RULE.max_outstanding(4.06) == 80
