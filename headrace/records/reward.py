"""Stage 9, reward: a named aggregation of a scored verdict, otherwise absent. No accessor turns absent into 0."""

import enum

from headrace.records.verdict import Scored, Verdict


class RewardRule(enum.Enum):
    """How named components become one number in [0, 1].

    MEAN: arithmetic mean. PRODUCT: product. FIRST: the first component alone.
    """

    MEAN = "mean"
    PRODUCT = "product"
    FIRST = "first"


def reward_of(verdict: Verdict | None, rule: RewardRule) -> float | None:
    """The reward, or None when there is no verdict or it carries no score.

    Example: components (("answer", 1.0), ("format", 0.5)) give 0.75, 0.5 and 1.0 under MEAN, PRODUCT and FIRST.
    """
    if verdict is None or not isinstance(verdict.outcome, Scored):
        return None
    values = [value for _, value in verdict.outcome.components]
    match rule:
        case RewardRule.MEAN:
            return sum(values) / len(values)
        case RewardRule.PRODUCT:
            product = 1.0
            for value in values:
                product *= value
            return product
        case RewardRule.FIRST:
            return values[0]
