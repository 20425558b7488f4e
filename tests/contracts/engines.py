"""The engines that the contract of the Inference port is run against.

Each is an async context manager over a policy's folder that yields a `Subject`.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from tiny_policy import POLICY, VOCABULARY, PolicyFolder, prompt, request
from vllm_case import VLLM_PYTHON

from headrace.config import AdapterSection
from headrace.inference.child import ChildInference
from headrace.inference.core import EngineCore
from headrace.inference.inline import InlineInference
from headrace.inference.options import EngineOptions
from headrace.ports import Inference, TurnTiming
from headrace.processes.child import Child
from headrace.records.arrays import IntArray
from headrace.records.ids import Address, EpisodeId, PolicyRef
from headrace.records.segment import GenerateRequest, TokenSegment
from headrace.runtime.engines import open_engine
from headrace.simulation.scripted import ScriptedInference, ScriptedTurn
from headrace.simulation.weights import SimulatedWeights, WeightShelf
from headrace.store.blobs import FileBlobs

TESTS = Path(__file__).parents[1]
TIMEOUT_S = 60.0
CONTEXT = 512
LONG = 450
VLLM_CONTEXT = 4096
"""A turn of a fast server has to be long to be still running while others come and go."""
OPTIONS = EngineOptions(slots=8, context=CONTEXT, prefill_chunk=32)


@dataclasses.dataclass
class Subject:
    """An engine under test.

    Attributes:
        inference: the port.
        weights: address of weights that can be staged under a version.
        holds_many: whether it can hold more versions than the active one.
        prefix: a prompt that it accepts.
        max_tokens: a turn this long does not end by itself before several swaps.
    """

    inference: Inference
    weights: Callable[[int], Address]
    holds_many: bool = True
    prefix: tuple[TokenSegment, ...] = prompt(3, 1, 4, 1, 5, 9, 2, 6)
    max_tokens: int = LONG
    versions: Iterator[int] = dataclasses.field(default_factory=itertools.count)
    names: Iterator[int] = dataclasses.field(default_factory=itertools.count)
    version: int = -1
    made: list[tuple[int, Address]] = dataclasses.field(default_factory=list)

    def request(self, **changes: object) -> GenerateRequest:
        changes.setdefault("max_tokens", self.max_tokens)
        return request(f"train.{next(self.names)}.0.0/0", self.prefix, **changes)

    def make(self, count: int) -> None:
        """Weights of the next versions: on a busy machine they take longer than a turn that runs meanwhile."""
        self.made += [(version, self.weights(version)) for version in itertools.islice(self.versions, count)]

    async def stage(self) -> PolicyRef:
        if not self.made:
            self.make(1)
        version, weights = self.made.pop(0)
        policy = PolicyRef(POLICY, version)
        await self.inference.stage(policy, weights, TIMEOUT_S)
        return policy

    async def publish(self, *keep: int) -> int:
        policy = await self.stage()
        await self.inference.activate(policy, frozenset(keep), TIMEOUT_S)
        self.version = policy.version
        return policy.version

    async def start(self, item: GenerateRequest) -> "asyncio.Task[tuple[list[TokenSegment], TurnTiming]]":
        """The turn under way: whatever is asked from now on comes after it."""
        task = asyncio.create_task(self.turn(item))
        await asyncio.sleep(0)
        return task

    async def turn(self, item: GenerateRequest, timeout_s: float = TIMEOUT_S) -> tuple[list[TokenSegment], TurnTiming]:
        items = [found async for found in self.inference.generate(item, timeout_s)]
        segments = [found for found in items[:-1] if isinstance(found, TokenSegment)]
        assert isinstance(items[-1], TurnTiming) and len(segments) == len(items) - 1 and segments
        for segment in segments:
            segment.check()
        assert [segment.finish is None for segment in segments] == [True] * (len(segments) - 1) + [False]
        assert sum(map(len, segments)) <= item.max_tokens
        return segments, items[-1]


@contextlib.asynccontextmanager
async def inline(folder: PolicyFolder) -> AsyncIterator[Subject]:
    core = EngineCore(OPTIONS, folder.path, folder.weights_path, time.monotonic)
    inference = InlineInference(core, lambda work: 0.0)
    yield Subject(inference, folder.publish)
    await inference.close()


@contextlib.asynccontextmanager
async def child(folder: PolicyFolder) -> AsyncIterator[Subject]:
    argv = [sys.executable, str(TESTS / "inference" / "engine_child.py"), str(folder.path)]
    argv.append(msgspec.json.encode(OPTIONS).decode())
    process = await Child.start("engine", argv, start_timeout_s=TIMEOUT_S, env={"PYTHONPATH": str(TESTS.parent)})
    yield Subject(ChildInference(process), folder.publish)
    await process.close()


@contextlib.asynccontextmanager
async def scripted(folder: PolicyFolder) -> AsyncIterator[Subject]:
    shelf = WeightShelf()

    def say(episode: EpisodeId, step: int) -> ScriptedTurn:
        return ScriptedTurn(ids=tuple(range(1, VOCABULARY)), is_endless=True, token_s=1e-3)

    def encode(text: str, calls: Sequence[str]) -> IntArray:
        raise AssertionError("the script names its ids")

    def weights(version: int) -> Address:
        return shelf.put(SimulatedWeights(POLICY, version, "", str(version)))

    yield Subject(ScriptedInference(say, encode, shelf, policy_id=POLICY, context=CONTEXT), weights)


@contextlib.asynccontextmanager
async def vllm(folder: PolicyFolder, on_swap: str = "rebuild") -> AsyncIterator[Subject]:
    blobs = FileBlobs(folder.path / "blobs")

    def publish(version: int) -> Address:
        return blobs.put(folder.weights_path(folder.publish(version)).read_bytes())

    options = {"python": str(VLLM_PYTHON), "slots": 8, "context": VLLM_CONTEXT, "on_swap": on_swap}
    process = await open_engine(AdapterSection("vllm", options)).start(folder.path, blobs.root)
    yield Subject(ChildInference(process), publish, holds_many=False, max_tokens=VLLM_CONTEXT - 64)
    await process.close()


def vllm_keeping(folder: PolicyFolder) -> contextlib.AbstractAsyncContextManager[Subject]:
    return vllm(folder, "keep_kv")


ENGINES = {"inline": inline, "child": child, "scripted": scripted, "vllm": vllm, "vllm keep_kv": vllm_keeping}
