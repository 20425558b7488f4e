"""The trainer's core: parameters, optimizer, score, update, canary; synchronous.

Invariant: an update that is refused, for its plan, its data or a number that is not finite, leaves weights, optimizers and
version as they were. One plan is one version, by as many optimizer steps as the algorithm says, and no step depends on how
it is cut into micro-batches. The ratio of every token is taken at the temperature that it was sampled at, against the
policy version that sampled it or, where the algorithm says so, against the policy before the plan.

Dimensions: B rows, N tokens of all rows (or of a micro-batch), V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from headrace.config import AlgorithmSection
from headrace.errors import IntegrityError, Outcome, TrainerError
from headrace.records.arrays import FloatArray, IntArray
from headrace.records.batch import BatchPlan, BatchRow
from headrace.records.checkpoint import Manifest
from headrace.records.ids import Address, PolicyId
from headrace.records.provenance import address_of, canonical_bytes
from headrace.records.update import CanaryScore, RowScore, UpdateResult
from headrace.training.canary import Canary
from headrace.training.critic import Critic, critic_advantages
from headrace.training.divergence import penalties
from headrace.training.metrics import TokenValues, row_scores, row_updates, update_metrics
from headrace.training.objective import Objective, Signal, signal_of
from headrace.training.options import TrainerOptions
from headrace.training.packing import PackedBatch, pack, read_transcripts, step_rows
from headrace.training.policy import Policy, micro_batches
from headrace.training.rates import rate_factors
from headrace.training.scored import ScoredRows
from headrace.training.snapshot import Snapshot
from headrace.training.state import Files, StoredState
from headrace.training.weights import weights_bytes

__all__ = ["TrainerCore", "TrainerOptions"]


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
        files: Files | None = None,
    ) -> None:
        """Loads version 0 from the folder.

        Args:
            options: see `TrainerOptions`.
            policy_dir: folder with `config.json` and safetensors.
            algorithm: the learning signal; it decides whether a reference and a critic exist.
            read_row: bytes of a sealed row by address.
            put_weights: stores a weights file, returns its address.
            clock: seconds; only `compute_s` depends on it.
            policy_id: plans for another policy are refused.
            files: where checkpoints are read from; None can write them and load none.

        Raises:
            ConfigError: when the folder holds no policy, or one that cannot be computed as the options say.
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
        self._policy.use(options.layout, options.precision)
        self._rate = rate_factors(options)
        self._reference = Policy.load(policy_dir) if algorithm.kl.coefficient > 0 else None
        if self._reference is not None:
            self._reference.use(options.layout, options.precision)
        self._critic = Critic(policy_dir, algorithm, options) if algorithm.advantage == "gae" else None
        self._parameters = [p for p in self._policy.model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=algorithm.learning_rate,
            betas=(options.beta1, options.beta2),
            eps=options.epsilon,
            weight_decay=options.weight_decay,
            fused=True,
        )
        critic = self._critic
        self._state = StoredState(
            self._policy.model,
            (self._parameters, self._optimizer),
            None if critic is None else (critic.parameters, critic.optimizer),
            put=put_weights,
            files=files,
        )
        self._algorithm_version = address_of(canonical_bytes(algorithm))
        self._canary = Canary(self._policy)
        self._scored = ScoredRows()

    @property
    def copies(self) -> dict[str, int]:
        """Bytes of every copy of weights that the trainer holds, by role; AdamW keeps two moments beside parameters."""
        policy = sum(parameter.numel() * parameter.element_size() for parameter in self._parameters)
        found = {"policy (trained)": policy, "optimizer moments": 2 * policy}
        if self._reference is not None:
            found["reference"] = policy
        if self._critic is not None:
            found |= {"critic": self._critic.size_bytes, "critic moments": 2 * self._critic.size_bytes}
        return found

    def score(self, rows: Sequence[BatchRow], version: int) -> list[RowScore]:
        """The rows' log-probs under the present weights against their recorded behaviour, in the order of the rows.

        Raises:
            TrainerError: REJECTED when the version is not the present one, or a row cannot be read or is misaligned.
        """
        if version != self.version:
            raise _rejected(f"score at version {version}; the trainer holds {self.version}")
        packed = self._packed(rows)
        values = self._evaluate(self._policy, packed, range(len(rows)))
        self._scored.remember(packed, values)
        # Under a critic penalties enter the return of each token, and must not be taken off the outcome as well.
        has_penalty = self._algorithm.kl.place == "reward" and self._critic is None
        penalties_N = self._penalties(packed, values) if has_penalty else None
        clip = (self._algorithm.clip_low, self._algorithm.clip_high)
        return row_scores(packed, values, version, penalties_N, clip=clip)

    def update(self, plan: BatchPlan) -> UpdateResult:
        """One version by the plan; the new weights lie under the returned address.

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
        snapshot = Snapshot.of(self._trained()) if self._algorithm.steps > 1 else None
        try:
            signal, metrics = self._signal(packed)
            values, learning_rate = self._steps(packed, signal, metrics)
        except BaseException:
            for _, optimizer in self._trained():
                optimizer.zero_grad(set_to_none=True)
            if snapshot is not None:
                snapshot.restore()
            raise
        compute_s = self._clock() - started
        data = weights_bytes(self._policy.model)
        return UpdateResult(
            update=plan.update,
            version=self.version,
            weights=self._put_weights(data),
            weights_bytes=len(data),
            metrics={
                **metrics,
                "learning_rate": learning_rate,
                **update_metrics(packed, values, self._algorithm, signal, base_version=plan.base_version),
            },
            compute_s=compute_s,
            rows=row_updates(packed, values, self._algorithm, signal),
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

    def save(self) -> Manifest:
        """Everything that the next updates depend on, in the store."""
        return self._state.save(self.policy_id, self.version, self._options.scheduler, self._algorithm_version)

    def load(self, manifest: Manifest) -> None:
        """Goes on from a saved state.

        Raises:
            TrainerError: REJECTED when a file is missing or damaged, or the state is not this trainer's; nothing has changed
                then.
        """
        ours = (self.policy_id, self._options.scheduler, self._algorithm_version)
        if (manifest.policy_id, manifest.scheduler, manifest.algorithm) != ours:
            raise _rejected(f"checkpoint of version {manifest.version} is of another policy, schedule or algorithm")
        self._state.load(manifest)
        self.version, self._canary = manifest.version, Canary(self._policy)
        self._scored.forget()

    def replay(self, plan: BatchPlan, weights: Address) -> bool:
        """Computes a plan again; whether it gave exactly the recorded weights, which this trainer holds in any case.

        Raises:
            TrainerError: as `update`, and REJECTED when weights that differ from the recorded ones cannot be loaded.
        """
        # Scored first, as it was the first time: an update may go by what scoring remembered.
        self.score(plan.rows, plan.base_version)
        result = self.update(plan)
        if result.weights == weights:
            return True
        try:
            self._state.load_weights(weights)
        except (KeyError, IntegrityError) as error:
            raise _rejected(
                f"update {plan.update} was recorded as {weights}, which cannot be loaded: {error}"
            ) from error
        return False

    def forget(self, blobs: Sequence[Address]) -> None:
        """Removes files that nothing names any more."""
        self._state.forget(blobs)

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

    def _trained(self) -> list[tuple[list[torch.nn.Parameter], torch.optim.Optimizer]]:
        """Everything that an update moves."""
        pairs: list[tuple[list[torch.nn.Parameter], torch.optim.Optimizer]] = [(self._parameters, self._optimizer)]
        if self._critic is not None:
            pairs.append((self._critic.parameters, self._critic.optimizer))
        return pairs

    def _signal(self, packed: PackedBatch) -> tuple[Signal, dict[str, float]]:
        """What holds for every step of the plan; the critic's gradient then lies in its parameters."""
        algorithm, everything, metrics = self._algorithm, range(len(packed.transcripts)), {}
        needs_old = (
            algorithm.anchor != "behavior"
            or algorithm.corrections
            or algorithm.steps > 1
            or self._reference is not None
        )
        old = self._known_values(packed, everything) if needs_old else None
        reference_N = self._reference_logprobs(packed)
        advantages_N = packed.advantages_B[packed.rows_N]
        if self._critic is not None:
            values_N = self._critic.values(packed, everything)
            penalties_N = None
            if reference_N is not None and old is not None and algorithm.kl.place == "reward":
                penalties_N = algorithm.kl.coefficient * penalties(algorithm.kl, old.logprobs_N, reference_N)
            advantages_N, returns_N = critic_advantages(packed, values_N, penalties_N, algorithm)
            loss, explained = self._critic.gradient(packed, values_N, returns_N)
            metrics |= {"value_loss": loss, "value_explained_variance": explained}
        signal = signal_of(
            packed,
            algorithm,
            advantages_N=advantages_N,
            old_N=old.logprobs_N if old is not None else None,
            reference_N=reference_N,
            base_version=self.version,
        )
        return signal, metrics

    def _steps(self, packed: PackedBatch, signal: Signal, metrics: dict[str, float]) -> tuple[TokenValues, float]:
        """(values of all rows, each before its own step, learning rate); the version is the next one."""
        learning_rate = self._algorithm.learning_rate * self._rate(self.version + 1)
        is_still = self._critic is not None and self.version < self._algorithm.critic.warmup_updates
        parts = step_rows(packed, self._algorithm.steps)
        values = TokenValues.empty(len(packed.ids_N))
        losses: list[float] = []
        norms: list[float] = []
        for index, in_step_B in enumerate(parts):
            objective = Objective(packed, self._algorithm, signal, in_step_B)
            loss, norm = self._gradient(packed, objective, values, is_first=index == 0)
            losses.append(loss)
            norms.append(norm)
            if is_still:
                self._optimizer.zero_grad(set_to_none=True)
                continue
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        if self._critic is not None:
            self._critic.step()
        metrics |= {"loss": sum(losses) / len(losses), "grad_norm": max(norms), "optimizer_steps": float(len(parts))}
        floor = self._scored.noise(packed, values, parts[0])
        if floor is not None:
            metrics["mismatch_floor"] = floor
        self.version += 1
        self._scored.forget()
        return values, 0.0 if is_still else learning_rate

    def _gradient(
        self, packed: PackedBatch, objective: Objective, values: TokenValues, *, is_first: bool
    ) -> tuple[float, float]:
        """(loss, gradient norm) of a step; the gradient lies in the parameters, clipped, and the values are filled in."""
        loss = 0.0
        self._optimizer.zero_grad(set_to_none=False)
        for micro in micro_batches(packed, objective.rows, self._options.micro_batch_tokens, self._options.layout):
            log_p_NV = self._policy.log_distribution(micro)
            logprobs_N = log_p_NV.gather(1, micro.targets_N[:, None])[:, 0]
            part = objective.loss(micro, logprobs_N)
            torch.autograd.backward(part)
            loss += float(part.detach())
            values.set(micro.tokens_N, log_p_NV.detach(), logprobs_N.detach())
        idle = self._known_values(packed, objective.idle_rows, use_cache=is_first)
        for row in objective.idle_rows:
            start, stop = packed.cu_seqlens[row : row + 2].tolist()
            values.put(start, idle.slice(start, stop))
        in_step_N = np.isin(packed.rows_N, [*objective.rows, *objective.idle_rows]) & packed.action_mask_N
        return loss, self._clipped_norm(values, in_step_N, loss)

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

    def _evaluate(self, policy: Policy, packed: PackedBatch, rows: Sequence[int]) -> TokenValues:
        """Log-probs and entropies of the rows' trained tokens, without gradient; NaN at all other tokens."""
        values = TokenValues.empty(len(packed.ids_N))
        with torch.inference_mode():
            for micro in micro_batches(packed, rows, self._options.micro_batch_tokens, self._options.layout):
                log_p_NV = policy.log_distribution(micro)
                values.set(micro.tokens_N, log_p_NV, log_p_NV.gather(1, micro.targets_N[:, None])[:, 0])
        return values

    def _reference_logprobs(self, packed: PackedBatch) -> FloatArray | None:
        """Log-probs [N] of trained tokens under the reference; None without one."""
        if self._reference is None:
            return None
        return self._evaluate(self._reference, packed, range(len(packed.transcripts))).logprobs_N

    def _penalties(self, packed: PackedBatch, values: TokenValues) -> FloatArray | None:
        """KL values [N] that are taken off rewards; None without a reference."""
        reference_N = self._reference_logprobs(packed)
        return None if reference_N is None else penalties(self._algorithm.kl, values.logprobs_N, reference_N)

    def _known_values(self, packed: PackedBatch, rows: Sequence[int], *, use_cache: bool = True) -> TokenValues:
        """Values of the rows, from the last `score` under these weights where it had them; NaN elsewhere."""
        known = {row: self._scored.of(packed, row) for row in rows} if use_cache else {}
        values = self._evaluate(self._policy, packed, [row for row in rows if known.get(row) is None])
        for row, found in known.items():
            if found is not None:
                values.put(int(packed.cu_seqlens[row]), found)
        return values


def _rejected(message: str) -> TrainerError:
    return TrainerError(message, Outcome.REJECTED)
