"""Policy losses on trained tokens, with gradients. One formula each, chosen by name.

Invariant: the loss is a plain sum of weight times token loss, with weights from `algorithms.aggregation`, so any cut into
micro-batches that keeps rows whole gives the same gradient. Only trained tokens come in; there is no mask to get wrong. A
loss of a whole sequence stands at each of its tokens, so that averaging over the tokens gives it back.

The anchor is the policy that the step may not move far from. It is the recorded behaviour, token by token under the version
that sampled it (the ratio then is the importance weight as well, and no second one may stand on top), or the policy before
the step (a correction then weighs the difference between the two).

Dimensions: N trained tokens, R rows of the micro-batch.
"""

import dataclasses
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from headrace.records.learning import losses as named
from headrace.records.learning.choice import Choice
from headrace.records.learning.losses import Loss


@dataclasses.dataclass(frozen=True)
class LossTokens:
    """Trained tokens of whole rows.

    Attributes:
        logprobs_N: log-probs under the weights being trained; the gradient flows through these alone.
        anchor_N: log-probs of the anchor.
        advantages_N: advantage of each token.
        rows_N: row of each token, int64, from 0.
    """

    logprobs_N: Tensor
    anchor_N: Tensor
    advantages_N: Tensor
    rows_N: Tensor

    @property
    def log_ratio_N(self) -> Tensor:
        return self.logprobs_N - self.anchor_N

    def row_sum(self, values_N: Tensor) -> Tensor:
        """Sum over the tokens of each row, [R]."""
        num_rows = int(self.rows_N.max()) + 1 if len(self.rows_N) else 0
        return torch.zeros(num_rows, dtype=values_N.dtype).index_add(0, self.rows_N, values_N)

    def row_mean(self, values_N: Tensor) -> Tensor:
        """Mean over the tokens of the row, at each of its tokens, [N]."""
        counts_R = self.row_sum(torch.ones_like(values_N)).clamp(min=1.0)
        return (self.row_sum(values_N) / counts_R)[self.rows_N]


def token_losses(loss: Loss, tokens: LossTokens, *, clip_low: float, clip_high: float) -> Tensor:
    """Loss of each token, [N], by the named formula."""
    formula = cast("Callable[[Loss, LossTokens, float, float], Tensor]", _FORMULAS[type(loss)])
    return formula(loss, tokens, clip_low, clip_high)


