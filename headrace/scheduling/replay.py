"""Replay: which groups that trained before fill up a batch, and which never do again.

Invariant: no group is chosen for a use beyond the bound, nor with a token older than the bound; each use is given out once.
"""

import math
from collections.abc import Sequence

import msgspec

from headrace.records.experience import Replay


class TrainedGroup(msgspec.Struct, frozen=True):
    """A group that trained.

    Attributes:
        ordinal: position in the source.
        uses: plans that it was in.
        oldest_lag: lag of its oldest token behind the version that the next gradient is taken at.
    """

    ordinal: int
    uses: int
    oldest_lag: int


class ReplayDecision(msgspec.Struct, frozen=True):
    """What becomes of the groups that trained.

    Attributes:
        uses: number of the use by ordinal, of those that fill up the batch.
        retired: reason by ordinal, of those that never will again.
    """

    uses: dict[int, int]
    retired: dict[int, str]


class ReplayRule(msgspec.Struct, frozen=True):
    """The configured rule.

    Attributes:
        replay: its numbers.
        batch_groups: new groups of one update.
    """

    replay: Replay
    batch_groups: int

    @property
    def keeps(self) -> bool:
        """Whether groups are kept after their first use."""
        return self.replay.kind != "none"

    @property
    def places(self) -> int:
        """Replayed groups of one update at most.

        Example: beside 12 new groups a share of 0.25 is 4 places.
        """
        if not self.keeps:
            return 0
        return math.floor(self.replay.share / (1.0 - self.replay.share) * self.batch_groups + 1e-9)

    def choose(self, trained: Sequence[TrainedGroup]) -> ReplayDecision:
        """The decision about every group that trained: smallest lag first, then fewest uses, then in the order drawn."""
        retired = {group.ordinal: reason for group in trained if (reason := self._end(group)) is not None}
        left = [group for group in trained if group.ordinal not in retired]
        left.sort(key=lambda group: (group.oldest_lag, group.uses, group.ordinal))
        return ReplayDecision({group.ordinal: group.uses + 1 for group in left[: self.places]}, retired)

    def _end(self, group: TrainedGroup) -> str | None:
        if group.uses >= self.replay.uses:
            return f"used {group.uses} times, {self.replay.uses} are allowed"
        if group.oldest_lag > self.replay.max_lag:
            return f"lag {group.oldest_lag} > {self.replay.max_lag}"
        return None
