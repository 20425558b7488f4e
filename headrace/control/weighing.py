"""Counts what was accepted of each stratum, and weighs the rows of a batch by it.

Invariant: synchronous and without I/O; only rules that select by age or by weight count as a rejection, and a filter on
rewards or a failure of the infrastructure does not.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.algorithms.selection import NoAcceptanceError, acceptance_weights
from headrace.records.batch import BatchRow
from headrace.records.ids import Address
from headrace.records.weighing import StrataWeighed, StratumAcceptance, StratumWeights

SELECTIVE = ("stale:", "cancelled:", "statistical gate:")
"""How the reasons of rejections begin that select by age or by weight."""


class StratumLedger:
    """What was accepted and rejected of each stratum since the run began."""

    def __init__(self) -> None:
        self._accepted: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()

    def recall(self, weighed: StrataWeighed) -> None:
        """Takes over the counts of an earlier process of the run."""
        self._accepted = Counter({item.difficulty: item.accepted for item in weighed.strata})
        self._rejected = Counter({item.difficulty: item.offered - item.accepted for item in weighed.strata})

    def accept(self, difficulties: Iterable[str]) -> None:
        """Counts groups that train."""
        self._accepted.update(difficulties)

    def reject(self, difficulty: str, reason: str) -> None:
        """Counts a group that a rule ended, if the rule selects."""
        if reason.startswith(SELECTIVE):
            self._rejected[difficulty] += 1

    def weigh(self, update: int, weights: StratumWeights) -> StrataWeighed:
        """Weight of each stratum by all that was counted."""
        offered = self._accepted + self._rejected
        try:
            found = acceptance_weights(offered, self._accepted, cap=weights.cap)
        except NoAcceptanceError as error:
            strata = [
                StratumAcceptance(name, offered[name], self._accepted[name], 1.0, False) for name in sorted(offered)
            ]
            return StrataWeighed(update, tuple(strata), error.strata, None)
        strata = [
            StratumAcceptance(name, offered[name], self._accepted[name], weight, name in found.capped)
            for name, weight in sorted(found.by_stratum.items())
        ]
        return StrataWeighed(update, tuple(strata), (), found.ess_fraction)


def weighed_rows(
    rows: Sequence[BatchRow], weighed: StrataWeighed, difficulties: Mapping[Address, str]
) -> tuple[BatchRow, ...]:
    """The rows with the weight of their stratum over the mean of the batch, so that the step keeps its size."""
    by_stratum = {item.difficulty: item.weight for item in weighed.strata}
    factors = [by_stratum[difficulties[row.transcript]] for row in rows]
    mean = sum(factors) / len(factors) if factors else 1.0
    return tuple(
        msgspec.structs.replace(row, weight=row.weight * factor / mean)
        for row, factor in zip(rows, factors, strict=True)
    )
