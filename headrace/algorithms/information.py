"""Effective training information: how much of what enters the trainer can teach it anything, in effective trajectories.

    (1 / hours) * sum over strata s of  kappa_s * e_s * sum over groups g in s of  v_g * n_g

Invariant: a group of equal rewards, a duplicate, a member without a reward and pure verdict noise add nothing. Limits: it
says nothing about transfer, and values measured under different policies do not compare, since v depends on the policy.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

NO_FLIPS: Mapping[str, float] = {}
"""Verdict flip rates when none were measured: every stratum at 0."""


@dataclasses.dataclass(frozen=True)
class GroupSignal:
    """One trained group.

    Attributes:
        task: identity of what was asked; a second group of the same task counts 0.
        stratum: difficulty, fixed before the run.
        rewards: of its members; None where absent.
    """

    task: str
    stratum: str
    rewards: tuple[float | None, ...]


def group_information(rewards: Sequence[float | None], low: float = 0.0, high: float = 1.0) -> float:
    """v_g: unbiased reward variance over its largest value ((high - low)/2)^2; 0 if constant or of fewer than two members.

    Neither capped at 1 nor computed with the biased variance: for successes of rate p its expectation is 4p(1-p) at every
    group size, which a cap or an "is mixed" indicator would break.

    Example: (1, 0, 1, 1) gives 1.0; (1, 0) gives 2.0; (1, None) gives 0.0.

    Source: sample variance with Bessel's correction; the bound is Popoviciu's inequality.

    Raises:
        ValueError: unless low < high.
    """
    if not low < high:
        raise ValueError(f"reward range [{low}, {high}] is empty")
    present = [value for value in rewards if value is not None]
    if len(present) < 2 or min(present) == max(present):
        return 0.0
    mean = sum(present) / len(present)
    variance = sum((value - mean) ** 2 for value in present) / (len(present) - 1)
    return variance / ((high - low) ** 2 / 4)


def noise_discount(flip_rate: float) -> float:
    """The factor kappa = (1 - 2 * flip_rate)^2: what symmetric verdict flips leave of the squared signal.

    Pure noise (0.5) has the largest variance of all and teaches nothing; without this factor it would look best.

    Source: Natarajan et al. 2013, "Learning with noisy labels": E[noisy label] = (1 - 2 rho) E[label] for labels ±1.

    Raises:
        ValueError: outside [0, 0.5]; beyond it a verdict is inverted, not noisy.
    """
    if not 0.0 <= flip_rate <= 0.5:
        raise ValueError(f"flip rate is {flip_rate}; it must lie in [0, 0.5], above it verdicts are inverted")
    return (1.0 - 2.0 * flip_rate) ** 2


def offered_information(
    groups: Iterable[GroupSignal],
    flip_rates: Mapping[str, float] = NO_FLIPS,
    reward_range: tuple[float, float] = (0, 1),
) -> dict[str, float]:
    """Per stratum kappa_s * sum of v_g * n_g: what the groups would give if all were fresh and none rejected.

    Of several groups of one task the first counts. Strata without information are present with 0.
    """
    totals: dict[str, float] = {}
    seen: set[str] = set()
    for group in groups:
        totals.setdefault(group.stratum, 0.0)
        if group.task in seen:
            continue
        seen.add(group.task)
        valid = sum(value is not None for value in group.rewards)
        totals[group.stratum] += group_information(group.rewards, *reward_range) * valid
    return {stratum: noise_discount(flip_rates.get(stratum, 0.0)) * total for stratum, total in totals.items()}


def effective_information(
    groups: Iterable[GroupSignal],
    ess_fractions: Mapping[str, float],
    flip_rates: Mapping[str, float] = NO_FLIPS,
    reward_range: tuple[float, float] = (0, 1),
) -> dict[str, float]:
    """Per stratum kappa_s * e_s * sum of v_g * n_g, in effective trajectories.

    Args:
        groups: trained groups in the order trained.
        ess_fractions: e_s of each stratum: Kish's effective sample size of the raw sequence weights over their count.
        flip_rates: rate of symmetric verdict flips of each stratum; 0 where not named.
        reward_range: smallest and largest reward possible.

    Raises:
        KeyError: when a stratum has no e_s; assuming 1 would claim fresh data.
        ValueError: when an e_s lies outside [0, 1].
    """
    result: dict[str, float] = {}
    for stratum, offered in offered_information(groups, flip_rates, reward_range).items():
        fraction = ess_fractions[stratum]
        if not 0.0 <= fraction <= 1.0 + 1e-9:
            raise ValueError(f"ESS fraction of {stratum} is {fraction}; it must lie in [0, 1]")
        result[stratum] = fraction * offered
    return result


@dataclasses.dataclass(frozen=True)
class Retention:
    """How much of the information on offer reached the trainer.

    Attributes:
        by_stratum: rho_s; None where nothing was on offer.
        worst: stratum with the lowest rho; None when none has one.
        overall: all trained over all offered; None when nothing was offered.
    """

    by_stratum: dict[str, float | None]
    worst: str | None
    overall: float | None


def retention(trained: Mapping[str, float], offered: Mapping[str, float]) -> Retention:
    """rho_s = trained information over offered information, per stratum and overall; ties go to the first name."""
    rates = {
        stratum: trained.get(stratum, 0.0) / offered[stratum] if offered[stratum] > 0 else None
        for stratum in sorted(offered)
    }
    known = {stratum: rate for stratum, rate in rates.items() if rate is not None}
    total = sum(offered.values())
    return Retention(
        by_stratum=rates,
        worst=min(known, key=lambda stratum: known[stratum]) if known else None,
        overall=sum(trained.values()) / total if total > 0 else None,
    )
