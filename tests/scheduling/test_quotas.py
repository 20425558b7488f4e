from headrace.scheduling.ordering import BatchOrder, OpenGroup
from headrace.scheduling.quotas import Quotas

ORDER = BatchOrder("ready", 4, None)
STRATA = dict.fromkeys(range(6), "easy") | {6: "hard", 7: "hard"}
READY = [OpenGroup(ordinal, 0, ordinal) for ordinal in range(6)]


def choose(shares, groups, *, is_last=False):
    return Quotas(shares).choose(ORDER, groups, STRATA, 0, is_last=is_last)


def test_without_quotas_whoever_is_ready_trains():
    assert choose({}, [*READY, OpenGroup(6, 0, None)]) == (0, 1, 2, 3)


def test_a_place_is_held_for_an_open_group_and_the_update_waits_for_it():
    assert choose({"hard": 0.25}, [*READY, OpenGroup(6, 0, None)]) is None
    assert choose({"hard": 0.25}, [*READY, OpenGroup(6, 0, 9)]) == (0, 1, 2, 6)
    assert choose({"hard": 0.5}, [*READY, OpenGroup(6, 0, 9), OpenGroup(7, 0, 8)]) == (0, 1, 6, 7)


def test_a_stratum_without_open_groups_holds_no_place():
    assert choose({"hard": 0.5}, READY) == (0, 1, 2, 3)
    assert choose({"hard": 0.5}, [*READY, OpenGroup(6, 0, 9)]) == (0, 1, 2, 6)


def test_places_for_all_leave_the_order_nothing_to_choose():
    groups = [*READY, OpenGroup(6, 0, 9), OpenGroup(7, 0, 8)]
    assert choose({"hard": 0.5, "easy": 0.5}, groups) == (0, 1, 6, 7)


def test_the_last_batch_is_as_small_as_what_is_left():
    assert choose({"hard": 0.5}, [OpenGroup(0, 0, 0), OpenGroup(6, 0, 1)], is_last=True) == (0, 6)
    assert choose({"hard": 0.5}, []) is None


def replace(shares, ready, left, *, places=1, running=()):
    strata = {group.ordinal: STRATA[group.ordinal] for group in ready} | {
        ordinal: STRATA[ordinal] for ordinal in running
    }
    return Quotas(shares).replace(ready, strata, left, size=4, places=places)


def test_without_quotas_rejected_samples_are_replaced_by_completion():
    assert replace({}, [OpenGroup(6, 0, 1), OpenGroup(0, 0, 2)], {"easy": 3.0}) == (6,)
    assert replace({}, [OpenGroup(3, 0, 1), OpenGroup(0, 0, 2)], {"easy": 2.0}, places=9) == (0, 3)


def test_a_stratum_that_lost_its_share_is_replaced_by_its_own_first():
    both = [OpenGroup(0, 0, 1), OpenGroup(6, 0, 2), OpenGroup(7, 0, 3)]
    assert replace({"hard": 0.5}, both, {"easy": 2.0, "hard": 1.0}) == (6,)
    assert replace({"hard": 0.5}, both, {"easy": 2.0, "hard": 0.5}, places=2) == (6, 7)
    assert replace({"hard": 0.5}, both, {"easy": 1.0, "hard": 1.0}, places=2) == (0, 6)
    assert replace({"hard": 0.5}, both, {"easy": 1.0, "hard": 2.0}) == (0,)


def test_a_held_place_stays_empty_while_its_stratum_runs_and_is_free_when_it_has_no_open_group():
    easy = [OpenGroup(0, 0, 1), OpenGroup(1, 0, 2)]
    left = {"easy": 1.0, "hard": 1.0}
    assert replace({"hard": 0.5}, easy, left, places=2, running=(6,)) == (0,)
    assert replace({"hard": 0.5}, easy, left, places=2) == (0, 1)
