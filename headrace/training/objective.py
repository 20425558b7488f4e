"""What the loss of each token depends on besides the weights being trained: advantages, anchor, weights, reference.

Invariant: it is made once for a step, from the whole batch, so micro-batches add up to one loss. Denominators count the
trained tokens of the step's rows, less those that a correction says not to count. A row that cannot have a gradient is left
out of the backward pass and stays in the denominators.

Dimensions: N tokens of all rows, B rows; `k` marks trained tokens, `n` those of a micro-batch.
"""

import dataclasses

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.algorithms.aggregation import token_weights_B
from headrace.algorithms.corrections import Corrected, correct, interpolated_logprobs
from headrace.config import AlgorithmSection
from headrace.records.arrays import FloatArray
from headrace.records.learning.losses import DroLoss, PrimeLoss
from headrace.training.divergence import kl_losses
from headrace.training.losses import LossTokens, token_losses, weighted_sum
from headrace.training.packing import PackedBatch
from headrace.training.policy import MicroBatch


@dataclasses.dataclass(frozen=True)
class Signal:
    """What holds for every step of a plan.

    Attributes:
        advantages_N: advantage of each token, float32.
        old_N: log-probs under the weights before the plan's first step; None where nothing reads them.
        anchor_N: log-probs that the ratio is taken against.
        reference_N: log-probs under the reference; None without one.
        corrected: what the corrections made of the batch; None without any.
    """

    advantages_N: FloatArray
    old_N: FloatArray | None
    anchor_N: FloatArray
    reference_N: FloatArray | None
    corrected: Corrected | None


def signal_of(
    packed: PackedBatch,
    algorithm: AlgorithmSection,
    *,
    advantages_N: FloatArray,
    old_N: FloatArray | None,
    reference_N: FloatArray | None,
    base_version: int,
) -> Signal:
    """The signal, with corrections taken over all trained tokens at once."""
    corrected, behavior_N, mask_N = None, packed.behavior_logprobs_N, packed.action_mask_N
    anchor_N = behavior_N
    if algorithm.anchor != "behavior":
        assert old_N is not None, "an anchor before the step needs its log-probs"
        anchor_N = old_N if algorithm.anchor == "old" else _interpolated(packed, old_N, base_version)
    if algorithm.corrections and old_N is not None:
        corrected = correct(
            algorithm.corrections,
            (old_N if algorithm.anchor == "behavior" else anchor_N)[mask_N] - behavior_N[mask_N],
            packed.rows_N[mask_N],
            num_rows=len(packed.transcripts),
            advantages_N=advantages_N[mask_N],
        )
    return Signal(advantages_N, old_N, anchor_N, reference_N, corrected)


def _interpolated(packed: PackedBatch, old_N: FloatArray, base_version: int) -> FloatArray:
    """The anchor one version behind the step: at lag 0 the behaviour itself, and nearer to the old policy with age."""
    lag_N = np.maximum(base_version - packed.versions_N, 0).astype(np.float32)
    return interpolated_logprobs(packed.behavior_logprobs_N, old_N, lag_N / (lag_N + 1)).astype(np.float32)


class Objective:
    """The loss of one step.

    Args:
        packed: the rows of the plan.
        algorithm: the learning signal.
        signal: what holds for the whole plan.
        in_step_B: rows of this step.

    Attributes:
        rows: rows that can have a gradient.
        idle_rows: the other rows of the step.
    """

    def __init__(
        self, packed: PackedBatch, algorithm: AlgorithmSection, signal: Signal, in_step_B: npt.NDArray[np.bool_]
    ) -> None:
        self._algorithm = algorithm
        self._signal = signal
        self._behavior_N = packed.behavior_logprobs_N
        weights_B = self._row_weights(packed, in_step_B)
        factors_N = np.ones(len(packed.ids_N), dtype=np.float32)
        if signal.corrected is not None:
            factors_N[packed.action_mask_N] = signal.corrected.weights_N
        self._weights_N = weights_B.astype(np.float32)[packed.rows_N]
        self._factors_N = factors_N
        has_gradient_B = in_step_B & (weights_B != 0) & self._can_move_B(packed)
        self.rows = np.flatnonzero(has_gradient_B).tolist()
        self.idle_rows = np.flatnonzero(in_step_B & ~has_gradient_B).tolist()

    def loss(self, micro: MicroBatch, logprobs_n: Tensor) -> Tensor:
        """The part of the loss that the micro-batch's tokens make; the gradient flows through `logprobs_n`."""
        algorithm, tokens_n = self._algorithm, micro.tokens_N
        tokens = LossTokens(
            logprobs_n,
            torch.from_numpy(self._signal.anchor_N[tokens_n]),
            torch.from_numpy(self._signal.advantages_N[tokens_n]),
            micro.rows_N,
        )
        losses_n = token_losses(algorithm.loss, tokens, clip_low=algorithm.clip_low, clip_high=algorithm.clip_high)
        if self._signal.corrected is not None:
            factors_n = torch.from_numpy(self._factors_N[tokens_n])
            # A removed token may have any loss, infinity included, and has to leave no trace of it.
            losses_n = torch.where(factors_n > 0, losses_n, 0.0) * factors_n
        if self._signal.reference_N is not None and algorithm.kl.place == "loss":
            reference_n = torch.from_numpy(self._signal.reference_N[tokens_n])
            behavior_n = torch.from_numpy(self._behavior_N[tokens_n])
            losses_n = losses_n + kl_losses(algorithm.kl, logprobs_n, reference_n, behavior_n)
        return weighted_sum(losses_n, torch.from_numpy(self._weights_N[tokens_n]))

    def _row_weights(self, packed: PackedBatch, in_step_B: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """Weight of each token of each row of the step; all 0 when nothing is left to count."""
        counts_B = packed.action_tokens_B
        if self._signal.corrected is not None:
            rows_k = packed.rows_N[packed.action_mask_N]
            counts_B = np.bincount(rows_k[self._signal.corrected.is_counted_N], minlength=len(counts_B))
        counts_B = np.where(in_step_B, counts_B, 0)
        if not counts_B.any():
            return np.zeros(len(counts_B))
        weights_B = token_weights_B(
            self._algorithm.aggregation,
            counts_B,
            max_tokens=self._algorithm.aggregation_tokens or None,
            prompts_B=packed.groups,
            episodes_B=packed.transcripts,
        )
        return weights_B * packed.weights_B

    def _can_move_B(self, packed: PackedBatch) -> npt.NDArray[np.bool_]:
        """Rows whose loss is not constant whatever the ratio."""
        mask_N = packed.action_mask_N
        has_pull = isinstance(self._algorithm.loss, (PrimeLoss, DroLoss))
        moves_N = mask_N & (self._factors_N > 0) & (has_pull | (self._signal.advantages_N != 0))
        if self._signal.reference_N is not None and self._algorithm.kl.place == "loss":
            moves_N = mask_N
        return np.bincount(packed.rows_N[moves_N], minlength=len(packed.transcripts)) > 0