def ppo_clip_token_loss(  # noqa: PLR0913 - the two bounds are options of one formula
    logprobs_N: Tensor,
    anchor_logprobs_N: Tensor,
    advantages_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    ratio_bound: float | None = None,
    dual_bound: float | None = None,
) -> Tensor:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) per token, with r = exp(logprobs - anchor).

    Args:
        logprobs_N: log-probs under the weights being trained.
        anchor_logprobs_N: log-probs of the anchor.
        advantages_N: advantage of each token.
        clip_low: lower distance.
        clip_high: upper distance; larger than `clip_low` lets rare tokens grow.
        ratio_bound: the unclipped term uses min(r, ratio_bound), which bounds tokens of negative advantage.
        dual_bound: a token of negative advantage costs at most -dual_bound * A, without gradient beyond it.

    Source: PPO, arXiv:1707.06347, equation 7; clip-higher: DAPO, arXiv:2503.14476, equation 8; two-sided bound:
        INTELLECT-2, arXiv:2505.07291, section 3.4; dual clip: Ye et al. 2020, arXiv:1912.09729, equation 4.
    """
    ratio_N = torch.exp(logprobs_N - anchor_logprobs_N)
    first_N = ratio_N if ratio_bound is None else ratio_N.clamp(max=ratio_bound)
    clipped_N = ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss_N = -torch.minimum(first_N * advantages_N, clipped_N * advantages_N)
    if dual_bound is None:
        return loss_N
    return torch.where(advantages_N < 0, torch.minimum(loss_N, -dual_bound * advantages_N), loss_N)


def _clip(loss: named.ClipLoss, tokens: LossTokens, clip_low: float, clip_high: float) -> Tensor:
    return ppo_clip_token_loss(
        tokens.logprobs_N,
        tokens.anchor_N,
        tokens.advantages_N,
        clip_low=clip_low,
        clip_high=clip_high,
        ratio_bound=loss.ratio_bound,
        dual_bound=loss.dual_bound,
    )


def _ratio(loss: named.RatioLoss, tokens: LossTokens, clip_low: float, clip_high: float) -> Tensor:
    """-r A. Source: importance sampling; with `m2po`, M2PO arXiv:2510.01161, equation 6."""
    return -torch.exp(tokens.log_ratio_N) * tokens.advantages_N


def _gspo(loss: named.GspoLoss, tokens: LossTokens, clip_low: float, clip_high: float) -> Tensor:
    """PPO on s = exp(mean log-ratio of the sequence). Source: GSPO, arXiv:2507.18071, equations 5 and 7."""
    ratio_N = torch.exp(tokens.row_mean(tokens.log_ratio_N))
    clipped_N = ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(ratio_N * tokens.advantages_N, clipped_N * tokens.advantages_N)


def _gmpo(loss: named.GmpoLoss, tokens: LossTokens, clip_low: float, clip_high: float) -> Tensor:
    """-A exp(mean of log-ratios, each clipped to [-clip_low, clip_high] on the side that its advantage pushes to).

    Source: GMPO, arXiv:2507.20673, equation 4; the clip is in log space, so 0.4 stands for [e^-0.4, e^0.4].
    """
    sign_N = torch.sign(tokens.advantages_N)
    log_ratio_N = tokens.log_ratio_N
    held_N = sign_N * torch.minimum(sign_N * log_ratio_N, sign_N * log_ratio_N.clamp(-clip_low, clip_high))
    return -tokens.row_mean(tokens.advantages_N) * torch.exp(tokens.row_mean(held_N))


def _cispo_relative(loss: named.CispoRelativeLoss, tokens: LossTokens, clip_low: float, clip_high: float) -> Tensor:
    """-clip(r) A log p with the weight held in [1 - clip_low, 1 + clip_high], without gradient through the weight.

    Source: CISPO, MiniMax-M1, arXiv:2506.13585, equations 4 and 5.
    """
    weight_N = torch.exp(tokens.log_ratio_N.detach()).clamp(1.0 - clip_low, 1.0 + clip_high)
    return -weight_N * tokens.advantages_N * tokens.logprobs_N


def _cispo_absolute(loss: named.CispoAbsoluteLoss, tokens: LossTokens, clip_low: float, clip_high: float) -> Tensor:
    """The same with the weight at most `bound`: 5 here is 4 as a relative distance. Source: TRL, `loss_type="cispo"`."""
    weight_N = torch.exp(tokens.log_ratio_N.detach()).clamp(max=loss.bound)
    return -weight_N * tokens.advantages_N * tokens.logprobs_N


def _sapo(loss: named.SapoLoss, tokens: LossTokens, clip_low: float, clip_high: float) -> Tensor:
    """-(4 / tau) sigmoid(tau (r - 1)) A: slope A at r = 1, fading on both sides. Source: SAPO, arXiv:2511.20347, eq. 5."""
    tau_N = torch.where(tokens.advantages_N > 0, loss.tau_positive, loss.tau_negative).to(tokens.logprobs_N.dtype)
    ratio_N = torch.exp(tokens.log_ratio_N)
    return -(4.0 / tau_N) * torch.sigmoid(tau_N * (ratio_N - 1.0)) * tokens.advantages_N


def _dppo(loss: named.DppoLoss, tokens: LossTokens, clip_low: float, clip_high: float) -> Tensor:
    """-r A log p with r constant; 0 for tokens beyond the divergence that move further away.

    Source: DPPO, arXiv:2602.04879, binary approximations of total variation and KL.
    """
    if loss.divergence == "tv":
        is_masked_N = _moves_beyond(tokens, probability_gap(tokens.logprobs_N, tokens.anchor_N), loss.threshold)
    else:
        is_masked_N = _moves_beyond(tokens, binary_kl(tokens.anchor_N, tokens.logprobs_N), loss.threshold)
    weight_N = torch.exp(tokens.log_ratio_N.detach())
    return torch.where(is_masked_N, 0.0, -weight_N * tokens.advantages_N * tokens.logprobs_N)


def _prime(loss: named.PrimeLoss, tokens: LossTokens, clip_low: float, clip_high: float) -> Tensor:
    """-r A for tokens inside the total variation mask, plus kl_tau log-ratio^2 for all. Source: prime-rl, default loss."""
    gap_N = probability_gap(tokens.logprobs_N, tokens.anchor_N)
    is_masked_N = _moves_beyond(tokens, gap_N, loss.threshold)
    ratio_N = torch.exp(tokens.log_ratio_N)
    pulled_N = loss.kl_tau * tokens.log_ratio_N**2
    return torch.where(is_masked_N, 0.0, -ratio_N * tokens.advantages_N) + pulled_N


def _topr(loss: named.ToprLoss, tokens: LossTokens, clip_low: float, clip_high: float) -> Tensor:
    """-w A log p: w = 1 for positive samples, min(r, 1) for negative ones. Source: TOPR, arXiv:2503.14286, equation 8."""
    log_ratio_N = tokens.log_ratio_N.detach()
    if loss.level == "sequence":
        log_ratio_N = tokens.row_sum(log_ratio_N)[tokens.rows_N]
    weight_N = torch.where(tokens.advantages_N > 0, 1.0, torch.exp(log_ratio_N.clamp(max=0.0)))
    return -weight_N * tokens.advantages_N * tokens.logprobs_N


def _aspo(loss: named.AspoLoss, tokens: LossTokens, clip_low: float, clip_high: float) -> Tensor:
    """PPO with 1/r in place of r for positive advantages: rare tokens that pay get more weight, not less.

    A token that PPO clips keeps its clipped value and no gradient. A weight above `bound` becomes the constant bound with
    the gradient of log p.

    Source: ASPO, arXiv:2510.06062, equations 6 to 8.
    """
    log_ratio_N, advantages_N = tokens.log_ratio_N, tokens.advantages_N
    is_positive_N = advantages_N > 0
    # Value 1/r, gradient (1/r) d log p: the sign of the exponent is turned over, the direction of the step is not.
    turned_N = torch.exp(log_ratio_N - 2.0 * log_ratio_N.detach())
    weight_N = torch.where(is_positive_N, turned_N, torch.exp(log_ratio_N))
    ratio_N = torch.exp(log_ratio_N.detach())
    held_N = ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high)
    is_clipped_N = torch.where(is_positive_N, ratio_N > held_N, ratio_N < held_N)
    held_weight_N = torch.where(is_positive_N, 1.0 / held_N, held_N)
    loss_N = -torch.where(is_clipped_N, held_weight_N, weight_N) * advantages_N
    is_soft_N = ~is_clipped_N & (weight_N.detach() > loss.bound)
    return torch.where(is_soft_N, -loss.bound * advantages_N * tokens.logprobs_N, loss_N)


def _dro(loss: named.DroLoss, tokens: LossTokens, clip_low: float, clip_high: float) -> Tensor:
    """-(log p A - beta / 2 log-ratio^2). Source: DRO, Richemond et al. 2024, arXiv:2405.19107, with A for r - V."""
    return -(tokens.logprobs_N * tokens.advantages_N - 0.5 * loss.beta * tokens.log_ratio_N**2)


_FORMULAS: dict[type[Choice], Callable[..., Tensor]] = {
    named.ClipLoss: _clip,
    named.RatioLoss: _ratio,
    named.GspoLoss: _gspo,
    named.GmpoLoss: _gmpo,
    named.CispoRelativeLoss: _cispo_relative,
    named.CispoAbsoluteLoss: _cispo_absolute,
    named.SapoLoss: _sapo,
    named.DppoLoss: _dppo,
    named.PrimeLoss: _prime,
    named.ToprLoss: _topr,
    named.AspoLoss: _aspo,
    named.DroLoss: _dro,
}


def probability_gap(logprobs_N: Tensor, anchor_N: Tensor) -> Tensor:
    """|p - q| of the sampled token: total variation between (p, 1 - p) and (q, 1 - q); no gradient."""
    return (torch.exp(logprobs_N.detach()) - torch.exp(anchor_N)).abs()


def binary_kl(anchor_N: Tensor, logprobs_N: Tensor) -> Tensor:
    """KL((q, 1 - q), (p, 1 - p)) of the sampled token, q the anchor's probability; no gradient, never negative."""
    q_N, p_N = torch.exp(anchor_N), torch.exp(logprobs_N.detach())
    tiny = torch.finfo(q_N.dtype).tiny
    rest_N = (1.0 - q_N) * (torch.log((1.0 - q_N).clamp(min=tiny)) - torch.log((1.0 - p_N).clamp(min=tiny)))
    return (q_N * (anchor_N - logprobs_N.detach()) + rest_N).clamp(min=0.0)


def weighted_sum(token_loss_N: Tensor, weights_N: Tensor) -> Tensor:
    """The part of the aggregated loss that these tokens make; the parts of all micro-batches add up to the loss."""
    return (token_loss_N * weights_N).sum()


def _moves_beyond(tokens: LossTokens, divergence_N: Tensor, threshold: float) -> Tensor:
    """Tokens beyond the threshold whose advantage pushes them further: up when already likelier, down when rarer."""
    log_ratio_N = tokens.log_ratio_N.detach()
    is_outward_N = ((tokens.advantages_N > 0) & (log_ratio_N > 0)) | ((tokens.advantages_N < 0) & (log_ratio_N < 0))
    return (divergence_N > threshold) & is_outward_N
