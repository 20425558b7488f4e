"""The port that grants leases: each token is higher than every one before."""

from typing import Protocol

from headrace.records.execution import Lease
from headrace.records.ids import EpisodeId, LeaseToken


class Leases(Protocol):
    """Grants fencing tokens in rising order."""

    def grant(self, episode: EpisodeId, deadline_s: float) -> Lease:
        """A lease with a token higher than every one before."""
        ...

    def highest(self) -> LeaseToken:
        """The highest token granted."""
        ...
