"""All laws together: after every event, or over a whole log."""

import contextlib
from collections.abc import Collection, Iterable

from headrace.checkers.actions import ActionOrder
from headrace.checkers.consumption import Consumption
from headrace.checkers.groups import GroupShape
from headrace.checkers.law import UNBOUNDED, Bounds, Checker, RecordLost, Violation, lost_records, without
from headrace.checkers.leases import SingleOwner
from headrace.checkers.sealing import Sealing
from headrace.checkers.slots import Slots
from headrace.checkers.tasks import TaskConservation
from headrace.checkers.tokens import TokenAccount, TokenLedger
from headrace.checkers.turns import SharedTurns
from headrace.checkers.verdicts import Rewards
from headrace.checkers.versions import Versions
from headrace.records.compaction import RecordDropped
from headrace.records.events import Event, OrdinalState
from headrace.records.ids import Address
from headrace.records.provenance import Read


class LawChecker:
    """Every law, fed with one event after another.

    Args:
        bounds: what the run promised.
        read: looks up sealed rows; without it the laws about their contents are left out.
        lost: addresses that were quarantined; what a law would read there, or of a dropped transcript, is left out.
    """

    laws = ("C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C10", "C12", "C14", "C16")

    def __init__(
        self, bounds: Bounds = UNBOUNDED, read: Read | None = None, lost: Collection[Address] = frozenset()
    ) -> None:
        read = without(read, lost) if read is not None and lost else read
        self._tasks = TaskConservation()
        self._slots = Slots(bounds, read)
        self._tokens = TokenAccount(read)
        self._checkers: tuple[Checker, ...] = (
            self._tasks,
            Consumption(bounds, read),
            SingleOwner(),
            ActionOrder(),
            Versions(),
            Rewards(bounds, read),
            GroupShape(bounds, read),
            Sealing(read),
            SharedTurns(bounds),
            self._slots,
            self._tokens,
        )
        self._seq = 0

    @property
    def tasks(self) -> dict[OrdinalState, int]:
        """Drawn tasks by state."""
        return self._tasks.counts

    @property
    def outstanding(self) -> int:
        """Groups that hold a slot."""
        return self._slots.outstanding

    @property
    def ledger(self) -> TokenLedger:
        """Where the sampled tokens are."""
        return self._tokens.ledger

    def observe(self, event: Event) -> list[Violation]:
        """What this event broke; empty when all is well.

        Raises:
            KeyError: when a row that a law needs is not there.
            IntegrityError: when such a row cannot be decoded.
        """
        found: list[Violation] = []
        if event.seq != self._seq + 1:
            found.append(
                Violation("C10", event.seq, f"follows event {self._seq}; the sequence has no gaps and no doubles")
            )
        self._seq = event.seq
        if event.cause_seq >= event.seq:
            found.append(Violation("C10", event.seq, f"names event {event.cause_seq} as its cause; causes come before"))
        for checker in self._checkers:
            with contextlib.suppress(RecordLost, RecordDropped):
                found += checker.observe(event)
        return found


def check_log(events: Iterable[Event], bounds: Bounds = UNBOUNDED, read: Read | None = None) -> list[Violation]:
    """Everything that a log breaks, in its order; empty when all laws hold.

    Raises:
        KeyError: when a row that a law needs is not there.
        IntegrityError: when such a row cannot be decoded.
    """
    events = list(events)
    checker = LawChecker(bounds, read, lost_records(events))
    return [violation for event in events for violation in checker.observe(event)]
