from headrace.reporting.folds.guards import MIN_EACH, rate_text, rise


def test_a_rate_that_rises_beyond_its_bound_is_an_alarm_with_both_rates() -> None:
    alarm = rise("hard", "no verdict", [False] * 59 + [True] + [True] * 12 + [False] * 8)
    assert alarm is not None
    assert (alarm.before, alarm.before_of, alarm.after, alarm.after_of) == (1, 60, 12, 20)
    assert 0.08 < alarm.bound < 0.09
    assert rate_text(alarm) == (
        "ALARM no verdict rises in stratum hard: 60.0% of the newest 20 attempts, 1.7% of the 60 before (bound 8.9%)"
    )


def test_a_steady_rate_a_falling_one_and_a_few_cases_are_none() -> None:
    steady = [number % 5 == 0 for number in range(200)]
    assert rise("s", "w", steady) is None
    assert rise("s", "w", [True] * 60 + [False] * 60) is None
    assert rise("s", "w", [False] * 98 + [True] * 2) is None, "two of twenty-five are within the noise"
    assert rise("s", "w", [False] * (MIN_EACH - 1) + [True] * MIN_EACH) is None, "too few before"
    assert rise("s", "w", [False] * MIN_EACH + [True] * MIN_EACH) is not None


def test_false_alarms_are_rare_at_a_constant_rate() -> None:
    from headrace.records.streams import stream

    draw = stream(7, "guards")
    alarms = sum(rise("s", "w", list(draw.random(400) < 0.1)) is not None for _ in range(300))
    assert alarms <= 3, "non-overlapping 95% intervals: below 1%"
