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
