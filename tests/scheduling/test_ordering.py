from headrace.scheduling.ordering import BatchOrder, OpenGroup


def test_ready_order_takes_the_first_to_finish_and_lays_them_out_by_ordinal() -> None:
    groups = [OpenGroup(0, 0, None), OpenGroup(1, 0, 2), OpenGroup(2, 0, 0), OpenGroup(3, 0, 1)]
    assert BatchOrder("ready", 2, None).choose(groups, 0, is_last=False) == (2, 3)


def test_ordinal_order_waits_for_the_oldest() -> None:
    groups = [OpenGroup(0, 0, None), OpenGroup(1, 0, 0), OpenGroup(2, 0, 1)]
    assert BatchOrder("ordinal", 2, None).choose(groups, 0, is_last=False) is None
    groups[0] = OpenGroup(0, 0, 2)
    assert BatchOrder("ordinal", 2, None).choose(groups, 0, is_last=False) == (0, 1)


def test_a_partial_batch_trains_only_when_no_further_group_will_come() -> None:
    groups = [OpenGroup(5, 0, 0)]
    order = BatchOrder("ready", 2, None)
    assert order.choose(groups, 0, is_last=False) is None
    assert order.choose(groups, 0, is_last=True) == (5,)
    assert order.choose([OpenGroup(5, 0, None)], 0, is_last=True) is None
    assert order.choose([], 0, is_last=True) is None


def test_wait_holds_the_update_back_for_a_group_that_would_exceed_the_bound() -> None:
    running, done = OpenGroup(0, 0, None), [OpenGroup(n, 2, n) for n in (1, 2, 3)]
    assert BatchOrder("ready", 2, 3).choose([running, *done], 2, is_last=False) == (1, 2)
    assert BatchOrder("ready", 2, 2).choose([running, *done], 2, is_last=False) is None
    finished = OpenGroup(0, 0, 9)
    assert BatchOrder("ready", 2, 2).choose([finished, *done], 2, is_last=False) == (0, 1)


def test_a_window_lets_so_many_later_groups_overtake_an_unfinished_one_and_no_more() -> None:
    slow = OpenGroup(0, 0, None)
    done = [OpenGroup(n, 0, 9 - n) for n in (1, 2, 3, 4)]
    assert BatchOrder("ready", 2, None, overtaking=2).choose([slow, *done], 0, is_last=False) == (1, 2)
    assert BatchOrder("ready", 2, None, overtaking=2).choose([slow, *done[1:]], 0, is_last=False) is None
    assert BatchOrder("ready", 2, None, overtaking=0).choose([slow, *done], 0, is_last=False) is None
    assert BatchOrder("ready", 2, None, overtaking=0).choose([OpenGroup(0, 0, 9), *done], 0, is_last=False) == (0, 1)
