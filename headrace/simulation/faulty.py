"""The ports that do work, and the source of tasks, each with a fault plan before it."""

from collections.abc import AsyncIterator, Sequence
from typing import Literal

from headrace.errors import EnvironmentFault, GraderError, InferenceError, Outcome, TrainerError
from headrace.ports import Environment, Grader, Handle, Inference, TaskSource, Trainer, TurnTiming
from headrace.records.action import Action, EffectClass
from headrace.records.arrays import Float32Bytes, IntArray
from headrace.records.batch import BatchPlan, BatchRow
from headrace.records.checkpoint import Manifest
from headrace.records.execution import IncarnationLost, Lease, Receipt
from headrace.records.harness import ToolSchema
from headrace.records.ids import ActionId, Address, EpisodeId, PolicyRef
from headrace.records.segment import GenerateRequest, TokenSegment
from headrace.records.task import Task
from headrace.records.terminal import Terminal
from headrace.records.update import Activation, CanaryScore, RowScore, Standstill, UpdateResult
from headrace.records.verdict import Submission, Verdict
from headrace.simulation.faults import ENDINGS, FaultKind, Interposed


class FaultyTasks(Interposed[TaskSource]):
    """`TaskSource` with faults of the process that draws; drawing itself fails never."""

    worker = "tasks"

    def next(self) -> Task | None:
        fault = self.take("next", ENDINGS)
        self.end_before(fault)
        task = self.inner.next()
        self.end_after(fault)
        return task

    def held_out(self) -> Sequence[Task]:
        return self.inner.held_out()


class FaultyInference(Interposed[Inference]):
    """`Inference` with faults. A lost generation has delivered its segments; only its end is missing."""

    error = InferenceError
    worker = "inference"

    async def generate(self, request: GenerateRequest, timeout_s: float) -> AsyncIterator[TokenSegment | TurnTiming]:
        fault = self.take("generate")
        self.end_before(fault)
        if fault is None or fault.kind in ENDINGS:
            async for item in self.inner.generate(request, timeout_s):
                yield item
            self.end_after(fault)
            return
        if fault.kind is FaultKind.REJECT:
            raise self.lost(fault, "generate", Outcome.REJECTED)
        if fault.kind is FaultKind.CRASH:
            await self.begin_crash(fault, "generate")

        async def whole() -> list[TokenSegment | TurnTiming]:
            return [item async for item in self.inner.generate(request, timeout_s)]

        is_late = fault.kind is FaultKind.DELAY
        items = await self.delayed(fault, "generate", whole, timeout_s) if is_late else await whole()
        if fault.kind is FaultKind.DUPLICATE:
            await self.again(whole)
        for item in items:
            if fault.kind is FaultKind.LOSE and isinstance(item, TurnTiming):
                raise self.lost(fault, "generate")
            yield item

    async def interrupt(self, request_ids: Sequence[str], timeout_s: float) -> None:
        await self.call("interrupt", lambda: self.inner.interrupt(request_ids, timeout_s), timeout_s)

    async def stage(self, policy: PolicyRef, weights: Address, timeout_s: float) -> None:
        await self.call("stage", lambda: self.inner.stage(policy, weights, timeout_s), timeout_s)

    async def activate(self, policy: PolicyRef, keep: frozenset[int], timeout_s: float) -> Activation:
        return await self.call("activate", lambda: self.inner.activate(policy, keep, timeout_s), timeout_s)

    async def score(self, ids: Sequence[IntArray], version: int, timeout_s: float) -> list[Float32Bytes]:
        return await self.call("score", lambda: self.inner.score(ids, version, timeout_s), timeout_s)

    async def pause(self, timeout_s: float) -> Standstill:
        return await self.call("pause", lambda: self.inner.pause(timeout_s), timeout_s)

    async def resume(self, timeout_s: float) -> Standstill:
        return await self.call("resume", lambda: self.inner.resume(timeout_s), timeout_s)


