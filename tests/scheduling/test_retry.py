import pytest

from headrace.records.ids import Address
from headrace.records.terminal import Failure, InfraError, Limit, Success, Terminal, Truncated
from headrace.records.verdict import Scored, Unscored, UnscoredCause, Verdict
from headrace.scheduling.retry import RetryRule

RULE = RetryRule(infra_attempts=3, grade_tries=2, backoff_s=1.0, max_backoff_s=3.0)


@pytest.mark.parametrize("terminal", [Success(), Failure("no"), Truncated(Limit.WALL), InfraError("x", "y", True)])
def test_what_the_policy_caused_or_nobody_knows_is_not_attempted_again(terminal: Terminal) -> None:
    assert not RULE.may_attempt_again(terminal, 1)


def test_infrastructure_failures_are_attempted_within_bounds() -> None:
    lost = InfraError("environment", "gone")
    assert [RULE.may_attempt_again(lost, n) for n in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize(
    ("cause", "again"),
    [
        (UnscoredCause.GRADER_CRASH, True),
        (UnscoredCause.GRADER_TIMEOUT, True),
        (UnscoredCause.GRADER_INVALID, True),
        (UnscoredCause.DECLINED, False),
        (UnscoredCause.INFRA, False),
        (UnscoredCause.UNKNOWN_EFFECT, False),
    ],
)
def test_only_a_fault_of_the_grader_is_graded_again(cause: UnscoredCause, again: bool) -> None:
    verdict = Verdict(Address("0" * 64), Address("1" * 64), Unscored(cause, ""))
    assert RULE.may_grade_again(verdict, 1) is again
    assert not RULE.may_grade_again(verdict, 2)


def test_a_score_is_never_graded_again() -> None:
    verdict = Verdict(Address("0" * 64), Address("1" * 64), Scored((("answer", 0.0),), ""))
    assert not RULE.may_grade_again(verdict, 1)


def test_delays_double_up_to_their_bound() -> None:
    assert [RULE.delay_s(n, 0.5) for n in (1, 2, 3, 4)] == [1.0, 2.0, 3.0, 3.0]
    assert RULE.delay_s(1, 0.0) == 0.5
