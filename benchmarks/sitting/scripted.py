"""In-process workers that play a load: they answer at once, and yield to the loop once per model turn.

They stand at the ports; everything between the ports is the product.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Literal

import numpy as np

from benchmarks.sitting.workload import Load
from headrace.environments.sessions import Session, SessionEnvironment
from headrace.environments.tools import CALCULATOR, calculator_expression
from headrace.ports import TurnTiming
from headrace.records.action import Action, EffectClass
from headrace.records.arrays import Float32Bytes, IntArray, float32_bytes
from headrace.records.batch import BatchPlan, BatchRow
from headrace.records.checkpoint import Manifest
from headrace.records.execution import ExecutionStatus, Lease, Metering, Receipt
from headrace.records.harness import ToolSchema
from headrace.records.ids import Address, PolicyId, PolicyRef
from headrace.records.provenance import address_of, content_version
from headrace.records.segment import FinishReason, GenerateRequest, Origin, TokenSegment
from headrace.records.task import Task
from headrace.records.update import Activation, CanaryScore, RowScore, Standstill, UpdateResult
from headrace.records.verdict import Scored, Submission, Unscored, UnscoredCause, Verdict

POLICY = PolicyId("policy")
CANARY = [np.arange(8, dtype=np.int32)]


class ScriptedTasks:
    """The load's tasks, once each."""

    def __init__(self, load: Load) -> None:
        self._tasks = iter(load.tasks)

    def next(self) -> Task | None:
        return next(self._tasks, None)

    def held_out(self) -> Sequence[Task]:
        return ()


class ScriptedInference:
    """Says what the load says, stamped with the version it serves.

    Attributes:
        peak: most episodes that were in flight at once, a turn out or waiting for its tool.
    """

    def __init__(self, load: Load) -> None:
        self._turns = load.turns
        self._last_step = len(load.episodes[0].turns) - 1
        self._policy = PolicyRef(POLICY, 0)
        self._in_flight = 0
        self.peak = 0

    async def generate(self, request: GenerateRequest, timeout_s: float) -> AsyncIterator[TokenSegment | TurnTiming]:
        step = request.request_id[-1]
        if step == "0":
            self._in_flight += 1
            self.peak = max(self.peak, self._in_flight)
        turn = self._turns[request.request_id]
        await asyncio.sleep(0)
        policy = self._policy
        yield TokenSegment(
            Origin.POLICY, turn.ids, turn.logprobs, policy, policy.version, request.sampling, FinishReason.STOP
        )
        if int(step) == self._last_step:
            self._in_flight -= 1
        yield TurnTiming(request.request_id, 0.0, 0.0, 0)

    async def interrupt(self, request_ids: Sequence[str], timeout_s: float) -> None:
        """Turns end by themselves."""

    async def pause(self, timeout_s: float) -> Standstill:
        raise NotImplementedError("devices are not shared here")

    async def resume(self, timeout_s: float) -> Standstill:
        raise NotImplementedError("devices are not shared here")

    async def stage(self, policy: PolicyRef, weights: Address, timeout_s: float) -> None:
        """There is nothing to load."""

    async def activate(self, policy: PolicyRef, keep: frozenset[int], timeout_s: float) -> Activation:
        self._policy = policy
        return Activation("engine", 0.0, 0)

    async def score(self, ids: Sequence[IntArray], version: int, timeout_s: float) -> list[Float32Bytes]:
        return [float32_bytes([-1.0] * (len(ids_T) - 1)) for ids_T in ids]


class SumEnvironment(SessionEnvironment):
    """The product's sessions, with a tool that adds two numbers in process: as little work as a tool can be."""

    def __init__(self) -> None:
        super().__init__("sum")

    @property
    def effect(self) -> EffectClass:
        return EffectClass.PURE

    @property
    def version(self) -> Address:
        return content_version("sum")

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return (CALCULATOR,)

    async def _run(self, session: Session, action: Action, lease: Lease, timeout_s: float) -> Receipt:
        left, _, right = calculator_expression(action.arguments).partition("+")
        output = str(int(left) + int(right)).encode()
        metering = Metering(wall_s=1e-6, cpu_s=1e-6)
        return Receipt(
            action.id, lease.token, action.arguments_hash, ExecutionStatus.OK, output, len(output), metering=metering
        )

    async def _opened(self, session: Session, timeout_s: float) -> None:
        """Nothing has to be prepared."""

    async def _closed(self, session: Session) -> None:
        """Nothing is held."""


class ScriptedGrader:
    """Reads the answer out of the final text; declines where the load says so."""

    def __init__(self, load: Load) -> None:
        self._rewards = load.rewards
        self.version = content_version("scripted grader")
        self.scope: Literal["episode", "group"] = "episode"

    async def grade(self, submissions: Sequence[Submission], timeout_s: float) -> list[Verdict]:
        return [Verdict(s.transcript, self.version, self._outcome(s)) for s in submissions]

    def _outcome(self, submission: Submission) -> Scored | Unscored:
        if self._rewards[submission.episode] is None:
            return Unscored(UnscoredCause.DECLINED, "declined")
        return Scored((("answer", float(not submission.final_text.endswith("unknown"))),), "scripted")


class ScriptedTrainer:
    """Takes every plan and makes the next version.

    Attributes:
        rows: rows of all plans.
    """

    def __init__(self) -> None:
        self.rows: list[BatchRow] = []
        self._version = 0

    async def score(self, rows: Sequence[BatchRow], version: int, timeout_s: float) -> list[RowScore]:
        return [RowScore(row.transcript, row.path, 1, 0.0, 0.0, 0.0) for row in rows]

    async def update(self, plan: BatchPlan, timeout_s: float) -> UpdateResult:
        self.rows.extend(plan.rows)
        self._version = plan.base_version + 1
        return UpdateResult(plan.update, self._version, weights_of(self._version), 1, {}, 0.0)

    async def canary(self, ids: Sequence[IntArray], timeout_s: float) -> CanaryScore:
        logprobs = Float32Bytes(b"".join(float32_bytes([-1.0] * (len(ids_T) - 1)) for ids_T in ids))
        return CanaryScore(POLICY, self._version, logprobs, None)

    async def save(self, timeout_s: float) -> Manifest:
        weights = weights_of(self._version)
        return Manifest(POLICY, self._version, weights, {}, 1, "none", content_version("scripted trainer"))

    async def load(self, manifest: Manifest, timeout_s: float) -> None:
        self._version = manifest.version

    async def replay(self, plan: BatchPlan, weights: Address, timeout_s: float) -> bool:
        return (await self.update(plan, timeout_s)).weights == weights

    async def forget(self, blobs: Sequence[Address], timeout_s: float) -> None:
        """Keeps no files."""


def weights_bytes(version: int) -> bytes:
    """Bytes that stand for the weights of a version."""
    return f"weights {version}".encode()


def weights_of(version: int) -> Address:
    """Their address."""
    return address_of(weights_bytes(version))
