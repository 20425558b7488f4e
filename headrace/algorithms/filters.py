"""Filters on groups and rewards: which never train, and which train with another reward.

Invariant: a filter removes for a reason that it names; a removed member has no reward (absent, never 0) and so takes part
in no baseline.
"""

from collections.abc import Sequence


def is_informative(rewards: Sequence[float | None], tolerance: float = 1e-6) -> bool:
    """Whether two rewards of the group differ by more than the tolerance: only then is there an advantage.

    Example: (1, 0, None, 1) is; (1, 1, 1, 1), (0.5, 0.5, 0.500000001) and (1, None) are not.

    Source: dynamic sampling, DAPO, arXiv:2503.14476, equation 11.
    """
    present = [value for value in rewards if value is not None]
    return len(present) >= 2 and max(present) - min(present) > tolerance


def overlong_penalty(length: int, *, budget: int, buffer: int, penalty: float) -> float:
    """0 up to budget - buffer tokens, then falling linearly to -penalty at the budget, and no lower.

    Example: budget 20480, buffer 4096, penalty 1: 16384 tokens give 0, 18432 give -0.5, 20480 give -1.

    Source: soft overlong punishment, DAPO, arXiv:2503.14476, equation 13.

    Raises:
        ValueError: unless 0 < buffer <= budget.
    """
    if not 0 < buffer <= budget:
        raise ValueError(f"buffer is {buffer} tokens; it must lie in [1, {budget}], the budget")
    excess = min(length, budget) - (budget - buffer)
    return -penalty * excess / buffer if excess > 0 else 0.0


def without_truncated(rewards: Sequence[float | None], is_truncated: Sequence[bool]) -> list[float | None]:
    """Rewards with those of truncated members absent: they leave the loss and the baseline together.

    Source: overlong filtering, DAPO, arXiv:2503.14476, section 3.4.
    """
    return [None if cut else reward for reward, cut in zip(rewards, is_truncated, strict=True)]


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
