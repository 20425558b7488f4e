"""The trainer in a child process, as its parent calls it; `headrace.training.serve` answers.

Invariant: what crosses is msgpack of records and bytes of arrays, never pickle; an error arrives with the outcome that the
child knew, and a child that dies or does not answer in time is a lost call.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.errors import Outcome, ProcessError, TrainerError
from headrace.processes.child import Child
from headrace.records.arrays import Int32Bytes, IntArray, int32_bytes
from headrace.records.batch import BatchPlan, BatchRow
from headrace.records.checkpoint import Manifest
from headrace.records.ids import Address, PolicyId
from headrace.records.update import CanaryScore, RowScore, UpdateResult


class TrainerHello(msgspec.Struct, frozen=True):
    """First message of a trainer's child: what it holds.

    Attributes:
        policy_id: whose weights.
        version: number of updates behind them.
        weights: their address; the file lies in the store.
        copies: bytes of every copy of weights that it holds, by role.
    """

    policy_id: PolicyId
    version: int
    weights: Address
    copies: dict[str, int] = {}


class ScoreCall(msgspec.Struct, frozen=True):
    """Arguments of `score`.

    Attributes:
        rows: what to score.
        version: version that the caller believes the trainer to hold.
    """

    rows: tuple[BatchRow, ...]
    version: int


class CanaryCall(msgspec.Struct, frozen=True):
    """Arguments of `canary`.

    Attributes:
        ids: the sequences.
    """

    ids: tuple[Int32Bytes, ...]


class ReplayCall(msgspec.Struct, frozen=True):
    """Arguments of `replay`.

    Attributes:
        plan: what to compute again.
        weights: what it gave.
    """

    plan: BatchPlan
    weights: Address


class ChildTrainer:
    """Implements `ports.Trainer` on top of a child that runs `serve_trainer`.

    Attributes:
        hello: what the child held when it started.
    """

    def __init__(self, child: Child) -> None:
        """Wraps a child that has said hello. Raises TrainerError REJECTED when that is no trainer's hello."""
        self._child = child
        try:
            self.hello = msgspec.msgpack.decode(child.hello, type=TrainerHello)
        except (msgspec.DecodeError, ValueError) as error:
            raise TrainerError(f"{child.name}: its hello is not a trainer's: {error}", Outcome.REJECTED) from error

    async def score(self, rows: Sequence[BatchRow], version: int, timeout_s: float) -> list[RowScore]:
        return await self._call("score", ScoreCall(tuple(rows), version), timeout_s, list[RowScore])

    async def update(self, plan: BatchPlan, timeout_s: float) -> UpdateResult:
        return await self._call("update", plan, timeout_s, UpdateResult)

    async def canary(self, ids: Sequence[IntArray], timeout_s: float) -> CanaryScore:
        call = CanaryCall(tuple(int32_bytes(sequence) for sequence in ids))
        return await self._call("canary", call, timeout_s, CanaryScore)

    async def save(self, timeout_s: float) -> Manifest:
        return await self._call("save", None, timeout_s, Manifest)

    async def load(self, manifest: Manifest, timeout_s: float) -> None:
        await self._call("load", manifest, timeout_s, None)

    async def replay(self, plan: BatchPlan, weights: Address, timeout_s: float) -> bool:
        return await self._call("replay", ReplayCall(plan, weights), timeout_s, bool)

    async def forget(self, blobs: Sequence[Address], timeout_s: float) -> None:
        await self._call("forget", list(blobs), timeout_s, None)

    async def export(self, timeout_s: float) -> Address:
        """Address of the present weights, which now lie in the store."""
        return Address(await self._call("export", None, timeout_s, str))

    async def _call(self, method: str, argument: object, timeout_s: float, kind: Any) -> Any:
        try:
            data = await self._child.call(method, msgspec.msgpack.encode(argument), timeout_s=timeout_s)
            return msgspec.msgpack.decode(data, type=kind)
        except ProcessError as error:
            raise TrainerError(str(error), error.outcome) from error
        except (msgspec.DecodeError, ValueError) as error:
            raise TrainerError(f"{self._child.name}: {method} gave an unreadable answer: {error}") from error
