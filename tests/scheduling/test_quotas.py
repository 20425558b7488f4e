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
