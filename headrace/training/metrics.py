"""What score and update report about tokens.

Invariant: figures are over trained tokens alone, finite, and absent where there is nothing to measure.

Dimensions: N tokens of all rows, V vocabulary; `k` marks trained tokens only.
"""

import dataclasses

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.algorithms.diagnostics import clip_fractions, kl_k3
from headrace.config import AlgorithmSection
from headrace.records.arrays import FloatArray
from headrace.records.update import RowScore
from headrace.training.packing import PackedBatch


@dataclasses.dataclass(frozen=True)
class TokenValues:
    """The trainer's view of trained tokens.

    Attributes:
        logprobs_N: log-probs under the trainer's weights at the sampling temperature; NaN where not trained, float32.
        entropies_N: entropies of the same distributions, in nats; NaN where not trained, float32.
    """

    logprobs_N: FloatArray
    entropies_N: FloatArray

    @classmethod
    def empty(cls, count: int) -> "TokenValues":
        """All NaN."""
        return cls(np.full(count, np.nan, dtype=np.float32), np.full(count, np.nan, dtype=np.float32))

    def set(self, tokens_n: npt.NDArray[np.int64], log_p_nV: Tensor, logprobs_n: Tensor) -> None:
        """Fills in the tokens of a micro-batch from their log-distributions."""
        self.logprobs_N[tokens_n] = logprobs_n.numpy()
        # A token of probability 0 has a log of -inf and adds nothing.
        bounded_nV = log_p_nV.clamp(min=torch.finfo(log_p_nV.dtype).min)
        self.entropies_N[tokens_n] = -(log_p_nV.exp() * bounded_nV).sum(dim=-1).numpy()

    def slice(self, start: int, stop: int) -> "TokenValues":
        """A view of some tokens."""
        return TokenValues(self.logprobs_N[start:stop], self.entropies_N[start:stop])

    def put(self, start: int, part: "TokenValues") -> None:
        """Fills in the tokens from `start` on."""
        self.logprobs_N[start : start + len(part.logprobs_N)] = part.logprobs_N
        self.entropies_N[start : start + len(part.entropies_N)] = part.entropies_N


def row_scores(packed: PackedBatch, values: TokenValues, version: int) -> list[RowScore]:
    """One score per row, in the order of the rows; a row without a trained token has zeros and no fresh one."""
    mask_N = packed.action_mask_N
    log_ratio_N = np.where(mask_N, values.logprobs_N.astype(np.float64) - packed.behavior_logprobs_N, 0.0)
    is_fresh_N = mask_N & packed.is_fresh_context_N & (packed.versions_N == version)
    bounds = packed.cu_seqlens.tolist()
    scores: list[RowScore] = []
    for row, num_tokens in enumerate(packed.action_tokens_B.tolist()):
        part = slice(bounds[row], bounds[row + 1])
        size_n = np.abs(log_ratio_N[part])
        fresh_n = size_n[is_fresh_N[part]]
        scores.append(
            RowScore(
                transcript=packed.transcripts[row],
                path=packed.paths[row],
                num_tokens=num_tokens,
                log_ratio_sum=float(log_ratio_N[part].sum()),
                log_ratio_abs_max=float(size_n.max(initial=0.0)),
                fresh_abs_max=float(fresh_n.max()) if len(fresh_n) else None,
            )
        )
    return scores


def update_metrics(
    packed: PackedBatch, values: TokenValues, base_version: int, algorithm: AlgorithmSection
) -> dict[str, float]:
    """Metrics of a batch under the weights before the step.

    `clip_fraction` counts tokens without a gradient because the clipped term binds; `kl` is the k3 estimate of
    KL(behaviour, trainer) per token; `mismatch`, largest absolute difference of log-probs over tokens sampled by the base
    version in a fresh context, is missing when there are none.
    """
    mask_N = packed.action_mask_N
    log_ratio_k = values.logprobs_N[mask_N].astype(np.float64) - packed.behavior_logprobs_N[mask_N]
    advantages_k = np.repeat(packed.advantages_B, packed.lengths_B)[mask_N]
    clips = clip_fractions(log_ratio_k, advantages_k, algorithm.clip_low, algorithm.clip_high)
    ratio_k = np.exp(np.minimum(log_ratio_k, 700.0))
    metrics = {
        "clip_fraction": clips.branch_binds,
        "clip_fraction_outside": clips.ratio_outside,
        "clip_fraction_low": clips.low_negative_advantage,
        "clip_fraction_high": clips.high_positive_advantage,
        "ratio_mean": float(ratio_k.mean()),
        "ratio_max": float(ratio_k.max()),
        "kl": float(kl_k3(-log_ratio_k).clip(max=np.finfo(np.float64).max).mean()),
        "entropy": float(values.entropies_N[mask_N].astype(np.float64).mean()),
        "rows": float(len(packed.transcripts)),
        "rows_without_action_tokens": float((packed.action_tokens_B == 0).sum()),
        "rows_without_gradient": float(((packed.advantages_B == 0) | (packed.weights_B == 0)).sum()),
        "tokens": float(len(packed.ids_N)),
        "action_tokens": float(mask_N.sum()),
    }
    is_fresh_k = (packed.is_fresh_context_N & (packed.versions_N == base_version))[mask_N]
    if is_fresh_k.any():
        metrics["mismatch"] = float(np.abs(log_ratio_k[is_fresh_k]).max())
    return metrics
