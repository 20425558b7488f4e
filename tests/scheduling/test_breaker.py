from headrace.scheduling.breaker import BreakerRule, BreakerState, Health

FRESH = Health()
RULE = BreakerRule(window=10, min_attempts=4, rate=0.5, pause_s=4.0, max_pause_s=10.0, give_up_s=100.0)


def after(*outcomes: bool, health: Health = FRESH, now_s: float = 0.0) -> Health:
    """Health after attempts of which True ones failed."""
    for failed in outcomes:
        health = RULE.leave(health, failed, now_s, jitter=0.5)
    return health


def test_it_opens_at_the_rate_and_never_before_enough_attempts_ended() -> None:
    assert after(True, True, True).state is BreakerState.CLOSED
    assert after(True, True, True, True).state is BreakerState.OPEN
    assert after(True, False, False, True).state is BreakerState.OPEN
    assert after(True, False, False, False, True).state is BreakerState.CLOSED
    old = after(*[False, False, True] * 3)
    assert old.state is BreakerState.CLOSED
    assert old.failures == 3


def test_only_the_newest_attempts_count() -> None:
    health = after(*[False] * 50, *[True] * 4)
    assert (health.state, len(health.recent)) == (BreakerState.CLOSED, 10)
    assert after(True, health=health).state is BreakerState.OPEN


def test_an_open_one_lets_nobody_in_and_says_why_and_until_when() -> None:
    health = after(*[True] * 4, now_s=7.0)
    entry = RULE.enter(health, 8.0)
    assert (entry.may_start, entry.reason, entry.wait_s) == (False, "4 of its last 4 attempts failed", 3.0)
    assert entry.health is health


def test_after_the_pause_one_attempt_tries_and_the_others_wait_for_it() -> None:
    probe = RULE.enter(after(*[True] * 4), 4.0)
    assert probe.may_start and probe.health.state is BreakerState.PROBING
    second = RULE.enter(probe.health, 4.0)
    assert not second.may_start and second.wait_s is None
    assert RULE.leave(probe.health, failed=False, now_s=5.0, jitter=0.5) == Health()
    again = RULE.leave(probe.health, failed=True, now_s=5.0, jitter=0.5)
    assert (again.state, again.until_s) == (BreakerState.OPEN, 13.0), "the pause doubles"


def test_the_pause_has_a_bound_and_its_jitter_spreads_it() -> None:
    health = after(*[True] * 4)
    for now_s in (10.0, 30.0, 60.0):
        health = RULE.leave(RULE.enter(health, now_s).health, failed=True, now_s=now_s, jitter=0.5)
    assert health.until_s == 70.0
    low = RULE.leave(after(True, True, True), failed=True, now_s=0.0, jitter=0.0)
    high = RULE.leave(after(True, True, True), failed=True, now_s=0.0, jitter=0.99)
    assert (low.until_s, round(high.until_s, 6)) == (2.0, 5.96)


def test_what_started_before_it_opened_tells_nothing() -> None:
    health = after(*[True] * 4)
    assert after(True, False, health=health) is health


def test_a_probe_that_ends_without_a_word_leaves_its_place_to_the_next() -> None:
    probing = RULE.enter(after(*[True] * 4), 4.0).health
    released = RULE.released(probing, 6.0)
    assert RULE.enter(released, 6.0).may_start
    assert RULE.released(Health(), 6.0) == Health()


def test_it_is_given_up_when_it_was_not_closed_for_the_bound() -> None:
    health = after(*[True] * 4, now_s=7.0)
    for now_s in (20.0, 40.0, 80.0, 106.0):
        assert not RULE.is_given_up(health, now_s)
        health = RULE.leave(RULE.enter(health, now_s).health, failed=True, now_s=now_s, jitter=0.5)
    assert RULE.is_given_up(health, 107.0)
    assert not RULE.is_given_up(Health(), 1e9)
