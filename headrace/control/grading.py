"""Grading: one verdict per sealed transcript, or a stated cause of its absence.

Invariant: an episode that a boundary failed is never sent to the grader and never gets a number; a failure of the grader
leaves the transcript as it is, and it is graded again, not rolled again.

* consumes: sealed transcripts.
* waits for: the grader.
* unblocked by: verdicts, or the grader's deadline.
* produces: `VerdictSealed`, one per try; the first scored one, or the last, counts. A grader that answers twice and
  otherwise the second time is a `VerdictDisputed`.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from headrace.control.recorder import Recorder, WorkerClock, sealed_row
from headrace.control.sealing import Sealed
from headrace.errors import GraderError, GraderTimeout, IntegrityError
from headrace.ports import Grader
from headrace.records.ids import Address
from headrace.records.task import Task
from headrace.records.terminal import InfraError
from headrace.records.verdict import Submission, Unscored, UnscoredCause, Verdict, VerdictDisputed, VerdictSealed
from headrace.scheduling.retry import RetryRule


class _Answer(NamedTuple):
    """What the grader said of one submission.

    Attributes:
        verdict: the first answer, which counts.
        others: answers that differ from it.
    """

    verdict: Verdict
    others: list[Verdict]


class Graded(NamedTuple):
    """The verdict that counts.

    Attributes:
        verdict: the record.
        address: its address.
    """

    verdict: Verdict
    address: Address


class Grading:
    """Asks the grader, again within bounds, and seals what it says."""

    def __init__(
        self, grader: Grader, recorder: Recorder, clock: WorkerClock, *, retry: RetryRule, timeout_s: float
    ) -> None:
        self._grader = grader
        self._recorder = recorder
        self._clock = clock
        self._retry = retry
        self._timeout_s = timeout_s

    @property
    def is_group_scoped(self) -> bool:
        """Whether all members of a group have to be submitted together."""
        return self._grader.scope == "group"

    async def grade(self, sealed: Sequence[Sealed], task: Task) -> dict[Address, Graded]:
        """The verdict that counts, for each transcript."""
        verdicts: dict[Address, Graded] = {}
        pending: list[Submission] = []
        tries = 0
        for item in sealed:
            terminal = item.transcript.terminal
            if item.verdicts:
                verdicts[item.address] = Graded(item.verdicts[-1], item.verdicts[-1].address)
                if not self._retry.may_grade_again(item.verdicts[-1], len(item.verdicts)):
                    continue
                # Members of a group are graded together, so all that are still pending have had as many tries.
                tries = max(tries, len(item.verdicts))
            if isinstance(terminal, InfraError):
                cause = UnscoredCause.UNKNOWN_EFFECT if terminal.is_effect_unknown else UnscoredCause.INFRA
                verdict = Verdict(item.address, self._grader.version, Unscored(cause, terminal.detail))
                verdicts[item.address] = self._seal(verdict, 0)
            else:
                text = item.transcript.final_text
                pending.append(Submission(item.address, item.transcript.episode, task, text, item.artifact))
        while pending:
            answers = await self._ask(pending)
            tries += 1
            again: list[Submission] = []
            for submission in pending:
                verdict, others = answers[submission.transcript]
                verdicts[submission.transcript] = self._seal(verdict, tries - 1)
                self._dispute(verdict, others)
                if self._retry.may_grade_again(verdict, tries):
                    again.append(submission)
            pending = again
            if pending:
                await asyncio.sleep(self._retry.delay_s(tries, 0.5))
        return verdicts

    async def _ask(self, submissions: Sequence[Submission]) -> dict[Address, _Answer]:
        """A verdict for every submission: the grader's first one, or why there is none."""
        cause = UnscoredCause.GRADER_CRASH
        self._clock.enter()
        try:
            answers = await self._grader.grade(submissions, self._timeout_s)
            fault = "the grader left the submission out"
        except GraderError as error:
            answers, fault = [], str(error)
            if isinstance(error, GraderTimeout):
                cause = UnscoredCause.GRADER_TIMEOUT
        finally:
            self._clock.leave()
        first: dict[Address, Verdict] = {}
        others: dict[Address, list[Verdict]] = {}
        for verdict in answers:
            if first.setdefault(verdict.transcript, verdict) != verdict:
                others.setdefault(verdict.transcript, []).append(verdict)
        return {
            submission.transcript: _Answer(
                self._valid(first.get(submission.transcript), submission, Unscored(cause, fault)),
                others.get(submission.transcript, []),
            )
            for submission in submissions
        }

    def _valid(self, verdict: Verdict | None, submission: Submission, absent: Unscored) -> Verdict:
        if verdict is None:
            return Verdict(submission.transcript, self._grader.version, absent)
        try:
            verdict.check()
        except IntegrityError as error:
            outcome = Unscored(UnscoredCause.GRADER_INVALID, str(error))
            return Verdict(submission.transcript, self._grader.version, outcome)
        return verdict

    def _dispute(self, verdict: Verdict, others: Sequence[Verdict]) -> None:
        """Counts what the grader said otherwise of a transcript; none of it is used."""
        for other in others:
            try:
                other.check()
            except IntegrityError:
                continue  # what is no verdict contradicts none
            row = sealed_row("verdict", other)
            disputed = VerdictDisputed(verdict.transcript, verdict.address, row.address)
            self._recorder.record(disputed, key=str(verdict.transcript), rows=(row,))

    def _seal(self, verdict: Verdict, try_number: int) -> Graded:
        row = sealed_row("verdict", verdict)
        is_scored = not isinstance(verdict.outcome, Unscored)
        self._recorder.record(
            VerdictSealed(verdict.transcript, row.address, is_scored, try_number),
            key=f"{verdict.transcript}#{try_number}",
            rows=(row,),
        )
        return Graded(verdict, row.address)