class FaultyEnvironment(Interposed[Environment]):
    """`Environment` with faults."""

    error = EnvironmentFault
    worker = "environment"

    @property
    def effect(self) -> EffectClass:
        return self.inner.effect

    @property
    def version(self) -> Address:
        return self.inner.version

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return self.inner.tools

    async def open(self, task: Task, episode: EpisodeId, lease: Lease, timeout_s: float) -> Handle:
        return await self.call("open", lambda: self.inner.open(task, episode, lease, timeout_s), timeout_s)

    async def adopt(self, handle: Handle, done: Sequence[tuple[Action, Receipt]], timeout_s: float) -> None:
        await self.call("adopt", lambda: self.inner.adopt(handle, done, timeout_s), timeout_s)

    async def execute(self, handle: Handle, action: Action, lease: Lease, timeout_s: float) -> Receipt:
        return await self.call("execute", lambda: self.inner.execute(handle, action, lease, timeout_s), timeout_s)

    async def probe(self, handle: Handle, action_id: ActionId, timeout_s: float) -> Receipt | IncarnationLost | None:
        return await self.call("probe", lambda: self.inner.probe(handle, action_id, timeout_s), timeout_s)

    async def snapshot(self, handle: Handle, timeout_s: float) -> Address | None:
        return await self.call("snapshot", lambda: self.inner.snapshot(handle, timeout_s), timeout_s)

    async def restore(self, handle: Handle, revision: Address, timeout_s: float) -> Handle:
        return await self.call("restore", lambda: self.inner.restore(handle, revision, timeout_s), timeout_s)

    async def artifact(self, handle: Handle, timeout_s: float) -> bytes:
        return await self.call("artifact", lambda: self.inner.artifact(handle, timeout_s), timeout_s)

    async def claim(self, handle: Handle, final_text: str, timeout_s: float) -> Terminal:
        return await self.call("claim", lambda: self.inner.claim(handle, final_text, timeout_s), timeout_s)

    async def close(self, handle: Handle) -> None:
        # Closing has no outcome to lose: it may be repeated, and whoever closes does not ask what came of it.
        if self.is_dead:
            return
        fault = self.take("close", ENDINGS)
        self.end_before(fault)
        await self.inner.close(handle)
        self.end_after(fault)


class FaultyGrader(Interposed[Grader]):
    """`Grader` with faults. A duplicated call returns the verdicts of both gradings, which may differ."""

    error = GraderError
    worker = "grader"

    @property
    def version(self) -> Address:
        return self.inner.version

    @property
    def scope(self) -> Literal["episode", "group"]:
        return self.inner.scope

    async def grade(self, submissions: Sequence[Submission], timeout_s: float) -> list[Verdict]:
        answers = await self.answers(
            "grade", lambda: self.inner.grade(submissions, timeout_s), timeout_s, keeps_both=True
        )
        return [verdict for answer in answers for verdict in answer]


class FaultyTrainer(Interposed[Trainer]):
    """`Trainer` with faults. The second delivery of an update does not follow from the present version and is refused."""

    error = TrainerError
    worker = "trainer"

    async def score(self, rows: Sequence[BatchRow], version: int, timeout_s: float) -> list[RowScore]:
        return await self.call("score", lambda: self.inner.score(rows, version, timeout_s), timeout_s)

    async def update(self, plan: BatchPlan, timeout_s: float) -> UpdateResult:
        return await self.call("update", lambda: self.inner.update(plan, timeout_s), timeout_s)

    async def canary(self, ids: Sequence[IntArray], timeout_s: float) -> CanaryScore:
        return await self.call("canary", lambda: self.inner.canary(ids, timeout_s), timeout_s)

    async def save(self, timeout_s: float) -> Manifest:
        return await self.call("save", lambda: self.inner.save(timeout_s), timeout_s)

    async def load(self, manifest: Manifest, timeout_s: float) -> None:
        await self.call("load", lambda: self.inner.load(manifest, timeout_s), timeout_s)

    async def replay(self, plan: BatchPlan, weights: Address, timeout_s: float) -> bool:
        return await self.call("replay", lambda: self.inner.replay(plan, weights, timeout_s), timeout_s)

    async def forget(self, blobs: Sequence[Address], timeout_s: float) -> None:
        await self.call("forget", lambda: self.inner.forget(blobs, timeout_s), timeout_s)
