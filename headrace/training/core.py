"""The trainer's core: parameters, optimizer, score, update, canary; synchronous.

Invariant: an update that is refused, for its plan, its data or a number that is not finite, leaves weights, optimizer and
version as they were. One plan is one optimizer step, and the step does not depend on how the plan is cut into
micro-batches. The ratio of every token is taken against the policy version that sampled it, at the temperature that it
was sampled at.

Dimensions: B rows, N tokens of all rows (or of a micro-batch), V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from headrace.algorithms.aggregation import token_weights_B
from headrace.config import AlgorithmSection
from headrace.errors import IntegrityError, Outcome, TrainerError
from headrace.records.arrays import IntArray
from headrace.records.batch import BatchPlan, BatchRow
from headrace.records.ids import Address, PolicyId
from headrace.records.update import CanaryScore, RowScore, UpdateResult
from headrace.training.canary import Canary
from headrace.training.losses import ppo_clip_token_loss, weighted_sum
from headrace.training.metrics import TokenValues, row_scores, update_metrics
from headrace.training.packing import PackedBatch, pack, read_transcripts
from headrace.training.policy import Policy, micro_batches
from headrace.training.weights import weights_bytes


class TrainerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the torch trainer.

    Attributes:
        micro_batch_tokens: slots of one forward pass, padding included; bounds memory and changes no result.
        num_threads: torch threads of the process; more than the cores that are free makes it slower, not faster.
        weight_decay: AdamW's decoupled decay.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: added to the root of the second moment.
        warmup_updates: the learning rate rises linearly over so many updates.
    """

    micro_batch_tokens: int = 4096
    num_threads: int = 1
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    warmup_updates: int = 0

    def __post_init__(self) -> None:
        for name, least in (("micro_batch_tokens", 1), ("num_threads", 1), ("weight_decay", 0), ("warmup_updates", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"trainer.{name} is {getattr(self, name)}; it must be at least {least}")
        for name in ("beta1", "beta2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"trainer.{name} is {getattr(self, name)}; it must lie in [0, 1)")


class TrainerCore:
    """One policy's parameters and optimizer.

    Attributes:
        version: number of updates behind the present weights.
        policy_id: whose weights these are.
    """

    def __init__(  # noqa: PLR0913 - what it owns and the three effects it may have
        self,
        options: TrainerOptions,
        policy_dir: Path,
        algorithm: AlgorithmSection,
        *,
        read_row: Callable[[Address], bytes],
        put_weights: Callable[[bytes], Address],
        clock: Callable[[], float],
        policy_id: PolicyId = PolicyId("policy"),  # noqa: B008 - a NewType of str
    ) -> None:
        """Loads version 0 from the folder.

        Args:
            options: see `TrainerOptions`.
            policy_dir: folder with `config.json` and safetensors.
            algorithm: clip distances, aggregation, learning rate, gradient bound.
            read_row: bytes of a sealed row by address.
            put_weights: stores a weights file, returns its address.
            clock: seconds; only `compute_s` depends on it.
            policy_id: plans for another policy are refused.

        Raises:
            ConfigError: when the folder holds no policy.
        """
        torch.set_num_threads(options.num_threads)
        self.version = 0
        self.policy_id = policy_id
        self._options = options
        self._algorithm = algorithm
        self._read_row = read_row
        self._put_weights = put_weights
        self._clock = clock
        self._policy = Policy.load(policy_dir)
        self._parameters = [p for p in self._policy.model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=algorithm.learning_rate,
            betas=(options.beta1, options.beta2),
            eps=options.epsilon,
            weight_decay=options.weight_decay,
            fused=True,
        )
        self._canary = Canary(self._policy)
        self._scored: dict[tuple[Address, int], TokenValues] = {}

    def score(self, rows: Sequence[BatchRow], version: int) -> list[RowScore]:
        """The rows' log-probs under the present weights against their recorded behaviour, in the order of the rows.

        Raises:
            TrainerError: REJECTED when the version is not the present one, or a row cannot be read or is misaligned.
        """
        if version != self.version:
            raise _rejected(f"score at version {version}; the trainer holds {self.version}")
        packed = self._packed(rows)
        values = self._evaluate(packed, range(len(rows)))
        self._remember(packed, values)
        return row_scores(packed, values, version)

    def update(self, plan: BatchPlan) -> UpdateResult:
        """One optimizer step on the plan; the new weights lie under the returned address.

        Raises:
            TrainerError: REJECTED when the plan is not for this policy at this version, cannot be read, trains no token,
                or gives a loss or gradient that is not finite.
        """
        if plan.policy_id != self.policy_id or plan.base_version != self.version:
            raise _rejected(
                f"plan {plan.update} is for {plan.policy_id}@{plan.base_version}; "
                f"the trainer holds {self.policy_id}@{self.version}"
            )
        packed = self._packed(plan.rows)
        if not packed.action_mask_N.any():
            raise _rejected(f"plan {plan.update} of {len(plan.rows)} rows holds no trained token")
        started = self._clock()
        self._canary.keep(self.version)
        try:
            values, loss, norm = self._gradient(packed)
        except BaseException:
            self._optimizer.zero_grad(set_to_none=True)
            raise
        learning_rate = self._step(norm)
        compute_s = self._clock() - started
        data = weights_bytes(self._policy.model)
        return UpdateResult(
            update=plan.update,
            version=self.version,
            weights=self._put_weights(data),
            weights_bytes=len(data),
            metrics={
                "loss": loss,
                "grad_norm": norm,
                "learning_rate": learning_rate,
                **update_metrics(packed, values, plan.base_version, self._algorithm),
            },
            compute_s=compute_s,
        )

    def canary(self, ids: Sequence[IntArray]) -> CanaryScore:
        """Log-probs of fixed sequences under the present weights, and how far they moved since the version before.

        Raises:
            TrainerError: REJECTED when an id is not in the vocabulary.
        """
        for sequence in ids:
            self._check_ids(sequence)
        logprobs, divergence = self._canary.score(ids, self.version)
        return CanaryScore(self.policy_id, self.version, logprobs, divergence)

    def export(self) -> Address:
        """Address of the present weights, which now lie in the store."""
        return self._put_weights(weights_bytes(self._policy.model))

    def _packed(self, rows: Sequence[BatchRow]) -> PackedBatch:
        try:
            transcripts = read_transcripts((row.transcript for row in rows), self._read_row)
            packed = pack(rows, transcripts)
        except (IntegrityError, KeyError) as error:
            raise _rejected(f"the rows cannot be trained on: {error}") from error
        self._check_ids(packed.ids_N)
        return packed

    def _check_ids(self, ids_N: IntArray) -> None:
        if len(ids_N) and not 0 <= int(ids_N.min()) <= int(ids_N.max()) < self._policy.vocabulary:
            raise _rejected(
                f"token ids reach from {ids_N.min()} to {ids_N.max()}; the vocabulary has {self._policy.vocabulary}"
            )

    def _evaluate(self, packed: PackedBatch, rows: Sequence[int]) -> TokenValues:
        """Log-probs and entropies of the rows' trained tokens, without gradient; NaN at all other tokens."""
        values = TokenValues.empty(len(packed.ids_N))
        with torch.inference_mode():
            for micro in micro_batches(packed, rows, self._options.micro_batch_tokens):
                log_p_NV = self._policy.log_distribution(micro)
                values.set(micro.tokens_N, log_p_NV, log_p_NV.gather(1, micro.targets_N[:, None])[:, 0])
        return values

    def _gradient(self, packed: PackedBatch) -> tuple[TokenValues, float, float]:
        """Token values, loss and gradient norm; the gradient lies in the parameters, clipped."""
        weights_B = token_weights_B(self._algorithm.aggregation, packed.action_tokens_B) * packed.weights_B
        rows_N = np.repeat(np.arange(len(weights_B)), packed.lengths_B)
        weights_N = weights_B.astype(np.float32)[rows_N]
        advantages_N = packed.advantages_B[rows_N]
        # A row whose advantage or weight is 0 has loss 0 and gradient 0 under any ratio: no backward pass for it.
        has_gradient_B = (packed.advantages_B != 0) & (weights_B != 0)
        values = self._known_values(packed, np.flatnonzero(~has_gradient_B).tolist())
        loss = 0.0
        self._optimizer.zero_grad(set_to_none=False)
        for micro in micro_batches(packed, np.flatnonzero(has_gradient_B).tolist(), self._options.micro_batch_tokens):
            log_p_NV = self._policy.log_distribution(micro)
            logprobs_N = log_p_NV.gather(1, micro.targets_N[:, None])[:, 0]
            token_loss_N = ppo_clip_token_loss(
                logprobs_N,
                torch.from_numpy(packed.behavior_logprobs_N[micro.tokens_N]),
                torch.from_numpy(advantages_N[micro.tokens_N]),
                clip_low=self._algorithm.clip_low,
                clip_high=self._algorithm.clip_high,
            )
            part = weighted_sum(token_loss_N, torch.from_numpy(weights_N[micro.tokens_N]))
            torch.autograd.backward(part)
            loss += float(part.detach())
            values.set(micro.tokens_N, log_p_NV.detach(), logprobs_N.detach())
        return values, loss, self._clipped_norm(values, packed.action_mask_N, loss)

    def _clipped_norm(self, values: TokenValues, mask_N: npt.NDArray[np.bool_], loss: float) -> float:
        """Norm of the gradient before it was clipped. Raises TrainerError when a number is not finite."""
        if not np.isfinite(values.logprobs_N[mask_N]).all() or not math.isfinite(loss):
            raise _rejected(f"the loss is {loss}, or a log-prob is not finite; nothing was changed")
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._algorithm.max_grad_norm))
        if not math.isfinite(norm):
            raise _rejected(f"the gradient norm is {norm}; nothing was changed")
        return norm

    def _step(self, norm: float) -> float:
        """The learning rate that the step was made with; the version is the next one."""
        warmup = min(1.0, (self.version + 1) / max(1, self._options.warmup_updates))
        learning_rate = self._algorithm.learning_rate * warmup
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.version += 1
        self._scored = {}
        return learning_rate

    def _remember(self, packed: PackedBatch, values: TokenValues) -> None:
        """Keeps what `score` found until the next step: the same weights need not score the same row twice."""
        bounds = packed.cu_seqlens.tolist()
        self._scored = {
            (packed.transcripts[row], packed.paths[row]): values.slice(bounds[row], bounds[row + 1])
            for row in range(len(packed.transcripts))
        }

    def _known_values(self, packed: PackedBatch, rows: Sequence[int]) -> TokenValues:
        """Values of the rows, from the last `score` under these weights where it had them; NaN elsewhere."""
        missing = [row for row in rows if (packed.transcripts[row], packed.paths[row]) not in self._scored]
        values = self._evaluate(packed, missing)
        for row in rows:
            known = self._scored.get((packed.transcripts[row], packed.paths[row]))
            if known is not None:
                values.put(int(packed.cu_seqlens[row]), known)
        return values


def _rejected(message: str) -> TrainerError:
    return TrainerError(message, Outcome.REJECTED)
