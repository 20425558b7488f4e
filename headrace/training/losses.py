"""The PPO clip family on trained tokens, with gradients.

Invariant: the loss is a plain sum of weight times token loss, with weights from `algorithms.aggregation`, so any cut into
micro-batches gives the same gradient. Only trained tokens come in; there is no mask to get wrong.

Dimensions: N trained tokens.
"""

import torch
from torch import Tensor


def ppo_clip_token_loss(
    logprobs_N: Tensor,
    anchor_logprobs_N: Tensor,
    advantages_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    ratio_bound: float | None = None,
) -> Tensor:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) per token, with r = exp(logprobs - anchor).

    The anchor is the policy that the step may not move far from. With one step per batch it is the behaviour itself, token
    by token under the version that sampled it: the ratio then is the importance weight as well, and no second weight may be
    applied on top of it.

    Args:
        logprobs_N: log-probs under the weights being trained; the gradient flows through these alone.
        anchor_logprobs_N: log-probs of the anchor.
        advantages_N: advantage of each token.
        clip_low: lower distance.
        clip_high: upper distance; larger than `clip_low` lets rare tokens grow.
        ratio_bound: the unclipped term uses min(r, ratio_bound), which bounds tokens of negative advantage.

    Source: PPO, arXiv:1707.06347, equation 7; clip-higher: DAPO, arXiv:2503.14476, equation 8; two-sided bound:
        INTELLECT-2, arXiv:2505.07291, section 3.4.
    """
    ratio_N = torch.exp(logprobs_N - anchor_logprobs_N)
    first_N = ratio_N if ratio_bound is None else ratio_N.clamp(max=ratio_bound)
    clipped_N = ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(first_N * advantages_N, clipped_N * advantages_N)


def weighted_sum(token_loss_N: Tensor, weights_N: Tensor) -> Tensor:
    """The part of the aggregated loss that these tokens make; the parts of all micro-batches add up to the loss."""
    return (token_loss_N * weights_N).sum()
