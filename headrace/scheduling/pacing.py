"""Pacing: when may the next call to a service with a rate limit begin?

Invariant: two calls are due no closer than the reciprocal of the rate, and a call that nobody is before is due at once. Time
that nobody asked in is not saved up: after a pause there is no burst.
"""

import msgspec


class Pace(msgspec.Struct, frozen=True):
    """Decides by the time at which the service is free again, which begins at 0.

    Attributes:
        calls_per_s: calls that the service lets begin in a second, evenly spaced.
    """

    calls_per_s: float

    def due_s(self, free_s: float, asked_s: float) -> float:
        """When a call may begin that was asked for then, and is the first in the queue."""
        return max(free_s, asked_s)

    def next_free_s(self, due_s: float) -> float:
        """When the service is free again after a call that was due then; a late start delays nobody behind it.

        Example: at 4 calls per second, calls that all ask at 0 s are due at 0, 0.25, 0.5, ... s.
        """
        return due_s + 1.0 / self.calls_per_s
