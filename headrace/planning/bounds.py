"""Bounds and expectations that need no simulation: what no schedule can beat, and what a rule costs on paper.

Everything is per second or dimensionless, and is tested against worked examples.
"""

import math
from collections.abc import Mapping, Sequence


def fluid_bound(
    mix: Mapping[str, float], demand_s: Mapping[str, Mapping[str, float]], capacity: Mapping[str, float]
) -> tuple[float, str]:
    """(most trajectories per second, the resource that sets it) when all tasks are kept: min_k C_k / sum_s q_s D_sk.

    Args:
        mix: share of each stratum, summing to 1.
        demand_s: seconds of each resource that a trajectory of the stratum needs.
        capacity: servers of each resource.

    Example: 70% tasks of 8 s and 30% of 120 s on 32 environments: 32 / 41.6 = 0.769 per second.
    """
    rates = {
        resource: servers / sum(share * demand_s[name].get(resource, 0.0) for name, share in mix.items())
        for resource, servers in capacity.items()
        if any(demand_s[name].get(resource, 0.0) > 0.0 for name in mix)
    }
    bottleneck = min(rates, key=lambda resource: rates[resource])
    return rates[bottleneck], bottleneck


def credit_bound(rate: float, credit_batches: int, batch: int, residence_s: float) -> float:
    """Most per second under a credit: outstanding <= (credit + 1) batch, so x <= (credit + 1) batch / E[residence]."""
    return min(rate, (credit_batches + 1) * batch / residence_s)


def waiting_efficiency(num_tasks: int, share_long: float, short_s: float, long_s: float) -> float:
    """Busy share of `num_tasks` servers when each batch waits for its slowest task: E[T] / E[max of n]."""
    mean = share_long * long_s + (1.0 - share_long) * short_s
    none_long = (1.0 - share_long) ** num_tasks
    return mean / (none_long * short_s + (1.0 - none_long) * long_s)


def trained_mix(offered: Mapping[str, float], accepted: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """(mix that trains, its total variation distance from the mix offered) when strata are accepted unequally.

    Args:
        offered: share of each stratum.
        accepted: probability that a task of the stratum is kept.
    """
    kept = {name: share * accepted[name] for name, share in offered.items()}
    total = sum(kept.values())
    if total <= 0.0:
        raise ValueError("nothing is accepted, so there is no mix")
    mix = {name: value / total for name, value in kept.items()}
    return mix, 0.5 * sum(abs(mix[name] - offered[name]) for name in offered)


def oversampled_short_share(num_launched: int, num_kept: int, share_slow: float) -> float:
    """Expected share of fast tasks among the first `num_kept` of `num_launched` to end, durations having two values."""
    expected = 0.0
    for fast in range(num_launched + 1):
        probability = math.comb(num_launched, fast) * (1.0 - share_slow) ** fast * share_slow ** (num_launched - fast)
        expected += probability * min(fast, num_kept) / num_kept
    return expected


def mean_lag(not_handed_over: Sequence[int], groups_per_update: int) -> float:
    """Mean lag of groups when none is dropped: mean over version bumps of those admitted and not yet handed over, / P."""
    return sum(not_handed_over) / len(not_handed_over) / groups_per_update
