"""Leases: fencing tokens from a monotone counter. Whoever saw a higher token refuses a lower one."""

from headrace.records.execution import Lease
from headrace.records.ids import EpisodeId, LeaseToken


class CountingLeases:
    """Grants tokens 1, 2, 3, …; implements `ports.Leases`."""

    def __init__(self, start: int = 0) -> None:
        self._highest = start

    def grant(self, episode: EpisodeId, deadline_s: float) -> Lease:
        del episode
        self._highest += 1
        return Lease(LeaseToken(self._highest), deadline_s)

    def highest(self) -> LeaseToken:
        return LeaseToken(self._highest)
