"""C7, verdicts: a value or a cause, never both; what is absent stays absent, and never enters a plan.

A member's reward is present exactly when its verdict is scored, and then is the named aggregation of it. A scored verdict
is final: a different one afterwards is a dispute. What an infrastructure failure left behind has no reward.
"""

import math

from headrace.checkers.law import Bounds, Violation
from headrace.errors import IntegrityError
from headrace.records.batch import BatchPlan, BatchPlanned, GroupClosed, MemberResult
from headrace.records.events import Event
from headrace.records.ids import Address, GroupId
from headrace.records.provenance import Read, read_record
from headrace.records.reward import RewardRule, reward_of
from headrace.records.trajectory import TranscriptSealed
from headrace.records.verdict import Scored, Verdict, VerdictDisputed, VerdictSealed


class Rewards:
    """Checks C7.

    Args:
        bounds: how components become a reward.
        read: looks up verdicts and batch plans.
    """

    def __init__(self, bounds: Bounds, read: Read | None = None) -> None:
        self._rule: RewardRule | None = bounds.reward_rule
        self._read = read
        self._scored: dict[Address, Address] = {}
        self._unscored: dict[Address, Address] = {}
        self._failed: set[Address] = set()
        self._rewards: dict[tuple[GroupId, int], float | None] = {}

    def observe(self, event: Event) -> list[Violation]:
        problems: list[str] = []
        match event.payload:
            case TranscriptSealed(transcript=transcript, terminal=terminal):
                if terminal.startswith("infra_error"):
                    self._failed.add(transcript)
                return []
            case VerdictSealed():
                problems = self._verdict(event.payload)
            case VerdictDisputed(transcript=transcript, first=first, second=second):
                counted = self._scored.get(transcript) or self._unscored.get(transcript)
                if counted != first or first == second:
                    problems.append(f"{transcript}: {second} is disputed against {first}, but {counted} counts")
            case GroupClosed(members=members):
                self._rewards |= {(member.episode.group, member.episode.member): member.reward for member in members}
                problems = [problem for member in members for problem in self._member(member)]
            case BatchPlanned():
                problems = self._plan(event.payload)
            case _:
                return []
        return [Violation("C7", event.seq, problem) for problem in problems]

    def _verdict(self, sealed: VerdictSealed) -> list[str]:
        problems: list[str] = []
        first = self._scored.get(sealed.transcript)
        if first is not None:
            problems.append(
                f"{sealed.transcript} was scored by {first} already; {sealed.verdict} is a dispute, not a verdict"
            )
        if sealed.is_scored:
            self._scored.setdefault(sealed.transcript, sealed.verdict)
        else:
            self._unscored[sealed.transcript] = sealed.verdict
        if self._read is not None:
            problems += self._record(sealed, read_record(self._read, sealed.verdict, Verdict))
        return problems

    def _record(self, sealed: VerdictSealed, verdict: Verdict) -> list[str]:
        problems: list[str] = []
        if verdict.transcript != sealed.transcript:
            problems.append(
                f"verdict {sealed.verdict} is of transcript {verdict.transcript}, not of {sealed.transcript}"
            )
        if isinstance(verdict.outcome, Scored) is not sealed.is_scored:
            problems.append(
                f"verdict {sealed.verdict} is {type(verdict.outcome).__name__}; its event says the opposite"
            )
        try:
            verdict.check()
        except IntegrityError as error:
            problems.append(f"verdict {sealed.verdict}: {error}")
        return problems

    def _member(self, member: MemberResult) -> list[str]:
        reward = member.reward
        scored = None if member.transcript is None else self._scored.get(member.transcript)
        if scored is None:
            return [] if reward is None else [f"{member.episode} has reward {reward} without a scored verdict"]
        problems: list[str] = []
        if member.verdict != scored:
            problems.append(f"{member.episode} closes with verdict {member.verdict}; {scored} is the one that counts")
        if reward is None:
            problems.append(f"{member.episode} was scored by {scored}, but its reward is absent")
        elif not math.isfinite(reward):
            problems.append(f"{member.episode} has reward {reward}")
        if member.transcript in self._failed:
            problems.append(f"{member.episode} ended in an infrastructure failure; it has no reward")
        if self._rule is not None and self._read is not None:
            expected = reward_of(read_record(self._read, scored, Verdict), self._rule)
            if reward != expected:
                problems.append(
                    f"{member.episode} has reward {reward}; its verdict gives {expected} by {self._rule.value}"
                )
        return problems

    def _plan(self, planned: BatchPlanned) -> list[str]:
        if not math.isfinite(planned.mean_reward):
            return [f"update {planned.update}: mean reward {planned.mean_reward}; absent rewards are in no mean"]
        if self._read is None:
            return []
        problems: list[str] = []
        for row in read_record(self._read, planned.plan, BatchPlan).rows:
            known = self._rewards.get((row.group, row.member))
            if known is None:
                problems.append(f"{row.group}.{row.member} is planned with reward {row.reward}; its reward is absent")
            elif row.reward != known:
                problems.append(
                    f"{row.group}.{row.member} is planned with reward {row.reward}; its group closed with {known}"
                )
            if row.transcript in self._failed:
                problems.append(f"{row.group}.{row.member} trains on what an infrastructure failure left behind")
            if not (math.isfinite(row.advantage) and math.isfinite(row.weight) and row.weight >= 0):
                problems.append(f"{row.group}.{row.member} has advantage {row.advantage} and weight {row.weight}")
        return problems
