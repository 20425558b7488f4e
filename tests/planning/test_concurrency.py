import pytest

from benchmarks.concurrency import sweep_point


@pytest.mark.slow
def test_past_the_knee_tokens_per_second_rise_and_information_per_hour_does_not():
    before, knee, past = (sweep_point(credit, 24) for credit in (0, 4, 16))
    rates = [report.flow.generated_rate or 0.0 for report in (before, knee, past)]
    information = [report.information.per_hour or 0.0 for report in (before, knee, past)]
    assert information[1] > 1.5 * information[0]
    assert rates[2] > 1.15 * rates[1]
    assert information[2] <= information[1]
