"""A grader core behind the port in the same process, for runtimes whose time is virtual.

Invariant: the same submissions get the same verdicts as in a process of their own; only the time that it takes is stated
by the caller instead of measured.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

from headrace.errors import GraderTimeout
from headrace.graders.service import GraderCore, verdicts_of
from headrace.records.ids import Address
from headrace.records.verdict import Submission, Verdict


def no_latency(_submission: Submission) -> float:
    """Zero seconds."""
    return 0.0


class InlineGrader:
    """Implements `ports.Grader`; grades one submission after the other, each `latency(submission)` seconds long."""

    def __init__(self, core: GraderCore, latency: Callable[[Submission], float] = no_latency) -> None:
        self._core = core
        self._latency = latency

    @property
    def version(self) -> Address:
        return self._core.version

    @property
    def scope(self) -> Literal["episode"]:
        return self._core.scope

    async def grade(self, submissions: Sequence[Submission], timeout_s: float) -> list[Verdict]:
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(sum(map(self._latency, submissions)))
        except TimeoutError as error:
            raise GraderTimeout(f"{len(submissions)} submissions were not graded within {timeout_s} s") from error
        return [verdict for _, verdict in verdicts_of(self._core, submissions)]
