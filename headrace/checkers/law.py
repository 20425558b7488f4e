"""What a checker is, what it reports, and the bounds that the run promised."""

from collections.abc import Collection, Iterable
from typing import Protocol

import msgspec

from headrace.config import Config
from headrace.records.checkpoint import RecordQuarantined
from headrace.records.events import Event
from headrace.records.ids import Address
from headrace.records.provenance import Read
from headrace.records.reward import RewardRule


class RecordLost(KeyError):
    """A row that was quarantined: what it said can no longer be looked at, and what others say of it still holds."""


class Violation(msgspec.Struct, frozen=True):
    """A law that does not hold.

    Attributes:
        law: which one: `C1`, `C4`, …
        seq: the event at which it broke.
        message: what happened, and what should have.
    """

    law: str
    seq: int
    message: str

    def __str__(self) -> str:
        return f"{self.law} at event {self.seq}: {self.message}"


class Bounds(msgspec.Struct, frozen=True):
    """What the run promised; None leaves a bound unchecked.

    Attributes:
        credit_batches: batches that may be admitted ahead.
        batch_groups: groups of one update.
        group_size: members of a group.
        max_lag: largest lag of a trained token, where the staleness policy enforces one.
        max_uses: largest number of plans that a transcript may be in.
        max_replay_lag: largest lag of a token that trains again.
        reward_rule: how score components become a reward.
        is_shared: whether engine and trainer take turns on the same devices.
    """

    credit_batches: int | None = None
    batch_groups: int | None = None
    group_size: int | None = None
    max_lag: int | None = None
    max_uses: int = 1
    max_replay_lag: int | None = None
    reward_rule: RewardRule | None = None
    is_shared: bool = False

    @property
    def max_outstanding(self) -> int | None:
        """Largest number of groups that hold a slot."""
        if self.credit_batches is None or self.batch_groups is None:
            return None
        return (self.credit_batches + 1) * self.batch_groups


UNBOUNDED = Bounds()


class Checker(Protocol):
    """One law, or a few that share their state. Fed with every event in order."""

    def observe(self, event: Event) -> list[Violation]:
        """What this event broke; empty when all is well."""
        ...


def without(read: Read, lost: Collection[Address]) -> Read:
    """The look-up, which raises `RecordLost` where an address was quarantined."""

    def look_up(address: Address) -> bytes:
        if address in lost:
            raise RecordLost(address)
        return read(address)

    return look_up


def lost_records(events: Iterable[Event]) -> frozenset[Address]:
    """Addresses that a repair quarantined."""
    return frozenset(event.payload.address for event in events if isinstance(event.payload, RecordQuarantined))


def bounds_of(config: Config) -> Bounds:
    """What a run under the configuration promises."""
    schedule, replay = config.schedule, config.algorithm.replay
    return Bounds(
        credit_batches=schedule.most_credit_batches,
        batch_groups=schedule.batch_groups,
        group_size=schedule.group_size,
        max_lag=None if schedule.staleness == "pace" else schedule.max_lag,
        max_uses=1 if replay.kind == "none" else replay.uses,
        max_replay_lag=None if replay.kind == "none" else replay.max_lag,
        reward_rule=RewardRule(config.algorithm.reward_rule),
        is_shared=schedule.mode == "colocate_async",
    )
