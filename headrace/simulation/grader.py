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
        now_s, last_s = asyncio.get_running_loop().time(), 0.0
        verdicts: list[Verdict] = []
        is_silent = True
        for submission in submissions:
            draw = self._draw(submission)
            end_s = self._slots.take(now_s, draw.grade_s) - now_s
            outcome = self._outcome(submission, draw, end_s <= timeout_s)
            verdicts.append(Verdict(submission.transcript, self.version, outcome))
            last_s = max(last_s, end_s)
            is_silent = is_silent and isinstance(outcome, Unscored) and outcome.cause in _SILENT
        await self._pending.spend(min(last_s, timeout_s), timeout_s, self._lost)
        if verdicts and is_silent:
            raise GraderError(f"no verdict on {len(verdicts)} submissions: {verdicts[0].outcome}")
        return verdicts

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
