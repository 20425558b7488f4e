"""Admission: may another group start?

Invariant: outstanding <= (credit_batches + 1) * batch_groups at every instant. A group is outstanding from admission to
the version bump that consumed it, or to its recorded rejection, so credit bounds work in flight and with it the mean lag.
"""

import msgspec


class AdmissionState(msgspec.Struct, frozen=True):
    """What admission looks at.

    Attributes:
        outstanding: groups that hold a slot.
        trained: groups consumed by finished updates.
        is_exhausted: the source has no further task.
    """

    outstanding: int
    trained: int
    is_exhausted: bool


class Admission(msgspec.Struct, frozen=True):
    """Decides by credit.

    Attributes:
        max_outstanding: (credit_batches + 1) * batch_groups.
        needed: groups that the whole run will train; none is admitted beyond what can still be used.
    """

    max_outstanding: int
    needed: int

    def hold_reason(self, state: AdmissionState) -> str | None:
        """Why no group may start now; None admits one."""
        if state.is_exhausted:
            return "source exhausted"
        if state.trained + state.outstanding >= self.needed:
            return "the run needs no further group"
        if state.outstanding >= self.max_outstanding:
            return f"credit: {state.outstanding} of {self.max_outstanding} slots charged"
        return None
