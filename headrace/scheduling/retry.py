"""Retry: what happens after a failure. Policy-caused outcomes are never retried; unknown effects never by themselves."""

import msgspec

from headrace.records.terminal import InfraError, Terminal
from headrace.records.verdict import Unscored, UnscoredCause, Verdict

_GRADER_FAULTS = (UnscoredCause.GRADER_CRASH, UnscoredCause.GRADER_TIMEOUT, UnscoredCause.GRADER_INVALID)


class RetryRule(msgspec.Struct, frozen=True):
    """Bounded attempts with exponential backoff.

    Attributes:
        infra_attempts: attempts of one member, the first included.
        grade_tries: gradings of one transcript, the first included.
        backoff_s: delay before the second attempt; doubles with each further one.
        max_backoff_s: largest delay.
    """

    infra_attempts: int
    grade_tries: int
    backoff_s: float = 0.1
    max_backoff_s: float = 10.0

    def may_attempt_again(self, terminal: Terminal, attempts: int) -> bool:
        """Whether a member that ended so after `attempts` attempts starts again in a fresh environment."""
        return isinstance(terminal, InfraError) and not terminal.is_effect_unknown and attempts < self.infra_attempts

    def may_grade_again(self, verdict: Verdict, tries: int) -> bool:
        """Whether the grader, not the policy, is the reason for a missing score, and a try is left."""
        outcome = verdict.outcome
        return isinstance(outcome, Unscored) and outcome.cause in _GRADER_FAULTS and tries < self.grade_tries

    def delay_s(self, attempts: int, jitter: float) -> float:
        """Seconds before attempt number `attempts` + 1; `jitter` in [0, 1) spreads it over [0.5, 1.5) of its value."""
        return min(self.max_backoff_s, self.backoff_s * 2.0 ** (attempts - 1)) * (0.5 + jitter)
