"""Group advantages: from the rewards of the members of a group to one number per member.

Invariant: a member without a reward takes part in no statistic and gets no advantage; absent is None on the outside and a
False in `is_present_GM` or `is_defined_GM` inside, never a number. What each estimator says of degenerate groups:

* fewer than two members with a reward: no advantage at all, the group says nothing; `reinforce_pp` alone has no group
  baseline and gives a lone member one;
* all rewards equal: exactly 0 for every member, and stays 0 through any division (batch-wide whitening aside);
* nearly equal, spread <= `tolerance`: 0 where a deviation would be divided by, since division would blow grader noise up
  to the size of a signal; `mean_only` and `rloo` divide by nothing and keep the tiny deviations.

Dimensions: G groups, M members of the largest group.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, assert_never

import numpy as np
import numpy.typing as npt

from headrace.records.learning.advantages import AdvantageName, EstimatorOptions

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Estimator = Literal["mean", "grpo", "rloo", "loo_std", "batch_std", "maxrl"]

NOISE_TOLERANCE = 1e-6
"""Spread of rewards, in reward units, up to which a group counts as constant before a division."""


@dataclasses.dataclass(frozen=True)
class RewardTable:
    """Rewards of groups of unequal size side by side.

    Attributes:
        rewards_GM: rewards; 0 where absent, and never read there.
        is_present_GM: True where the member exists and has a reward.
        sizes: number of members of each group, those without a reward included.
    """

    rewards_GM: Array
    is_present_GM: Mask
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, groups: Sequence[Sequence[float | None]]) -> "RewardTable":
        """The table of the groups.

        Raises:
            ValueError: when a reward is NaN or infinite; a missing one is None.
        """
        width = max((len(group) for group in groups), default=0)
        padded = [[*group, *[None] * (width - len(group))] for group in groups]
        shape = (len(groups), width)
        present = np.array([[value is not None for value in row] for row in padded], dtype=np.bool_).reshape(shape)
        rewards = np.array([[value or 0.0 for value in row] for row in padded], dtype=np.float64).reshape(shape)
        if not np.isfinite(rewards).all():
            raise ValueError("a reward is not finite; a member without one has None")
        return cls(rewards, present, tuple(len(group) for group in groups))

    @property
    def counts_G1(self) -> npt.NDArray[np.int64]:
        """Members with a reward, [G, 1]."""
        return self.is_present_GM.sum(axis=1, keepdims=True)

    @property
    def is_defined_GM(self) -> Mask:
        """Members that can have an advantage: present, in a group of at least two present ones."""
        return self.is_present_GM & (self.counts_G1 >= 2)

    @property
    def spreads_G1(self) -> Array:
        """Largest minus smallest present reward, [G, 1]; -inf where none is present."""
        return _spread(self.rewards_GM, self.is_present_GM)

    def centred_GM(self) -> Array:
        """Reward minus mean of the present members; exactly 0 in constant groups and where absent."""
        centred = self.rewards_GM - self.means_G1()
        return np.where(self.is_present_GM & (self.spreads_G1 > 0), centred, 0.0)

    def means_G1(self) -> Array:
        """Mean of the present members, [G, 1]; 0 where none is present."""
        return self.rewards_GM.sum(axis=1, keepdims=True) / np.maximum(self.counts_G1, 1)


@dataclasses.dataclass(frozen=True)
class AdvantageTable:
    """Advantages side by side.

    Attributes:
        advantages_GM: advantages; 0 where undefined.
        is_defined_GM: True where the member has one.
        sizes: number of members of each group.
    """

    advantages_GM: Array
    is_defined_GM: Mask
    sizes: tuple[int, ...]

    def lists(self) -> list[list[float | None]]:
        """One list per group in member order; None where there is no advantage."""
        rows = zip(self.advantages_GM.tolist(), self.is_defined_GM.tolist(), self.sizes, strict=True)
        return [
            [value if defined else None for value, defined in zip(values[:size], flags[:size], strict=True)]
            for values, flags, size in rows
        ]


def group_advantages(estimator: Estimator, groups: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
    """Advantages of every member by the named estimator with its defaults; None where there is none.

    Example: `group_advantages("mean", [[1.0, None, 0.0, 0.0]])` gives `[[2/3, None, -1/3, -1/3]]`.

    Raises:
        ValueError: when a reward is not finite, or negative where the estimator needs a rate.
    """
    table = RewardTable.of(groups)
    match estimator:
        case "mean":
            return mean_only(table).lists()
        case "grpo":
            return grpo(table).lists()
        case "rloo":
            return rloo(table).lists()
        case "loo_std":
            return leave_one_out_std(table).lists()
        case "batch_std":
            return batch_std(table).lists()
        case "maxrl":
            return maxrl(table).lists()


@dataclasses.dataclass(frozen=True)
class MemberData:
    """What the estimators of a batch look at, one inner sequence per group, in member order.

    Attributes:
        rewards: None where absent.
        lengths: trained tokens.
        components: named scores behind each reward; None where there is no verdict.
    """

    rewards: Sequence[Sequence[float | None]]
    lengths: Sequence[Sequence[int]]
    components: Sequence[Sequence[Mapping[str, float] | None]]


def batch_advantages(name: AdvantageName, data: MemberData, options: EstimatorOptions) -> list[list[float | None]]:
    """Advantages of every member of a batch; None where there is none.

    Under `gae` the critic is the baseline, token by token, and is not known here: the reward itself stands for the row.

    Raises:
        ValueError: when a reward is not finite, or negative where the estimator needs a rate, or a weighted component
            is missing from a verdict.
    """
    table = RewardTable.of(data.rewards)
    match name:
        case "mean" | "rloo" | "loo_std" | "batch_std" | "maxrl":
            return group_advantages(name, data.rewards)
        case "grpo":
            return grpo(table, ddof=options.ddof).lists()
        case "opo":
            return opo(table, data.lengths).lists()
        case "reinforce_pp":
            return reinforce_pp(table, data.lengths).lists()
        case "reinforce_pp_baseline":
            return reinforce_pp_baseline(table, data.lengths).lists()
        case "gdpo":
            return gdpo(_component_tables(data, options.component_weights), options.component_weights).lists()
        case "gae":
            return AdvantageTable(table.rewards_GM, table.is_present_GM, table.sizes).lists()
        case _ as never:
            assert_never(never)


def _component_tables(data: MemberData, weights: Mapping[str, float]) -> dict[str, RewardTable]:
    """One table per weighted component; a member without a reward has none of them."""

    def value(scores: Mapping[str, float] | None, reward: float | None, name: str) -> float | None:
        if reward is None or scores is None:
            return None
        if name not in scores:
            raise ValueError(f"a verdict has components {sorted(scores)}; `{name}` is weighted and missing")
        return scores[name]

    return {
        name: RewardTable.of(
            [
                [value(scores, reward, name) for scores, reward in zip(group, rewards, strict=True)]
                for group, rewards in zip(data.components, data.rewards, strict=True)
            ]
        )
        for name in weights
    }


def mean_only(table: RewardTable) -> AdvantageTable:
    """Reward minus group mean, not divided by anything.

    Source: Dr. GRPO, Liu et al. 2025, arXiv:2503.20783, section 3.2.
    """
    return _result(table, table.centred_GM())


def grpo(
    table: RewardTable, *, ddof: Literal[0, 1] = 1, epsilon: float = 1e-6, tolerance: float = NOISE_TOLERANCE
) -> AdvantageTable:
    """(r - mean) / (std + epsilon) of the group, with the sample (ddof 1) or the population (ddof 0) deviation.

    The two differ by sqrt(n / (n - 1)); which one is used belongs to the configuration.

    Source: DeepSeekMath, Shao et al. 2024, arXiv:2402.03300, equation 3 and section 4.1.2.
    """
    centred_GM = table.centred_GM()
    std_G1 = _std(centred_GM, table.counts_G1, ddof)
    return _result(table, np.where(table.spreads_G1 > tolerance, centred_GM / (std_G1 + epsilon), 0.0))


def rloo(table: RewardTable) -> AdvantageTable:
    """Reward minus the mean of the other members, which is n / (n - 1) times `mean_only`.

    Source: RLOO, Ahmadian et al. 2024, arXiv:2402.14740, equation 8.
    """
    counts_G1 = table.counts_G1
    return _result(table, table.centred_GM() * (counts_G1 / np.maximum(counts_G1 - 1, 1)))


def leave_one_out_std(
    table: RewardTable, *, epsilon: float = 1e-6, tolerance: float = NOISE_TOLERANCE
) -> AdvantageTable:
    """The leave-one-out advantage over the sample deviation of the *others*; undivided where those are constant.

    A lone success has others of deviation 0: dividing by epsilon would give it a million.

    Source: NeMo-RL, GRPO with `use_leave_one_out_baseline` and `normalize_rewards`.
    """
    advantages_GM = rloo(table).advantages_GM
    members = table.rewards_GM.shape[1]
    others_GMM = table.is_present_GM[:, None, :] & ~np.eye(members, dtype=np.bool_)
    rewards_GMM = np.broadcast_to(table.rewards_GM[:, None, :], others_GMM.shape)
    counts_GM1 = others_GMM.sum(axis=2, keepdims=True)
    means_GM1 = np.where(others_GMM, rewards_GMM, 0.0).sum(axis=2, keepdims=True) / np.maximum(counts_GM1, 1)
    centred_GMM = np.where(others_GMM, rewards_GMM - means_GM1, 0.0)
    std_GM = _std(centred_GMM, counts_GM1, 1)[..., 0]
    spread_GM = _spread(rewards_GMM, others_GMM)[..., 0]
    return _result(table, np.where(spread_GM > tolerance, advantages_GM / (std_GM + epsilon), advantages_GM))


def batch_std(table: RewardTable, *, epsilon: float = 1e-6, tolerance: float = NOISE_TOLERANCE) -> AdvantageTable:
    """Reward minus group mean, over the sample deviation of all rewards of the batch.

    Source: Lite PPO, Liu et al. 2025, arXiv:2508.08221, section 4.1 (group mean, batch deviation).
    """
    present = table.rewards_GM[table.is_present_GM]
    if present.size < 2 or float(np.ptp(present)) <= tolerance:
        return _result(table, np.zeros_like(table.rewards_GM))
    return _result(table, table.centred_GM() / (float(present.std(ddof=1)) + epsilon))


def maxrl(table: RewardTable, *, tolerance: float = NOISE_TOLERANCE) -> AdvantageTable:
    """(r - mean) / mean of the group: the weight of a success grows as successes become rare.

    Source: MaxRL 2026, arXiv:2602.02710, the estimator with mean normalisation.

    Raises:
        ValueError: when a reward is negative; the mean then is no success rate.
    """
    if (table.rewards_GM < 0).any():
        raise ValueError(f"maxrl needs rewards >= 0; the smallest is {table.rewards_GM.min()}")
    means_G1 = table.means_G1()
    safe_G1 = np.where(means_G1 > 0, means_G1, 1.0)
    return _result(table, np.where(table.spreads_G1 > tolerance, table.centred_GM() / safe_G1, 0.0))


def opo(table: RewardTable, lengths: Sequence[Sequence[int]]) -> AdvantageTable:
    """Reward minus the length-weighted mean of the group: the baseline of least variance when gradients grow with length.

    Example: rewards (1, 0) of 1 and 3 tokens have baseline 1/4 and advantages (3/4, -1/4).

    Source: OPO, Hao et al. 2025, arXiv:2505.23585, equation 7.
    """
    weights_GM = np.where(table.is_present_GM, _padded(lengths, table), 0.0)
    total_G1 = weights_GM.sum(axis=1, keepdims=True)
    safe_G1 = np.where(total_G1 > 0, total_G1, 1.0)
    baseline_G1 = np.where(
        total_G1 > 0, (weights_GM * table.rewards_GM).sum(axis=1, keepdims=True) / safe_G1, table.means_G1()
    )
    return _result(table, np.where(table.spreads_G1 > 0, table.rewards_GM - baseline_G1, 0.0))


def reinforce_pp(table: RewardTable, lengths: Sequence[Sequence[int]], *, epsilon: float = 1e-8) -> AdvantageTable:
    """Reward whitened over all trained tokens of the batch; there is no group baseline, so one member per task is enough.

    Source: REINFORCE++, Hu et al. 2025, arXiv:2501.03262, equations 8 to 10 with discount 1.
    """
    raw = AdvantageTable(table.rewards_GM, table.is_present_GM, table.sizes)
    whitened_GM = _whiten(raw, _padded(lengths, table), epsilon)
    return AdvantageTable(np.where(table.is_present_GM, whitened_GM, 0.0), table.is_present_GM, table.sizes)


def reinforce_pp_baseline(
    table: RewardTable, lengths: Sequence[Sequence[int]], *, epsilon: float = 1e-8
) -> AdvantageTable:
    """Reward minus group mean, whitened over all trained *tokens* of the batch: long members weigh more.

    Args:
        table: rewards.
        lengths: trained tokens of each member, in the table's order.
        epsilon: added to the variance.

    Source: REINFORCE++, Hu et al. 2025, arXiv:2501.03262, the baseline variant and its global normalisation.
    """
    return _result(table, _whiten(mean_only(table), _padded(lengths, table), epsilon))


def gdpo(
    components: Mapping[str, RewardTable], weights: Mapping[str, float], *, epsilon: float = 1e-8
) -> AdvantageTable:
    """Each reward component normalised in its own group, summed with weights, then whitened over the batch.

    Normalising the sum instead lets components cancel: (1, 0) and (0, 1) become the same. A member that lacks one component
    has no advantage.

    Source: GDPO 2026, arXiv:2601.05242, decoupled normalisation.
    """
    tables = list(components.values())
    present_GM = np.logical_and.reduce([table.is_present_GM for table in tables])
    shared = {
        name: RewardTable(np.where(present_GM, table.rewards_GM, 0.0), present_GM, table.sizes)
        for name, table in components.items()
    }
    total_GM = sum(
        (weights[name] * grpo(table).advantages_GM for name, table in shared.items()), np.zeros(present_GM.shape)
    )
    first = next(iter(shared.values()))
    summed = _result(first, total_GM)
    return _result(first, _whiten(summed, np.ones_like(total_GM), epsilon))


def _padded(lengths: Sequence[Sequence[int]], table: RewardTable) -> Array:
    """Lengths beside the rewards, [G, M]; 0 where there is no member."""
    padded_GM = np.zeros_like(table.rewards_GM)
    for row, group in zip(padded_GM, lengths, strict=True):
        row[: len(group)] = group
    return padded_GM


def _whiten(table: AdvantageTable, weights_GM: Array, epsilon: float) -> Array:
    """Weighted mean 0 and weighted sample variance 1 over the defined members."""
    weights_GM = np.where(table.is_defined_GM, weights_GM, 0.0)
    total = float(weights_GM.sum())
    if total <= 1:
        return np.zeros_like(table.advantages_GM)
    mean = float((weights_GM * table.advantages_GM).sum()) / total
    variance = float((weights_GM * (table.advantages_GM - mean) ** 2).sum()) / (total - 1)
    return (table.advantages_GM - mean) / np.sqrt(variance + epsilon)


def _std(centred: Array, counts: npt.NDArray[np.int64], ddof: int) -> Array:
    return np.sqrt((centred**2).sum(axis=-1, keepdims=True) / np.maximum(counts - ddof, 1))


def _spread(values: Array, is_present: Mask) -> Array:
    highest = np.where(is_present, values, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    lowest = np.where(is_present, values, np.inf).min(axis=-1, keepdims=True, initial=np.inf)
    return highest - lowest


def _result(table: RewardTable, advantages_GM: Array) -> AdvantageTable:
    defined_GM = table.is_defined_GM
    return AdvantageTable(np.where(defined_GM, advantages_GM, 0.0), defined_GM, table.sizes)
