"""The throughput that no schedule can beat: planner and simulated experiments measure themselves against it."""

from collections.abc import Mapping


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
