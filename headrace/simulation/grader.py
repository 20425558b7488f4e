"""A simulated grader: success, latency and its own failures from the workload.

Invariant: the verdict on an attempt is drawn for the attempt and not for the moment, so grading again gives the same score
unless the workload flips it; an attempt without an answer scores 0.
"""

import asyncio
from collections.abc import Sequence
from typing import Literal

from headrace.errors import GraderError
from headrace.records.ids import EpisodeId
from headrace.records.provenance import content_version
from headrace.records.verdict import Scored, Submission, Unscored, UnscoredCause, Verdict
from headrace.simulation.pending import PendingCalls, Slots
from headrace.simulation.workload import Draws, GradingDraw

COMPONENT = "solved"
"""Name of the one score."""


class SimulatedGrader:
    """`Grader` that follows a workload."""

    def __init__(
        self,
        draws: Draws,
        *,
        scope: Literal["episode", "group"] = "episode",
        num_slots: int | None = None,
        worker: str = "grader",
    ) -> None:
        """A grader that is idle.

        Args:
            draws: the workload under its seed.
            scope: whether it judges episodes one by one or groups at their close.
            num_slots: gradings at the same time; None has no bound.
            worker: its name.
        """
        self.version = content_version("simulated grader")
        self.scope: Literal["episode", "group"] = scope
        self._draws = draws
        self._worker = worker
        self._num_slots = num_slots
        self._slots = Slots(num_slots)
        self._pending = PendingCalls()
        self._tries: dict[EpisodeId, int] = {}

    async def grade(self, submissions: Sequence[Submission], timeout_s: float) -> list[Verdict]:
        now_s = asyncio.get_running_loop().time()
        drawn = [(submission, self._draw(submission)) for submission in submissions]
        ends_s = [self._slots.take(now_s, draw.grade_s) - now_s for _, draw in drawn]
        outcomes = [
            self._outcome(submission, draw, end_s <= timeout_s)
            for (submission, draw), end_s in zip(drawn, ends_s, strict=True)
        ]
        await self._pending.spend(min(max(ends_s, default=0.0), timeout_s), timeout_s, self._lost)
        if all(isinstance(outcome, Unscored) and outcome.cause in _SILENT for outcome in outcomes) and outcomes:
            raise GraderError(f"no verdict on {len(outcomes)} submissions: {outcomes[0]}")
        return [
            Verdict(submission.transcript, self.version, outcome)
            for submission, outcome in zip(submissions, outcomes, strict=True)
        ]

    def _draw(self, submission: Submission) -> GradingDraw:
        try_number = self._tries.get(submission.episode, 0)
        self._tries[submission.episode] = try_number + 1
        return self._draws.grading(submission.task.index, submission.episode, try_number)

    def _outcome(self, submission: Submission, draw: GradingDraw, is_in_time: bool) -> Scored | Unscored:
        if not is_in_time:
            return Unscored(UnscoredCause.GRADER_TIMEOUT, f"{draw.grade_s:g} s needed")
        if draw.fails:
            return Unscored(UnscoredCause.GRADER_CRASH, "the grader crashed")
        if draw.is_invalid:
            return Unscored(UnscoredCause.GRADER_INVALID, "the score was not a number")
        if not submission.final_text:
            return Scored(((COMPONENT, 0.0),), "no answer")
        is_solved = self._draws.episode(submission.task.index, submission.episode).is_solved != draw.is_flipped
        return Scored(((COMPONENT, float(is_solved)),), "as drawn" if not draw.is_flipped else "flipped")

    def crash(self) -> None:
        """Gradings under way deliver nothing."""
        self._slots = Slots(self._num_slots)
        self._pending.fail_all(self._lost)

    def _lost(self) -> GraderError:
        return GraderError(f"{self._worker} crashed")


_SILENT = (UnscoredCause.GRADER_TIMEOUT, UnscoredCause.GRADER_CRASH)
