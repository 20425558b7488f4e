"""What theory says of queues, credits and rules: the values that runs and the simulator are held against.

Everything is per second or dimensionless. Worked examples check the formulas; no run goes by them.
"""

import heapq
import math
from collections.abc import Mapping, Sequence


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


def windowed_lag_bound(credit_batches: int, batch: int, window: int) -> int:
    """Largest lag in updates when a batch takes the first to end among the `window` oldest open groups.

    Holds while slots come back at the version bump: up to (credit + 1) batch groups are outstanding, and a group is passed
    by those before it and by at most window - 1 after it: floor((outstanding + window - 2) / batch). Slots that come back
    when a batch is taken let one more batch in, and the bound breaks by one update.

    Example: credit 4, batch 8, window 12: 6 updates.
    """
    return ((credit_batches + 1) * batch + window - 2) // batch


def single_server_wait_s(arrivals_per_s: float, service_s: Mapping[float, float]) -> float:
    """Mean wait of work that arrives at random at one server: rate E[S^2] / (2 (1 - rate E[S])).

    Args:
        arrivals_per_s: Poisson arrivals.
        service_s: probability of each service time.

    Example: 0.4 per second, 90% of 1 s and 10% of 10 s: 9.08 s, three times as long as with the mean alone.

    Source: Pollaczek 1930, Khinchine 1932, M/G/1.

    Raises:
        ValueError: when the server cannot keep up.
    """
    mean = sum(share * seconds for seconds, share in service_s.items())
    square = sum(share * seconds**2 for seconds, share in service_s.items())
    if not arrivals_per_s * mean < 1.0:
        raise ValueError(
            f"{arrivals_per_s:g} arrivals of {mean:g} s each second; one server can take less than 1 s each"
        )
    return arrivals_per_s * square / (2.0 * (1.0 - arrivals_per_s * mean))


def oversampled_exponential_s(num_launched: int, num_kept: int, mean_s: float = 1.0) -> float:
    """Expected time until the first `num_kept` of `num_launched` exponential durations are over.

    Example: 64 of 64 take 4.74 means, 64 of 80 take 1.58.

    Source: Rényi 1953: the spacings of exponential order statistics are exponential, with mean 1 / (n - i).
    """
    return mean_s * sum(1.0 / (num_launched - i) for i in range(num_kept))


def oversampled_pareto_s(num_launched: int, num_kept: int, shape: float, least_s: float = 1.0) -> float:
    """The same for Pareto durations of at least `least_s` with P(T > t) = (least_s / t)^shape; inf where it has no mean.

    Example: shape 1.5: 64 of 64 take 42.9, 64 of 72 take 4.3: a heavy tail is what over-sampling is for.
    """
    left = num_launched - num_kept + 1
    if left <= 1.0 / shape:
        return math.inf
    logs = math.lgamma(num_launched + 1) - math.lgamma(left)
    return least_s * math.exp(logs + math.lgamma(left - 1.0 / shape) - math.lgamma(num_launched + 1 - 1.0 / shape))


def makespan_s(durations_s: Sequence[float], servers: int, *, is_longest_first: bool = False) -> float:
    """Time at which the last task ends when the next in line starts on the server that is free first.

    Example: six tasks of 1 s and then one of 3 s on three servers: 5 s in order of arrival, 3 s with the longest first.

    Source: Graham 1969, "Bounds on multiprocessing timing anomalies": at most 2 - 1/m times the optimum in any order, and
    4/3 - 1/(3 m) with the longest first.
    """
    free_s = [0.0] * servers
    for duration in sorted(durations_s, reverse=True) if is_longest_first else durations_s:
        heapq.heappush(free_s, heapq.heappop(free_s) + duration)
    return max(free_s)


def response_ratio(wait_s: float, expected_s: float) -> float:
    """(wait + expected) / expected: the slowdown a task would have if it started now. The highest goes first.

    Short work goes before long work, and long work that has waited goes before both.

    Source: Brinch Hansen 1971, "An analysis of response ratio scheduling".
    """
    return (wait_s + expected_s) / expected_s


def optimum_per_hour(
    max_rate_per_s: float, mix: Mapping[str, float], information: Mapping[str, float], kappa: Mapping[str, float]
) -> float:
    """Largest effective information per hour: x_max * sum of q_s * v_s * kappa_s * 3600.

    Args:
        max_rate_per_s: trajectories per second that the narrowest resource allows.
        mix: share of each stratum among drawn tasks.
        information: mean v of each stratum.
        kappa: noise discount of each stratum.
    """
    return max_rate_per_s * 3600.0 * sum(share * information[name] * kappa[name] for name, share in mix.items())


def fraction_of_optimum(information_per_hour: float, optimum: float) -> float | None:
    """Achieved over possible; None when nothing is possible."""
    return information_per_hour / optimum if optimum > 0 else None


def groups_per_kept(success_rate: float, members: int) -> float:
    """Groups that have to be generated for one that dynamic sampling keeps.

    Example: rate 0.1, 8 members: 1.756.

    Raises:
        ValueError: unless the rate lies strictly between 0 and 1 and there are at least two members.
    """
    if not 0.0 < success_rate < 1.0 or members < 2:
        raise ValueError(f"rate {success_rate} of {members} members never gives a mixed group")
    return 1.0 / (1.0 - success_rate**members - (1.0 - success_rate) ** members)


def group_loss(failure_rate: float, members: int) -> float:
    """Probability that a group of independent members is hit at all: what dropping whole groups would cost.

    Example: 5% of members lost, 8 members: 33.7% of groups.
    """
    return 1.0 - (1.0 - failure_rate) ** members
