"""A real sandbox for the tests: opens episodes, runs calls, and checks at the end that no process is left."""

import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from headrace.environments.sandbox.environment import SandboxEnvironment
from headrace.environments.sandbox.meters import MeterFactory, children
from headrace.environments.sandbox.options import SandboxOptions
from headrace.environments.sandbox.process import SandboxProcess
from headrace.ports import Handle
from headrace.records.action import Action
from headrace.records.execution import Lease, Receipt
from headrace.records.ids import ActionId, EpisodeId, GroupId, LeaseToken, Purpose
from headrace.records.task import Budget, Task

TIMEOUT_S = 30.0
LEASE = Lease(LeaseToken(1), 1e9)


class Sandboxed:
    """An environment with episodes that are opened on first use."""

    def __init__(self, environment: SandboxEnvironment, group: int = 0) -> None:
        self.environment = environment
        self._group = group
        self._handles: dict[int, Handle] = {}
        self._steps = itertools.count()

    async def handle(self, episode: int = 0) -> Handle:
        if episode not in self._handles:
            task = Task("any", "easy", seed=1, index=0, question="?", budget=Budget(), environment="sandbox")
            episode_id = EpisodeId(GroupId.of(Purpose.TRAIN, self._group), episode, 0)
            self._handles[episode] = await self.environment.open(task, episode_id, LEASE, TIMEOUT_S)
        return self._handles[episode]

    async def call(self, tool: str, episode: int = 0, **arguments: str) -> Receipt:
        handle = await self.handle(episode)
        action = Action(ActionId(handle.episode, next(self._steps), 0), tool, json.dumps(arguments))
        return await self.environment.execute(handle, action, LEASE, TIMEOUT_S)

    async def python(self, code: str, episode: int = 0) -> Receipt:
        return await self.call("python", episode, code=code)

    async def calculator(self, expression: str, episode: int = 0) -> Receipt:
        return await self.call("calculator", episode, expression=expression)

    async def artifact(self, episode: int = 0) -> bytes:
        return await self.environment.artifact(await self.handle(episode), TIMEOUT_S)

    async def process(self, episode: int = 0) -> SandboxProcess:
        """The episode's own process."""
        handle = await self.handle(episode)
        session = self.environment._session(handle)
        assert session is not None
        process = self.environment._interpreters[session].process
        assert process is not None
        return process

    async def close(self, episode: int = 0) -> None:
        await self.environment.close(self._handles.pop(episode))

    async def close_all(self) -> None:
        for episode in list(self._handles):
            await self.close(episode)


@asynccontextmanager
async def sandboxed(meters: MeterFactory | None = None, **options: Any) -> AsyncIterator[Sandboxed]:
    """A sandbox with both tools; after it, every process that it started is gone."""
    options = {"tools": ("calculator", "python"), "wall_s": 10.0} | options
    environment = SandboxEnvironment(SandboxOptions(**options), meters=meters)
    before = set(children(os.getpid()))
    try:
        yield Sandboxed(environment)
    finally:
        await environment.stop()
    assert set(children(os.getpid())) <= before


def run(scenario: Callable[[Sandboxed], Awaitable[None]], meters: MeterFactory | None = None, **options: Any) -> None:
    async def body() -> None:
        async with asyncio.timeout(60.0), sandboxed(meters, **options) as sandbox:
            await scenario(sandbox)

    asyncio.run(body())


class SharedSandbox:
    """One environment for the scenarios of a module; each has episodes of its own."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._stack = AsyncExitStack()
        self._runner = asyncio.Runner()
        self._groups = itertools.count(1)
        self._sandbox: Sandboxed | None = None

    def run(self, scenario: Callable[[Sandboxed], Awaitable[None]]) -> None:
        self._runner.run(self._scenario(scenario))

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    async def _scenario(self, scenario: Callable[[Sandboxed], Awaitable[None]]) -> None:
        if self._sandbox is None:
            self._sandbox = await self._stack.enter_async_context(sandboxed(**self._options))
        own = Sandboxed(self._sandbox.environment, next(self._groups))
        try:
            async with asyncio.timeout(60.0):
                await scenario(own)
        finally:
            await own.close_all()


def descendants(pid: int) -> set[int]:
    """Every process below the given one, as seen from outside."""
    found: set[int] = set()
    todo = [pid]
    while todo:
        below = set(children(todo.pop())) - found
        found |= below
        todo += below
    return found


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
