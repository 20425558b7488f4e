"""What unequal acceptance does to what trains, and the weights that undo it.

Invariant: a weight is 1 / acceptance of the stratum, cut at a cap; a stratum of which nothing was accepted has no weight
and is named instead of being left out in silence. Weighing brings back the mix of the *strata* only: what differs between
accepted and rejected tasks inside a stratum stays biased.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np


@dataclasses.dataclass(frozen=True)
class AcceptanceWeights:
    """Weights of the accepted tasks.

    Attributes:
        by_stratum: weight of each stratum.
        capped: strata whose weight was cut, by name.
        ess_fraction: effective sample size of the weights over the number of accepted tasks: the price of the correction.
    """

    by_stratum: dict[str, float]
    capped: tuple[str, ...]
    ess_fraction: float


class NoAcceptanceError(ValueError):
    """A stratum was offered and nothing of it accepted: no finite weight brings it back.

    Attributes:
        strata: by name.
    """

    def __init__(self, strata: tuple[str, ...]) -> None:
        super().__init__(
            f"acceptance of {', '.join(strata)} is 0: no weight brings back what never trains; keep the tasks (staleness "
            "`pace` or `wait`, a larger max_lag) instead of weighing the others"
        )
        self.strata = strata


def acceptance_weights(
    offered: Mapping[str, float], accepted: Mapping[str, float], *, cap: float = float("inf")
) -> AcceptanceWeights:
    """Inverse acceptance of each stratum.

    Args:
        offered: tasks of each stratum that were decided, as counts or shares.
        accepted: of those, the ones that train, in the same unit.
        cap: largest weight.

    Example: easy 98 of 100 and hard 40 of 100 accepted: weights 1.02 and 2.5; a cap of 2 cuts the second.

    Source: Horvitz and Thompson 1952, "A generalization of sampling without replacement from a finite universe".

    Raises:
        NoAcceptanceError: when nothing of an offered stratum was accepted.
        ValueError: when nothing was offered, or more accepted than offered.
    """
    strata = sorted(name for name, count in offered.items() if count > 0)
    if not strata:
        raise ValueError("nothing was offered, so there is no acceptance")
    for name in strata:
        if accepted.get(name, 0.0) > offered[name]:
            raise ValueError(f"{accepted[name]} of {offered[name]} {name} tasks were accepted; at most all can be")
    lost = tuple(name for name in strata if not accepted.get(name, 0.0) > 0)
    if lost:
        raise NoAcceptanceError(lost)
    raw = {name: offered[name] / accepted[name] for name in strata}
    weights = {name: min(weight, cap) for name, weight in raw.items()}
    counts = np.array([accepted[name] for name in strata], dtype=np.float64)
    values = np.array([weights[name] for name in strata])
    fraction = float((counts * values).sum()) ** 2 / float((counts * values**2).sum()) / float(counts.sum())
    return AcceptanceWeights(weights, tuple(name for name in strata if raw[name] > cap), fraction)
