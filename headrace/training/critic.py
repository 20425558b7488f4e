"""The critic: a value of the context before each trained token, with weights and an optimizer of its own.

Invariant: values and advantages exist at action tokens alone; observations are attended to and have none. The critic's
loss and gradient are taken before any weight of the plan moves.

Dimensions: N tokens of all rows, A trained tokens of one row, H hidden size.
"""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from headrace.algorithms.returns import gae, whitened
from headrace.config import AlgorithmSection
from headrace.errors import Outcome, TrainerError
from headrace.records.arrays import FloatArray
from headrace.training.options import TrainerOptions
from headrace.training.packing import PackedBatch
from headrace.training.policy import MicroBatch, Policy, micro_batches


class Critic:
    """A value model that starts as the policy's body under a head of zeros: every value is 0 until it has learned.

    Args:
        folder: of the policy that it starts from.
        algorithm: discount, trace, learning rate, clip.
        options: layout, precision, micro-batches, optimizer.
    """

    def __init__(self, folder: Path, algorithm: AlgorithmSection, options: TrainerOptions) -> None:
        self._body = Policy.load(folder)
        self._body.use(options.layout, options.precision)
        self._head = nn.Linear(self._body.width, 1)
        nn.init.zeros_(self._head.weight)
        nn.init.zeros_(self._head.bias)
        self._algorithm = algorithm
        self._options = options
        self.parameters = [*self._body.model.base_model.parameters(), *self._head.parameters()]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=algorithm.critic.learning_rate, weight_decay=0.0)

    @property
    def size_bytes(self) -> int:
        """Bytes of its weights."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self.parameters)

    def values(self, packed: PackedBatch, rows: Sequence[int]) -> FloatArray:
        """Values [N] of the rows' trained tokens, without gradient; NaN elsewhere."""
        values_N = np.full(len(packed.ids_N), np.nan, dtype=np.float32)
        with torch.inference_mode():
            for micro in micro_batches(packed, rows, self._options.micro_batch_tokens, self._options.layout):
                values_N[micro.tokens_N] = self._values(micro).numpy()
        return values_N

    def gradient(self, packed: PackedBatch, values_N: FloatArray, returns_N: FloatArray) -> tuple[float, float]:
        """(loss, share of the returns' variance explained); the gradient lies in the parameters, clipped.

        The loss is half the squared error, mean over trained tokens; with a value clip the worse of the plain error and that
        of the value moved by at most the clip.

        Source: Schulman et al. 2017, arXiv:1707.06347, equation 9, with the clip of its reference code.

        Raises:
            TrainerError: REJECTED when a number is not finite.
        """
        self.optimizer.zero_grad(set_to_none=False)
        num_tokens, total = int(packed.action_mask_N.sum()), 0.0
        clip = self._algorithm.critic.value_clip
        rows = range(len(packed.transcripts))
        for micro in micro_batches(packed, rows, self._options.micro_batch_tokens, self._options.layout):
            new_n = self._values(micro)
            old_n, target_n = (torch.from_numpy(array_N[micro.tokens_N]) for array_N in (values_N, returns_N))
            error_n = (new_n - target_n) ** 2
            if clip > 0:
                held_n = old_n + (new_n - old_n).clamp(-clip, clip)
                error_n = torch.maximum(error_n, (held_n - target_n) ** 2)
            part = 0.5 * error_n.sum() / num_tokens
            torch.autograd.backward(part)
            total += float(part.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self._algorithm.max_grad_norm))
        if not (math.isfinite(total) and math.isfinite(norm)):
            message = f"the critic's loss is {total}, its gradient norm {norm}; nothing was changed"
            raise TrainerError(message, Outcome.REJECTED)
        return total, explained_variance(values_N[packed.action_mask_N], returns_N[packed.action_mask_N])

    def step(self) -> None:
        """Moves the weights by the gradient."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _values(self, micro: MicroBatch) -> Tensor:
        return self._head(self._body.hidden(micro))[:, 0]


def critic_advantages(
    packed: PackedBatch, values_N: FloatArray, penalties_N: FloatArray | None, algorithm: AlgorithmSection
) -> tuple[FloatArray, FloatArray]:
    """(advantages [N], returns [N]) by generalised advantage estimation over action tokens; 0 elsewhere.

    Args:
        packed: rows whose advantage is the outcome to be earned at the last trained token.
        values_N: the critic's.
        penalties_N: taken off the reward of each trained token; None for none.
        algorithm: discount and trace.
    """
    advantages_N = np.zeros(len(packed.ids_N), dtype=np.float64)
    returns_N = np.zeros(len(packed.ids_N), dtype=np.float64)
    estimator = algorithm.estimator
    for row, (start, stop) in enumerate(itertools.pairwise(packed.cu_seqlens.tolist())):
        tokens_A = start + np.flatnonzero(packed.action_mask_N[start:stop])
        if not len(tokens_A):
            continue
        rewards_A = np.zeros(len(tokens_A))
        if penalties_N is not None:
            rewards_A -= penalties_N[tokens_A]
        rewards_A[-1] += packed.advantages_B[row]
        advantages_N[tokens_A], returns_N[tokens_A] = gae(
            rewards_A, values_N[tokens_A].astype(np.float64), discount=estimator.discount, trace=estimator.trace
        )
    mask_N = packed.action_mask_N
    advantages_N[mask_N] = whitened(advantages_N[mask_N])
    return advantages_N.astype(np.float32), returns_N.astype(np.float32)


def explained_variance(values_k: FloatArray, returns_k: FloatArray) -> float:
    """1 - var(returns - values) / var(returns); 0 when the returns do not vary."""
    variance = float(np.var(returns_k.astype(np.float64)))
    return 1.0 - float(np.var(returns_k.astype(np.float64) - values_k)) / variance if variance > 0 else 0.0
