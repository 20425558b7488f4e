"""KL to the reference model, per trained token: as a term of the loss, or as a penalty on the reward.

Let p be the policy, q the reference, x = log(p/q), and tokens sampled from p. What each estimator's own gradient is worth
as the gradient of KL(p, q):

* k1, x: expected gradient 0; it holds nothing in a loss, and is right as a reward (its weight times grad log p).
* k2, x^2 / 2: right gradient, value too small or too large.
* k3, 1/r - 1 + log r: right value; the gradient is that of KL(q, p), another divergence.
* straight-through: value of k1 or k3 with the gradient of k2: right in both.

On tokens that another policy sampled each is weighed by rho = policy over behaviour. rho has to carry gradient for k1 and
k3 (rho k is then right in value and gradient), and must not for k2.

A token term is right for its own distribution given the context; how the choice moves later contexts is left out. In the
reward that part is in: each token answers for the penalties that follow it.

Dimensions: N trained tokens.
"""

import torch
from torch import Tensor

from headrace.records.arrays import FloatArray
from headrace.records.learning.kl import Kl


def kl_values(kl: Kl, logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """The estimator's value of each token, with its own gradient.

    Source: Schulman 2020, "Approximating KL divergence".
    """
    log_ratio_N = logprobs_N - reference_N
    match kl.estimator:
        case "k1":
            return log_ratio_N
        case "k2":
            return 0.5 * log_ratio_N**2
        case "k3":
            return torch.expm1(-log_ratio_N) + log_ratio_N


def kl_losses(kl: Kl, logprobs_N: Tensor, reference_N: Tensor, behavior_N: Tensor) -> Tensor:
    """Coefficient times the KL term of each token, [N], with the gradient that the choice names.

    Args:
        kl: which estimator and gradient.
        logprobs_N: log-probs under the weights being trained.
        reference_N: log-probs of the reference.
        behavior_N: recorded log-probs; read only with `importance`.

    Source: straight-through and the gradients: Tang and Munos 2025, arXiv:2506.09477; importance: DeepSeek-V3.2,
        arXiv:2512.02556, equation 7.
    """
    own_N = kl_values(kl, logprobs_N, reference_N)
    has_square_gradient = kl.gradient == "straight_through" or kl.estimator == "k2"
    if has_square_gradient:
        square_N = 0.5 * (logprobs_N - reference_N) ** 2
        term_N = square_N + (own_N - square_N).detach()
    else:
        term_N = own_N
    if kl.importance:
        ratio_N = torch.exp(logprobs_N - behavior_N)
        term_N = (ratio_N.detach() if has_square_gradient else ratio_N) * term_N
    return kl.coefficient * term_N


def penalties(kl: Kl, logprobs_N: FloatArray, reference_N: FloatArray) -> FloatArray:
    """The estimator's value of each token, without gradient and without the coefficient; NaN where a log-prob is."""
    return kl_values(kl, torch.from_numpy(logprobs_N), torch.from_numpy(reference_N)).numpy()
