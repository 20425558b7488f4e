"""Admission: may another group start?

Invariant: no group starts while outstanding >= (credit_batches + 1) * batch_groups. A group is outstanding from admission to
the version bump that consumed it, or to its recorded rejection, so credit bounds work in flight and with it the mean lag.
"""

import msgspec


class AdmissionState(msgspec.Struct, frozen=True):
    """What admission looks at.

    Attributes:
        outstanding: groups that hold a slot.
        max_outstanding: (credit_batches + 1) * batch_groups of the credit in force.
        version: finished updates.
        is_exhausted: the source has no further task.
    """

    outstanding: int
    max_outstanding: int
    version: int
    is_exhausted: bool


class Admission(msgspec.Struct, frozen=True):
    """Decides by credit.

    Attributes:
        updates: of the whole run; no group is admitted beyond what those to come can use.
        batch_groups: groups of one update.
    """

    updates: int
    batch_groups: int

    def hold_reason(self, state: AdmissionState) -> str | None:
        """Why no group may start now; None admits one."""
        if state.is_exhausted:
            return "source exhausted"
        if state.outstanding >= (self.updates - state.version) * self.batch_groups:
            return "the run needs no further group"
        if state.outstanding >= state.max_outstanding:
            return f"credit: {state.outstanding} of {state.max_outstanding} slots charged"
        return None
