"""The statistical gate: may these rows train, as much as they are, or at all?

Invariant: it judges raw weights of episodes, before any correction, and changes the fewest, furthest from weight 1 first,
without which the batch holds its bounds. Two batches of one lag may be judged differently: a lag says how many updates
went by, the weights say how far they went.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from headrace.control.scoring import signal_figures
from headrace.records.gate import BatchGated, Breach, Gate, GateAction, StratumGated
from headrace.records.ids import Address
from headrace.records.update import RowScore, SignalFigures

RowKey = tuple[Address, int]
_MEAN_TOLERANCE = 0.01
"""A mean weight so near 1 is on policy, however many standard errors the rounding of two engines makes of it."""


@dataclasses.dataclass(frozen=True)
class GateDecision:
    """What becomes of a batch.

    Attributes:
        action: what is done; `pass` changes nothing.
        breaches: figures beyond their bounds.
        factors: weight of each affected row, by (transcript, path); 0 where it does not train.
    """

    action: GateAction
    breaches: tuple[Breach, ...]
    factors: Mapping[RowKey, float]

    def factor(self, row: RowKey) -> float:
        """Factor of a row's weight."""
        return self.factors.get(row, 1.0)

    def event(self, update: int, scores: Sequence[RowScore], difficulties: Mapping[Address, str]) -> BatchGated:
        """The decision as it is recorded."""
        by_stratum: dict[str, list[float]] = {}
        for score in scores:
            factor = self.factor((score.transcript, score.path))
            by_stratum.setdefault(difficulties[score.transcript], []).append(factor)
        return BatchGated(
            update,
            self.action,
            self.breaches,
            tuple(
                StratumGated(name, len(found), sum(factor != 1.0 for factor in found), sum(found) / len(found))
                for name, found in sorted(by_stratum.items())
            ),
        )


class StatisticalGate:
    """Judges batches.

    Args:
        gate: the bounds, and what to do.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def judge(self, scores: Sequence[RowScore], figures: SignalFigures) -> GateDecision:
        """The decision about a batch of at least one row, from the scores and what they sum up to."""
        found = breaches(self._gate, figures)
        if not found or self._gate.action == "pass":
            return GateDecision("pass", found, {})
        episodes: dict[Address, list[RowScore]] = {}
        for score in sorted(scores, key=lambda score: (score.transcript, score.path)):
            episodes.setdefault(score.transcript, []).append(score)
        far = sorted(episodes.values(), key=lambda rows: -abs(_log_weight(rows)))
        affected = self._fewest(far)
        if affected == len(far):
            return GateDecision("mask", found, {(score.transcript, score.path): 0.0 for score in scores})
        edge = abs(_log_weight(far[affected])) if self._gate.action == "downweight" else -math.inf
        factors = {
            (score.transcript, score.path): math.exp(edge - abs(_log_weight(rows)))
            for rows in far[:affected]
            for score in rows
        }
        return GateDecision(self._gate.action, found, factors)

    def _fewest(self, far: Sequence[Sequence[RowScore]]) -> int:
        """Episodes to change, the furthest first, so that the others hold the bounds; all when no others do."""
        low, high = 1, len(far)
        while low < high:
            middle = (low + high) // 2
            if breaches(self._gate, signal_figures([score for rows in far[middle:] for score in rows])):
                low = middle + 1
            else:
                high = middle
        return low


def _log_weight(rows: Sequence[RowScore]) -> float:
    """Log of an episode's weight."""
    return sum(row.log_ratio_sum for row in rows)


def breaches(gate: Gate, figures: SignalFigures) -> tuple[Breach, ...]:
    """Figures of a batch beyond their bounds."""
    upper = [
        ("p95", figures.p95, gate.max_p95),
        ("p99", figures.p99, gate.max_p99),
        ("largest weight", figures.maximum, gate.max_weight),
        ("share of the largest weight", figures.largest_share if figures.rows > 1 else 0.0, gate.max_largest_share),
        ("clip fraction ratio_outside", figures.outside or 0.0, gate.max_outside),
        ("KL k3", figures.kl_k3, gate.max_kl),
    ]
    if abs(figures.mean_weight - 1.0) > _MEAN_TOLERANCE:
        upper.append(("mean weight z", abs(figures.mean_weight_z), gate.max_mean_z))
    found = [Breach(name, min(value, _LARGEST), bound) for name, value, bound in upper if 0.0 < bound < value]
    if figures.ess_fraction < gate.min_ess_share:
        found.append(Breach("ESS share", figures.ess_fraction, gate.min_ess_share))
    return tuple(found)


_LARGEST = 1e300
"""What is recorded of a figure beyond the range of a float."""
