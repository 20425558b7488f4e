"""Generalised advantage estimation over action tokens.

Invariant: time is counted in action tokens alone. The step after a policy token is the next policy token, however many
observation tokens stand between them, so inserting observations changes no return: neither discount nor trace decays over
them, and no value is read at them.

Dimensions: A action tokens of one episode in order, N action tokens of all episodes.
"""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def gae(rewards_A: Array, values_A: Array, *, discount: float, trace: float) -> tuple[Array, Array]:
    """(advantages [A], returns [A]) of one episode; the value after its end is 0.

    Args:
        rewards_A: reward earned at each action token; an outcome stands at the last.
        values_A: the critic's value of the context before each action token.
        discount: gamma in [0, 1].
        trace: lambda in [0, 1]; 1 gives the return minus the value, 0 the one-step error.

    Example: rewards (0, 0, 1), values (0.5, 0.5, 0.5), gamma = lambda = 1: advantages (0.5, 0.5, 0.5), returns (1, 1, 1).

    Source: Schulman et al. 2016, arXiv:1506.02438, equations 11 to 16.
    """
    following_A = np.append(values_A[1:], 0.0)
    errors_A = rewards_A + discount * following_A - values_A
    advantages_A = np.empty_like(errors_A)
    running = 0.0
    for index in range(len(errors_A) - 1, -1, -1):
        running = float(errors_A[index]) + discount * trace * running
        advantages_A[index] = running
    return advantages_A, advantages_A + values_A


def whitened(advantages_N: Array, epsilon: float = 1e-8) -> Array:
    """Mean 0 and sample variance 1 over all action tokens; all 0 for fewer than two.

    Source: PPO as practised, Huang et al. 2022, "The 37 implementation details of PPO", detail 7.
    """
    if advantages_N.size < 2:
        return np.zeros_like(advantages_N)
    return (advantages_N - advantages_N.mean()) / np.sqrt(advantages_N.var(ddof=1) + epsilon)
