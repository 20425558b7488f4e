"""Rules that end stale work: cancel what runs, or draw its task again. They are here to be compared with, not to be used.

Both bound lag by giving up work that is under way, so a task that outlasts `max_lag` updates never trains, or holds the
trainer back until it does. `pace` and `wait` keep every task.
"""

import msgspec

from headrace.scheduling.staleness import Lag


class Cutoff(msgspec.Struct, frozen=True):
    """Ends work beyond a lag.

    Attributes:
        max_lag: bound in updates.
        cancels: a running group is ended as soon as its oldest token may exceed the bound; else it is judged when it is
            finished.
        requeues: the task of what was ended is drawn again, under a new ordinal, before any other.
    """

    max_lag: int
    cancels: bool = False
    requeues: bool = False

    def drop_reason(self, lag: Lag) -> str | None:
        """Why a finished group may not train; None keeps it."""
        return f"stale: lag {lag.oldest} > {self.max_lag}" if lag.oldest > self.max_lag else None

    def cancel_reason(self, version: int, now: int) -> str | None:
        """Why a running group is ended; None lets it run."""
        if not self.cancels or now - version <= self.max_lag:
            return None
        return f"cancelled: lag {now - version} > {self.max_lag}"
