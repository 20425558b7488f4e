"""Every implementation of the Environment port in every class that it has, with actions that change and read its state."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import calculator_part
import notebook_part

from headrace.config import decode_config
from headrace.environments.inline import InlineEnvironment
from headrace.environments.sandbox.environment import SandboxEnvironment
from headrace.environments.sandbox.options import SandboxOptions
from headrace.environments.workspace.environment import WorkspaceEnvironment
from headrace.environments.workspace.options import WorkspaceOptions
from headrace.ports import Environment, Handle
from headrace.records.action import Action, EffectClass
from headrace.records.execution import Lease
from headrace.records.ids import ActionId, EpisodeId, GroupId, LeaseToken, Purpose
from headrace.records.task import Budget, Task
from headrace.runtime.adapters import LocalEnvironment, open_environment
from headrace.simulation.environment import SimulatedEnvironment
from headrace.simulation.harness import TOOL
from headrace.simulation.laws import Constant
from headrace.simulation.workload import Draws, Stratum, Workload

TIMEOUT_S = 30.0
EPISODE = EpisodeId(GroupId.of(Purpose.TRAIN, 4), 1, 0)
TASK = Task("any", "easy", seed=1, index=0, question="?", budget=Budget(), environment="any")

Call = tuple[str, dict[str, Any]]
Opened = AbstractAsyncContextManager[Environment]


@dataclasses.dataclass(frozen=True)
class Kind:
    """One implementation in one class.

    Attributes:
        effect: the class.
        open: a started environment, stopped at the end.
        write: a call that leaves something behind, where anything can be.
        read: a call that shows it.
        seen: how its output shows what was written; empty where nothing can be.
    """

    effect: EffectClass
    open: Callable[[], Opened]
    write: Call
    read: Call
    seen: bytes = b""


def lease(token: int = 1) -> Lease:
    return Lease(LeaseToken(token), 1e9)


def act(call: Call, step: int) -> Action:
    tool, arguments = call
    return Action(ActionId(EPISODE, step, 0), tool, json.dumps(arguments, separators=(",", ":"), sort_keys=True))


@asynccontextmanager
async def _inline() -> AsyncIterator[Environment]:
    environment = InlineEnvironment()
    yield environment
    await environment.stop()


@asynccontextmanager
async def _started(environment: LocalEnvironment) -> AsyncIterator[Environment]:
    try:
        await environment.start()
        yield environment
    finally:
        await environment.stop()


def part(**options: Any) -> Callable[[], Opened]:
    """Opens a user's part."""
    tree = {"environment": {"kind": "python", "options": options}}
    return lambda: _started(open_environment(decode_config(tree, "kinds")))


def _workspace(**options: Any) -> Callable[[], Opened]:
    return lambda: _started(WorkspaceEnvironment(WorkspaceOptions(programs=("sh", "cat"), **options)))


@asynccontextmanager
async def _simulated(effect: EffectClass) -> AsyncIterator[Environment]:
    law = Constant(value=0.001)
    workload = Workload(name="w", tokens=law, strata=(Stratum(name="all", success=1.0),), tool_s=law, open_s=law)
    yield SimulatedEnvironment(Draws(workload, 7), effect=effect)


_CALCULATOR = str(Path(calculator_part.__file__))
_NOTEBOOK = str(Path(notebook_part.__file__))
_SUM: Call = ("calculator", {"expression": "1 + 1"})
_NOTE: Call = ("note", {"text": "seen"})
_NOTES: Call = ("notes", {})
_SHELL: tuple[Call, Call, bytes] = (
    ("shell", {"code": "echo seen >> kept"}),
    ("shell", {"code": "cat kept"}),
    b"seen\n",
)
_CODE: tuple[Call, Call, bytes] = (("python", {"code": "kept = 'seen'"}), ("python", {"code": "kept"}), b"'seen'\n")
_CALL: Call = (TOOL.name, {})

KINDS: dict[str, Kind] = {
    "inline": Kind(EffectClass.PURE, _inline, _SUM, _SUM),
    "sandbox calculator": Kind(EffectClass.PURE, lambda: _started(SandboxEnvironment(SandboxOptions())), _SUM, _SUM),
    "sandbox python": Kind(
        EffectClass.RESETTABLE, lambda: _started(SandboxEnvironment(SandboxOptions(tools=("python",)))), *_CODE
    ),
    "workspace overlay": Kind(EffectClass.SNAPSHOT, _workspace(by="overlay"), *_SHELL),
    "workspace copy": Kind(EffectClass.SNAPSHOT, _workspace(by="copy"), *_SHELL),
    "workspace of an ordinary user": Kind(EffectClass.SNAPSHOT, _workspace(by="overlay", level="bubblewrap"), *_SHELL),
    "own pure part": Kind(EffectClass.PURE, part(file=_CALCULATOR, name="calculator", effect="pure"), _SUM, _SUM),
    "own resettable part": Kind(
        EffectClass.RESETTABLE, part(file=_NOTEBOOK, name="Notebook", effect="resettable"), _NOTE, _NOTES, b"seen"
    ),
    "own external part": Kind(
        EffectClass.EXTERNAL, part(file=_NOTEBOOK, name="Notebook", effect="external"), _NOTE, _NOTES, b"seen"
    ),
    **{
        f"simulated {effect.value}": Kind(effect, lambda effect=effect: _simulated(effect), _CALL, _CALL)
        for effect in EffectClass
    },
}

Scenario = Callable[[Kind, Environment, Handle], Awaitable[None]]


def run_on(kind: Kind, scenario: Scenario) -> None:
    """Runs a scenario in a fresh environment with one open episode."""

    async def body() -> None:
        async with kind.open() as environment, asyncio.timeout(60.0):
            await scenario(kind, environment, await environment.open(TASK, EPISODE, lease(), TIMEOUT_S))

    asyncio.run(body())
