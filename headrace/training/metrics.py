"""What score and update report about tokens.

Invariant: figures are over trained tokens alone, finite, and absent where there is nothing to measure.

Dimensions: N tokens of all rows, V vocabulary; `k` marks trained tokens only.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.algorithms.diagnostics import ClipFlags, clip_flags, kl_k3
from headrace.algorithms.mismatch import mismatch
from headrace.config import AlgorithmSection
from headrace.records.arrays import FloatArray
from headrace.records.learning.losses import ClipLoss
from headrace.records.update import RowScore, RowUpdate, TokenCounts
from headrace.training.objective import Signal
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


def row_scores(
    packed: PackedBatch,
    values: TokenValues,
    version: int,
    penalties_N: FloatArray | None = None,
    *,
    clip: tuple[float, float] | None = None,
) -> list[RowScore]:
    """One score per row, in the order of the rows; a row without a trained token has zeros and no fresh one.

    Args:
        packed: the rows.
        values: the trainer's view of their tokens.
        version: that the values are of.
        penalties_N: KL to the reference of each token; None without one.
        clip: lower and upper clip distance; None counts no token outside them.
    """
    mask_N = packed.action_mask_N
    log_ratio_N = np.where(mask_N, values.logprobs_N.astype(np.float64) - packed.behavior_logprobs_N, 0.0)
    k3_N = np.minimum(kl_k3(-log_ratio_N), np.finfo(np.float64).max)
    is_own_N, is_old_N = packed.versions_N == version, mask_N & ~packed.is_fresh_context_N
    is_fresh_N = mask_N & packed.is_fresh_context_N & is_own_N
    low, high = clip or (math.inf, math.inf)
    ratio_N = np.exp(np.minimum(log_ratio_N, 700.0))
    is_outside_N = mask_N & ((ratio_N < 1.0 - low) | (ratio_N > 1.0 + high))
    taken_N = np.zeros(len(mask_N)) if penalties_N is None else np.where(mask_N, penalties_N, 0.0)
    bounds = packed.cu_seqlens.tolist()
    scores: list[RowScore] = []
    for row, num_tokens in enumerate(packed.action_tokens_B.tolist()):
        part = slice(bounds[row], bounds[row + 1])
        size_n = np.abs(log_ratio_N[part])
        fresh_n, old_n = size_n[is_fresh_N[part]], size_n[(is_old_N & is_own_N)[part]]
        scores.append(
            RowScore(
                transcript=packed.transcripts[row],
                path=packed.paths[row],
                num_tokens=num_tokens,
                log_ratio_sum=float(log_ratio_N[part].sum()),
                log_ratio_abs_max=float(size_n.max(initial=0.0)),
                fresh_abs_max=float(fresh_n.max()) if len(fresh_n) else None,
                k2_sum=float(0.5 * (size_n**2).sum()),
                k3_sum=float(k3_N[part].sum()),
                penalty_sum=float(taken_N[part].sum()),
                old_cache_tokens=int(is_old_N[part].sum()),
                old_cache_abs_max=float(old_n.max()) if len(old_n) else None,
                outside=int(is_outside_N[part].sum()) if clip is not None else None,
            )
        )
    return scores


def row_updates(
    packed: PackedBatch, values: TokenValues, algorithm: AlgorithmSection, signal: Signal
) -> tuple[RowUpdate, ...]:
    """What the update did to the tokens of each row, in the order of the rows."""
    mask_N, num_rows = packed.action_mask_N, len(packed.transcripts)
    rows_k = packed.rows_N[mask_N]
    flags = _clips(packed, values, algorithm, signal)
    kept_k = signal.corrected.is_kept_N if signal.corrected is not None else np.ones(len(rows_k), dtype=np.bool_)
    columns = (
        np.ones(len(rows_k), dtype=np.bool_),
        kept_k,
        flags.branch_binds,
        flags.ratio_outside,
        flags.low_negative_advantage,
        flags.high_positive_advantage,
        flags.dual,
    )
    counts_7B = [np.bincount(rows_k, weights=column_k, minlength=num_rows).astype(int).tolist() for column_k in columns]
    return tuple(
        RowUpdate(packed.transcripts[row], packed.paths[row], TokenCounts(*(counts_B[row] for counts_B in counts_7B)))
        for row in range(num_rows)
    )


def update_metrics(
    packed: PackedBatch, values: TokenValues, algorithm: AlgorithmSection, signal: Signal, *, base_version: int
) -> dict[str, float]:
    """Metrics of a batch, each row under the weights before its own step.

    Staleness and drift are apart: names without a prefix compare the recorded behaviour with the weights before the step,
    `drift_` the weights before the plan with those before the step. `clip_fraction` counts tokens without a gradient because
    the clipped term binds; `kl` is the k3 estimate of KL(behaviour, trainer) per token; `mismatch`, largest absolute
    difference of log-probs over tokens sampled by the base version in a fresh context, is missing when there are none.
    """
    mask_N = packed.action_mask_N
    logprobs_k = values.logprobs_N[mask_N].astype(np.float64)
    behavior_k = packed.behavior_logprobs_N[mask_N].astype(np.float64)
    log_ratio_k = logprobs_k - behavior_k
    flags = _clips(packed, values, algorithm, signal)
    ratio_k = np.exp(np.minimum(log_ratio_k, 700.0))
    advantages_N = signal.advantages_N
    has_advantage_B = np.bincount(packed.rows_N, weights=mask_N & (advantages_N != 0), minlength=len(packed.paths)) > 0
    metrics = {
        "clip_fraction": float(flags.branch_binds.mean()),
        "clip_fraction_outside": float(flags.ratio_outside.mean()),
        "clip_fraction_low": float(flags.low_negative_advantage.mean()),
        "clip_fraction_high": float(flags.high_positive_advantage.mean()),
        "clip_fraction_dual": float(flags.dual.mean()),
        "ratio_mean": float(ratio_k.mean()),
        "ratio_max": float(ratio_k.max()),
        "kl": float(kl_k3(-log_ratio_k).clip(max=np.finfo(np.float64).max).mean()),
        "entropy": float(values.entropies_N[mask_N].astype(np.float64).mean()),
        "rows": float(len(packed.transcripts)),
        "rows_without_action_tokens": float((packed.action_tokens_B == 0).sum()),
        "rows_without_gradient": float((~has_advantage_B | (packed.weights_B == 0)).sum()),
        "tokens": float(len(packed.ids_N)),
        "action_tokens": float(mask_N.sum()),
    }
    is_fresh_k = (packed.is_fresh_context_N & (packed.versions_N == base_version))[mask_N]
    if is_fresh_k.any():
        metrics["mismatch"] = float(np.abs(log_ratio_k[is_fresh_k]).max())
    found = mismatch(logprobs_k, behavior_k, packed.rows_N[mask_N])
    largest = float(np.finfo(np.float64).max)
    for name in _BEHAVIOR_FIGURES:
        metrics[f"behavior_{name}"] = min(getattr(found, name), largest)
    return metrics | _signal_metrics(packed, logprobs_k, signal)


_BEHAVIOR_FIGURES = (
    "kl_k1",
    "mean_abs",
    "chi_squared_token",
    "chi_squared_sequence",
    "perplexity_ratio",
    "correlation",
)


def _signal_metrics(packed: PackedBatch, logprobs_k: npt.NDArray[np.float64], signal: Signal) -> dict[str, float]:
    """Drift, distance to the reference, and what corrections removed; each only where it exists."""
    mask_N = packed.action_mask_N
    metrics: dict[str, float] = {}
    if signal.old_N is not None:
        drift_k = logprobs_k - signal.old_N[mask_N]
        metrics |= {"drift_kl": float(kl_k3(-drift_k).mean()), "drift_max": float(np.abs(drift_k).max())}
    if signal.reference_N is not None:
        apart_k = logprobs_k - signal.reference_N[mask_N]
        metrics |= {"reference_kl_k1": float(apart_k.mean()), "reference_kl_k3": float(kl_k3(apart_k).mean())}
    if signal.corrected is None:
        return metrics
    corrected, tokens, rows = signal.corrected, int(mask_N.sum()), len(packed.paths)
    metrics |= {
        "kept_tokens": float(corrected.is_kept_N.mean()),
        "correction_weight_mean": float(corrected.weights_N.mean()),
        "invalid_rows": float(corrected.invalid_rows),
    }
    metrics |= {f"removed_tokens_{name}": count / tokens for name, count in corrected.removed_tokens.items()}
    metrics |= {f"removed_rows_{name}": count / rows for name, count in corrected.removed_rows.items()}
    metrics |= {f"truncated_tokens_{name}": count / tokens for name, count in corrected.truncated_tokens.items()}
    return metrics


def _clips(packed: PackedBatch, values: TokenValues, algorithm: AlgorithmSection, signal: Signal) -> ClipFlags:
    """Clipped tokens [k] against the anchor that the loss clips around."""
    mask_N = packed.action_mask_N
    loss = algorithm.loss
    return clip_flags(
        values.logprobs_N[mask_N].astype(np.float64) - signal.anchor_N[mask_N],
        signal.advantages_N[mask_N],
        algorithm.clip_low,
        algorithm.clip_high,
        dual_bound=loss.dual_bound if isinstance(loss, ClipLoss) else None,
    )
