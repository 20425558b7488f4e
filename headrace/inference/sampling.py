"""From logits to one token per row, with the log-prob of the very distribution that it was drawn from.

Dimensions: N rows, V vocabulary.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch


class Drawn(NamedTuple):
    """Attributes:
    ids_N: token ids, int64.
    logprobs_N: natural-log probabilities, float32, <= 0.
    is_finite_N: False where the logits were not; the other two mean nothing there.
    """

    ids_N: torch.Tensor
    logprobs_N: torch.Tensor
    is_finite_N: torch.Tensor


def draw(logits_NV: torch.Tensor, temperature_N: npt.NDArray[np.float32], uniforms_N: npt.NDArray[np.float64]) -> Drawn:
    """One token per row by inverse CDF of the full softmax of logits / temperature; the largest logit where it is 0.

    A greedy row's log-prob is that of the unscaled distribution. `uniforms_N` lies in [0, 1).

    Example: logits (ln 1, ln 3), temperature 1: a uniform below 0.25 gives token 0, any other token 1.
    """
    logits_NV = logits_NV.float()
    is_greedy_N = temperature_N == 0
    scale_N = np.where(is_greedy_N, np.float32(1.0), temperature_N)
    # Division by 1 changes nothing, so it is left out where all rows have it.
    scaled_NV = logits_NV if (scale_N == 1.0).all() else logits_NV / torch.from_numpy(scale_N)[:, None]
    logprobs_NV = torch.log_softmax(scaled_NV, dim=-1)
    if is_greedy_N.all():
        ids_N = logits_NV.argmax(-1)
    else:
        # Summed in float64: in float32 the tail of a large vocabulary would round away.
        cumulative_NV = logprobs_NV.exp().cumsum(-1, dtype=torch.float64)
        threshold_N1 = torch.from_numpy(uniforms_N)[:, None] * cumulative_NV[:, -1:]
        ids_N = torch.searchsorted(cumulative_NV, threshold_N1, right=True)[:, 0].clamp_(max=logits_NV.shape[1] - 1)
        if is_greedy_N.any():
            ids_N = torch.where(torch.from_numpy(is_greedy_N), logits_NV.argmax(-1), ids_N)
    chosen_N = logprobs_NV.gather(1, ids_N[:, None])[:, 0].clamp_(max=0.0)
    # One sum finds NaN and both infinities.
    return Drawn(ids_N, chosen_N, torch.isfinite(logits_NV.sum(-1)) & torch.isfinite(chosen_N))
