"""What can be had together: throughput, lag and the task mix; and whether rules in use elsewhere lie outside of it.

Invariant: a cell is on the frontier when no other is at least as good in throughput, 95% quantile of the token-weighted lag
and retention of every difficulty, and better in one.
"""

from collections.abc import Sequence

import msgspec

from headrace.planning.experiment import Measured


class Reference(msgspec.Struct, frozen=True):
    """A rule in use elsewhere, restated and simulated apart from this project on the ten-times experiment, 300 updates.

    Attributes:
        rule: its name, with the allowed lag.
        groups_per_ks: trained per 1000 s of the whole run: a rule that loses nothing trains what is offered once it is
            steady, and the share of `requeue` is below that.
        max_lag: of the oldest trained token, updates.
        long_share: of the trained groups; 0.10 is offered.
    """

    rule: str
    groups_per_ks: float
    max_lag: int
    long_share: float


REFERENCES = (
    Reference("synchronous", 12.0, 0, 0.101),
    Reference("admission by average (1)", 80.0, 25, 0.099),
    Reference("admission by average (4)", 243.0, 79, 0.096),
    Reference("admission by average (8)", 278.0, 92, 0.095),
    Reference("in order (4)", 42.0, 4, 0.100),
    Reference("cancel when stale (4)", 316.0, 4, 0.0),
    Reference("drop per sample at use (4)", 241.0, 4, 0.0),
    Reference("requeue when stale (4)", 93.0, 4, 0.090),
)
_SHARE_SLACK, _RATE_SLACK = 0.005, 0.97
"""Two simulations of one experiment draw other lengths: half a point of the mix, 3% of the throughput."""


def frontier(cells: Sequence[Measured]) -> list[Measured]:
    """The cells that no other one dominates, in the order given."""
    return [cell for cell in cells if not any(_dominates(other, cell) for other in cells)]


def covering(reference: Reference, cells: Sequence[Measured], stratum: str = "long") -> Measured | None:
    """The fastest cell that is at least as good as the reference in throughput, lag and mix; None when it lies outside."""
    good = [
        cell
        for cell in cells
        if cell.outcome.groups_per_ks >= _RATE_SLACK * reference.groups_per_ks
        and cell.outcome.lags.oldest_max <= reference.max_lag
        and cell.outcome.strata[stratum].trained_share >= reference.long_share - _SHARE_SLACK
    ]
    return max(good, key=lambda cell: cell.outcome.groups_per_ks, default=None)


def _dominates(other: Measured, cell: Measured) -> bool:
    mine, theirs = _figures(cell), _figures(other)
    return all(a >= b for a, b in zip(theirs, mine, strict=True)) and theirs != mine


def _figures(cell: Measured) -> tuple[float, ...]:
    """Each the larger the better."""
    strata = cell.outcome.strata
    kept = tuple(strata[name].retention for name in sorted(strata))
    return cell.outcome.steady_groups_per_ks, -float(cell.outcome.lags.token_p95), *kept
