"""A simulated trainer: durations from the cost model, weights that are a chain of plan hashes.

Invariant: the version rises by one with each update and by nothing else; equal histories of plans have equal weights, so a
hash of the last weights stands for everything that was trained, in order.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from headrace.errors import IntegrityError, Outcome, TrainerError
from headrace.records.arrays import Float32Bytes, IntArray
from headrace.records.batch import BatchPlan, BatchRow
from headrace.records.checkpoint import Manifest
from headrace.records.ids import Address, PolicyId
from headrace.records.provenance import content_version
from headrace.records.segment import Origin
from headrace.records.streams import Streams
from headrace.records.trajectory import Transcript
from headrace.records.update import CanaryScore, RowScore, UpdateResult
from headrace.simulation.costs import TrainerCost
from headrace.simulation.device import SharedDevice
from headrace.simulation.laws import drawn
from headrace.simulation.pending import PendingCalls
from headrace.simulation.weights import SimulatedWeights, WeightShelf

_ALGORITHM = content_version("simulated trainer")


class TrainedTokens(msgspec.Struct, frozen=True):
    """Trained tokens of one row, by the version that sampled them.

    Attributes:
        by_version: (version, tokens), in order of the sequence.
        fresh_versions: versions with tokens whose whole context was computed under them.
        total: tokens of all versions.
    """

    by_version: tuple[tuple[int, int], ...]
    fresh_versions: frozenset[int]
    total: int


class SimulatedTrainer:
    """`Trainer` with a cost model.

    Attributes:
        version: number of updates behind the present weights.
        weights: address of the present weights.
        busy_s: seconds of scoring and updating so far.
    """

    def __init__(
        self,
        cost: TrainerCost,
        shelf: WeightShelf,
        *,
        policy_id: PolicyId,
        seed: int,
        read: Callable[[Address], bytes],
        device: SharedDevice | None = None,
    ) -> None:
        """A trainer at version 0, whose weights lie on the shelf.

        Args:
            cost: durations.
            shelf: where weights lie.
            policy_id: the policy that it trains.
            seed: root of its draws.
            read: canonical bytes of a transcript by address, as `Journal.read`.
            device: shared with an engine; None is a device of its own.
        """
        self.busy_s = 0.0
        self.version = 0
        self.weights = shelf.put(SimulatedWeights(policy_id, 0, "", str(seed)))
        self._cost = cost
        self._shelf = shelf
        self._policy_id = policy_id
        self._streams = Streams(seed)
        self._read = read
        self._device = device
        self._pending = PendingCalls()
        self._is_down = False
        self._trained_tokens = functools.lru_cache(1 << 14)(self._count_tokens)

    async def score(self, rows: Sequence[BatchRow], version: int, timeout_s: float) -> list[RowScore]:
        self._require(version)
        counts = [self._trained_tokens(row.transcript, row.path) for row in rows]
        total = sum([count.total for count in counts])
        fixed_s = drawn(self._cost.score_s, self._streams, "trainer", "score", version)
        await self._compute(fixed_s + total * self._cost.score_s_per_token, timeout_s, "score")
        return [self._row_score(row, count, version) for row, count in zip(rows, counts, strict=True)]

    def _row_score(self, row: BatchRow, count: TrainedTokens, version: int) -> RowScore:
        """Log-ratios with the drift of the cost model: exp of the sum has expectation 1, so weights are unbiased."""
        drift, variance, lag, noise = self._cost.drift, 0.0, 0, 0.0
        for old, tokens in count.by_version:
            variance += tokens * (drift * (version - old)) ** 2
            lag = max(lag, version - old)
        if variance:
            noise = float(self._streams.at("trainer", "ratio", row.transcript, row.path, version).standard_normal())
        # The expected largest of n absolute normal draws, to leading order.
        spread = math.sqrt(2.0 * math.log(max(2, 2 * count.total)))
        return RowScore(
            transcript=row.transcript,
            path=row.path,
            num_tokens=count.total,
            log_ratio_sum=math.sqrt(variance) * noise - variance / 2,
            log_ratio_abs_max=drift * lag * spread,
            fresh_abs_max=0.0 if version in count.fresh_versions else None,
            k2_sum=variance / 2,
            k3_sum=variance / 2,
        )

    async def update(self, plan: BatchPlan, timeout_s: float) -> UpdateResult:
        self._require(plan.base_version)
        if plan.policy_id != self._policy_id:
            raise _rejected(f"update {plan.update} is of policy {plan.policy_id}, this trains {self._policy_id}")
        if not all(math.isfinite(value) for row in plan.rows for value in (row.reward, row.advantage, row.weight)):
            raise _rejected(f"update {plan.update}: a reward, advantage or weight is not finite; nothing was changed")
        total = sum([self._trained_tokens(row.transcript, row.path).total for row in plan.rows])
        fixed_s = drawn(self._cost.update_s, self._streams, "trainer", "update", plan.update)
        compute_s = fixed_s + total * self._cost.update_s_per_token
        await self._compute(compute_s, timeout_s, f"update {plan.update}")
        made = SimulatedWeights(self._policy_id, plan.base_version + 1, self.weights, plan.address)
        self.version, self.weights = made.version, self._shelf.put(made)
        advantages_B = np.array([row.advantage * row.weight for row in plan.rows] or [0.0])
        return UpdateResult(
            update=plan.update,
            version=self.version,
            weights=self.weights,
            weights_bytes=self._cost.weights_bytes,
            metrics={
                "loss": -float(advantages_B.mean()),
                "grad_norm": float(np.sqrt((advantages_B**2).mean())),
                "trained_tokens": float(total),
            },
            compute_s=compute_s,
        )

    async def canary(self, ids: Sequence[IntArray], timeout_s: float) -> CanaryScore:
        self._require(self.version)
        await self._compute(self._cost.canary_s, timeout_s, "canary")
        held = self._shelf.read(self.weights)
        return CanaryScore(
            policy_id=self._policy_id,
            version=self.version,
            logprobs=Float32Bytes(b"".join(held.logprobs(ids_T) for ids_T in ids)),
            kl_to_previous=self._cost.drift**2 / 2 if self.version else None,
        )

    async def save(self, timeout_s: float) -> Manifest:
        self._require(self.version)
        await self._compute(self._cost.save_s, timeout_s, "save")
        return Manifest(
            policy_id=self._policy_id,
            version=self.version,
            weights=self.weights,
            parts={},
            size_bytes=self._cost.weights_bytes,
            scheduler="none",
            algorithm=_ALGORITHM,
        )

    async def load(self, manifest: Manifest, timeout_s: float) -> None:
        await self._compute(self._cost.save_s, timeout_s, "load")
        try:
            held = self._shelf.read(manifest.weights)
        except (KeyError, IntegrityError) as error:
            raise _rejected(f"checkpoint of version {manifest.version} cannot be loaded: {error}") from error
        if (held.policy_id, held.version) != (self._policy_id, manifest.version):
            raise _rejected(f"checkpoint of {manifest.policy_id}@{manifest.version}: the weights are those of {held}")
        self.version, self.weights = held.version, manifest.weights

    async def replay(self, plan: BatchPlan, weights: Address, timeout_s: float) -> bool:
        result = await self.update(plan, timeout_s)
        if result.weights == weights:
            return True
        try:
            self._shelf.read(weights)
        except (KeyError, IntegrityError) as error:
            raise _rejected(
                f"update {plan.update} was recorded as {weights}, which cannot be loaded: {error}"
            ) from error
        self.weights = weights
        return False

    async def forget(self, blobs: Sequence[Address], timeout_s: float) -> None:
        for address in blobs:
            self._shelf.remove(address)

    def crash(self) -> None:
        """The process dies: what it computes is lost, and it refuses everything until `restart`."""
        self._is_down = True
        self._pending.fail_all(lambda: TrainerError("the trainer crashed"))

    def restart(self, weights: Address) -> None:
        """Goes on from weights on the shelf. Raises KeyError when they are not there."""
        held = self._shelf.read(weights)
        self.version, self.weights, self._is_down = held.version, weights, False

    async def _compute(self, seconds: float, timeout_s: float, what: str) -> None:
        # What takes no time does not take the device either, or it would pay for the switch.
        shared = self._device if seconds > 0.0 else None
        async with contextlib.nullcontext() if shared is None else shared.training():
            await self._pending.spend(
                seconds, timeout_s, lambda: TrainerError(f"{what}: {seconds:g} s needed, {timeout_s} s allowed")
            )
        self.busy_s += seconds

    def _require(self, version: int) -> None:
        if self._is_down:
            raise _rejected("the trainer is down; restart it from committed weights")
        if version != self.version:
            raise _rejected(f"version {version} was asked for, the trainer holds {self.version}")

    def _count_tokens(self, transcript: Address, path: int) -> TrainedTokens:
        try:
            found = msgspec.msgpack.decode(self._read(transcript), type=Transcript)
        except (KeyError, IntegrityError, msgspec.DecodeError) as error:
            raise _rejected(f"transcript {transcript} cannot be read: {error}") from error
        by_version, fresh, total = list[tuple[int, int]](), set[int](), 0
        for segment in found.paths[path].segments:
            if segment.origin is Origin.POLICY and segment.policy is not None:
                version, count = segment.policy.version, len(segment)
                by_version.append((version, count))
                total += count
                if segment.context_version_min == version:
                    fresh.add(version)
        return TrainedTokens(tuple(by_version), frozenset(fresh), total)


def _rejected(message: str) -> TrainerError:
    return TrainerError(message, Outcome.REJECTED)
