"""Order: which ready groups make the next batch, and in what order they stand in it.

A batch is always laid out by ordinal, whatever order its groups finished in.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from headrace.scheduling.staleness import must_train_now


class OpenGroup(msgspec.Struct, frozen=True):
    """A group that holds a slot.

    Attributes:
        ordinal: position in the source.
        version: version of its oldest token, or of its admission while nothing is sampled.
        ready_rank: position in the order of completion; None while it runs.
    """

    ordinal: int
    version: int
    ready_rank: int | None


class BatchOrder(msgspec.Struct, frozen=True):
    """Chooses the groups of an update.

    Attributes:
        order: `ready` by completion, `ordinal` strictly by position in the source.
        batch_groups: groups of one update.
        max_lag: bound that must hold for every trained group by waiting for it; None when there is none to hold.
        overtaking: groups drawn later than an unfinished one that may train before it; None is any number. Finished groups
            then train in the order in which they were drawn.
    """

    order: Literal["ready", "ordinal"]
    batch_groups: int
    max_lag: int | None
    overtaking: int | None = None

    @property
    def asks_running(self) -> bool:
        """Whether groups that still run can keep finished ones from training."""
        return self.order == "ordinal" or self.overtaking is not None or self.max_lag is not None

    def size(self, num_open: int, is_last: bool) -> int:
        """Groups of the next batch; 0 when there can be none."""
        size = min(self.batch_groups, num_open) if is_last else self.batch_groups
        return size if num_open >= size else 0

    def choose(self, groups: Sequence[OpenGroup], version: int, is_last: bool) -> tuple[int, ...] | None:
        """Ordinals of the next batch, rising; None to wait.

        Args:
            groups: every open group.
            version: version that the next gradient is taken at.
            is_last: no further group will come, so a smaller batch is better than none.
        """
        size = self.size(len(groups), is_last)
        if size == 0:
            return None
        if self.order == "ordinal":
            first = sorted(groups, key=lambda group: group.ordinal)[:size]
        elif self.overtaking is not None:
            first = self._in_window(groups, self.overtaking)[:size]
        else:
            first = self._ready_first(groups, version, size)
        if len(first) < size or any(group.ready_rank is None for group in first):
            return None
        return tuple(sorted(group.ordinal for group in first))

    @staticmethod
    def _in_window(groups: Sequence[OpenGroup], overtaking: int) -> list[OpenGroup]:
        """Finished groups that may train now, in the order in which they were drawn."""
        unfinished = [group.ordinal for group in groups if group.ready_rank is None]
        last = min(unfinished) + overtaking if unfinished else None
        ready = [group for group in groups if group.ready_rank is not None and (last is None or group.ordinal <= last)]
        return sorted(ready, key=lambda group: group.ordinal)

    def _ready_first(self, groups: Sequence[OpenGroup], version: int, size: int) -> list[OpenGroup]:
        """The groups that are due now, finished or not, then the others by completion."""
        due: list[OpenGroup] = []
        if self.max_lag is not None:
            count = must_train_now([group.version for group in groups], version, self.max_lag, self.batch_groups)
            due = sorted(groups, key=lambda group: (group.version, group.ordinal))[: min(count, size)]
        taken = {group.ordinal for group in due}
        ready = [group for group in groups if group.ready_rank is not None and group.ordinal not in taken]
        ready.sort(key=lambda group: -1 if group.ready_rank is None else group.ready_rank)
        return due + ready[: size - len(due)]
