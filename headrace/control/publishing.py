"""Publication: stage, prepare, canary, commit, activate.

Invariant: a version that an engine cannot reproduce never exists: the canary sequence is scored by engine and trainer
while the weights are still staged, so nothing is ever sampled with weights that disagree with the trainer's.

* consumes: weights by address.
* waits for: the engine's load, both scores, the durable COMMIT, the engine's switch.
* unblocked by: each phase's answer or deadline.
* produces: `WeightsStaged`, `WeightsPrepared`, `CanaryChecked`, `WeightsCommitted`, `WeightsActivated`; the version bump.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from headrace.control.context import RunContext
from headrace.control.recorder import WorkerClock
from headrace.errors import InferenceError, Outcome
from headrace.ports import Inference, Trainer
from headrace.records.arrays import IntArray, as_float32
from headrace.records.ids import Address, PolicyId, PolicyRef
from headrace.records.run import WorkerState
from headrace.records.update import (
    CanaryChecked,
    WeightsActivated,
    WeightsCommitted,
    WeightsPrepared,
    WeightsStaged,
)

WORKER = "engine"
"""Name of the inference worker in events."""


@dataclasses.dataclass(frozen=True)
class PublishSettings:
    """What publication goes by.

    Attributes:
        policy_id: which policy.
        canary: fixed token sequences, each [T].
        tolerance: largest absolute log-prob difference.
        timeout_s: deadline of each phase.
        drains_pinned: wait until no version is pinned before new weights, for an engine that holds one version.
    """

    policy_id: PolicyId
    canary: Sequence[IntArray]
    tolerance: float
    timeout_s: float
    drains_pinned: bool = False


class Publisher:
    """Brings new weights to the engine."""

    def __init__(
        self,
        inference: Inference,
        trainer: Trainer,
        context: RunContext,
        *,
        settings: PublishSettings,
        clock: WorkerClock,
    ) -> None:
        self._inference = inference
        self._trainer = trainer
        self._recorder = context.recorder
        self._versions = context.versions
        self._changed = context.changed
        self._settings = settings
        self.clock = clock

    async def publish(
        self,
        version: int,
        weights: Address,
        size_bytes: int,
        cause: int,
        *,
        is_sound: Callable[[float | None], bool] = lambda _: True,
    ) -> bool:
        """True once the engine samples with the version; False when it was judged unsound and never committed.

        Args:
            version: the version to be.
            weights: address of its file.
            size_bytes: its size.
            cause: event that led to it.
            is_sound: asked before the commit, with the KL to the version before.

        Raises:
            InferenceError: when a phase failed or the canary disagrees; the version then was never served.
        """
        if self._settings.drains_pinned:
            await self._changed.wait_until(lambda: not self._versions.pinned)
        self.clock.enter("publish", WorkerState.SYNC)
        try:
            policy = PolicyRef(self._settings.policy_id, version)
            staged, kl_to_previous = await self._prepare(policy, weights, size_bytes, cause)
            if not is_sound(kl_to_previous):
                await self._take_back(policy)
                return False
            await self._commit(policy, weights, kl_to_previous, staged)
            return True
        finally:
            self.clock.leave()

    async def serve_again(self, weights: Mapping[int, Address], pinned: Sequence[int]) -> None:
        """Returns once a fresh engine serves the newest committed version, and holds those that are pinned.

        The canary is scored again: an engine serves nothing that it has not proven.

        Raises:
            InferenceError: when a phase failed or the canary disagrees.
        """
        newest, timeout_s = max(weights), self._settings.timeout_s
        self.clock.enter("publish", WorkerState.SYNC)
        try:
            for version in sorted({*pinned} - {newest}):
                policy = PolicyRef(self._settings.policy_id, version)
                await self._inference.stage(policy, weights[version], timeout_s)
                await self._inference.activate(policy, self._versions.pinned, timeout_s)
            policy = PolicyRef(self._settings.policy_id, newest)
            staged, _ = await self._prepare(policy, weights[newest], 0, cause=0)
            await self._activate(policy, staged)
        finally:
            self.clock.leave()

    async def _prepare(
        self, policy: PolicyRef, weights: Address, size_bytes: int, cause: int
    ) -> tuple[int, float | None]:
        """(event of the staging, KL to the version before), once the engine holds the weights aside and agrees on them."""
        recorder, timeout_s, key = self._recorder, self._settings.timeout_s, str(policy)
        staged = recorder.record(WeightsStaged(policy, weights, size_bytes), key=key, cause=cause)
        begin_s = recorder.elapsed_s
        await self._inference.stage(policy, weights, timeout_s)
        recorder.record(
            WeightsPrepared(policy, WORKER, recorder.elapsed_s - begin_s), key=f"{key}/{WORKER}", cause=staged
        )
        return staged, await self._check_canary(policy, staged)

    async def _commit(self, policy: PolicyRef, weights: Address, kl_to_previous: float | None, staged: int) -> None:
        recorder = self._recorder
        committed = recorder.record(WeightsCommitted(policy, weights, kl_to_previous), key=str(policy), cause=staged)
        await recorder.durable(committed)
        self._versions.commit(policy.version, weights)
        await self._activate(policy, committed)

    async def _take_back(self, policy: PolicyRef) -> None:
        """What was staged is forgotten, and what was served before goes on."""
        if policy.version > 0:
            before = PolicyRef(policy.policy_id, policy.version - 1)
            await self._inference.activate(before, self._versions.pinned, self._settings.timeout_s)

    async def _activate(self, policy: PolicyRef, cause: int) -> None:
        activation = await self._inference.activate(policy, self._versions.pinned, self._settings.timeout_s)
        self._recorder.record(
            WeightsActivated(policy, activation.worker, activation.pause_s, activation.rebuilt_tokens),
            key=f"{policy}/{activation.worker}",
            cause=cause,
        )

    async def _check_canary(self, policy: PolicyRef, cause: int) -> float | None:
        """KL to the previous version.

        Raises:
            InferenceError: when engine and trainer disagree on the fixed sequences.
        """
        settings = self._settings
        expected = await self._trainer.canary(settings.canary, settings.timeout_s)
        asked_s = self._recorder.elapsed_s
        scored = await self._inference.score(settings.canary, policy.version, settings.timeout_s)
        score_s = self._recorder.elapsed_s - asked_s
        engine_T = np.concatenate([as_float32(item) for item in scored])
        trainer_T = as_float32(expected.logprobs)
        if engine_T.shape != trainer_T.shape:
            raise InferenceError(
                f"{policy}: engine scored {len(engine_T)} canary tokens, trainer {len(trainer_T)}", Outcome.REJECTED
            )
        difference = float(np.max(np.abs(engine_T - trainer_T)))
        is_accepted = difference <= settings.tolerance
        self._recorder.record(
            CanaryChecked(policy, WORKER, difference, settings.tolerance, is_accepted, score_s),
            key=f"{policy}/{WORKER}",
            cause=cause,
        )
        if not is_accepted:
            raise InferenceError(
                f"{policy}: engine and trainer differ by {difference:.3g} on the canary, {settings.tolerance:.3g} is "
                "allowed; the engine does not hold the trainer's weights",
                Outcome.REJECTED,
            )
        return expected.kl_to_previous
