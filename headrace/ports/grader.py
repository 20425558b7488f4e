"""The port of the judge, who stands apart from the policy and from the environment."""

from collections.abc import Sequence
from typing import Literal, Protocol

from headrace.records.ids import Address
from headrace.records.verdict import Submission, Verdict


class Grader(Protocol):
    """Verifies independently of the policy and of the environment's claim. Owns answers and evidence."""

    @property
    def version(self) -> Address:
        """Content version of its code, options and dependencies."""
        ...

    @property
    def scope(self) -> Literal["episode", "group"]:
        """Whether it judges episodes one by one, or all members of a group together at the group's close."""
        ...

    async def grade(self, submissions: Sequence[Submission], timeout_s: float) -> list[Verdict]:
        """One verdict per submission, in any order; an `Unscored` one poisons no other.

        A group-level grader receives all members of a group at its close; an episode-level one any submissions.

        Raises:
            GraderError: when no verdict came at all.
        """
        ...
