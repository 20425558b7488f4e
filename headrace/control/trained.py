"""Groups that trained and may train again.

Invariant: a group is here from the version bump of its first use until the rule retires it, and a use counts from the bump
of the version that it had a part in. Nothing here holds a slot.
"""

from collections.abc import Iterable

import msgspec

from headrace.control.collecting import Group
from headrace.records.experience import ReplayedGroup, RetiredGroup
from headrace.records.ids import GroupId
from headrace.scheduling.replay import ReplayRule, TrainedGroup


class ReplayChoice(msgspec.Struct, frozen=True):
    """What one batch takes.

    Attributes:
        replayed: by ordinal.
        retired: by ordinal.
    """

    replayed: tuple[ReplayedGroup, ...] = ()
    retired: tuple[RetiredGroup, ...] = ()


class TrainedGroups:
    """The groups of one run.

    Args:
        rule: which of them are replayed.
    """

    def __init__(self, rule: ReplayRule) -> None:
        self._rule = rule
        self._groups: dict[int, Group] = {}
        self._uses: dict[int, int] = {}
        self._damaged: dict[int, str] = {}

    def recall(self, group: Group, uses: int, damage: str | None) -> None:
        """Takes over a group of an earlier process; one whose stored work is damaged is only there to be retired."""
        ordinal = group.id.ordinal
        self._groups[ordinal], self._uses[ordinal] = group, uses
        if damage is not None:
            self._damaged[ordinal] = f"stored work is damaged: {damage}"

    def group(self, group: GroupId) -> Group:
        """The group."""
        return self._groups[group.ordinal]

    def choose(self, version: int) -> ReplayChoice:
        """What the next batch takes, at the version that its gradient is taken at; retired groups are gone."""
        sound = sorted(self._groups.keys() - self._damaged.keys())
        lags = {ordinal: self._groups[ordinal].lag(version) for ordinal in sound}
        decision = self._rule.choose([TrainedGroup(o, self._uses[o], lags[o].oldest) for o in sound])
        retired = decision.retired | self._damaged
        choice = ReplayChoice(
            tuple(
                ReplayedGroup(self._groups[ordinal].id, use, lags[ordinal].oldest, lags[ordinal].mean)
                for ordinal, use in sorted(decision.uses.items())
            ),
            tuple(RetiredGroup(self._groups[ordinal].id, reason) for ordinal, reason in sorted(retired.items())),
        )
        for ordinal in retired:
            del self._groups[ordinal], self._uses[ordinal]
        self._damaged = {}
        return choice

    def consume(self, drawn: Iterable[Group], replayed: Iterable[ReplayedGroup]) -> None:
        """Counts the uses of an update whose version exists."""
        for item in replayed:
            self._uses[item.group.ordinal] = item.use
        if self._rule.keeps:
            for group in drawn:
                self._groups[group.id.ordinal], self._uses[group.id.ordinal] = group, 1
