"""The Environment port over a user's own part in a child process.

Invariants: a `ToolError` is a receipt; every other exception of the part is an `EnvironmentFault`, after which the episode's
state counts as lost, so that only a pure part runs the action again; no episode sees another one's instance.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from headrace.config import Section
from headrace.environments.parts.messages import Answer, Ask, Hello, Method
from headrace.environments.sandbox.options import Isolation
from headrace.environments.sessions import Session, SessionEnvironment
from headrace.errors import ConfigError, EnvironmentFault, Outcome, ProcessError
from headrace.extend.loading import PartOptions, part_version
from headrace.ports import Handle
from headrace.processes.child import Child
from headrace.records.action import Action, EffectClass
from headrace.records.execution import Lease, Receipt
from headrace.records.harness import ToolSchema
from headrace.records.ids import Address
from headrace.records.provenance import canonical_bytes
from headrace.records.terminal import Failure, Success, Terminal

HOOK_TIMEOUT_S = 1.0
_GRACE_S = 2.0
_lives = itertools.count(1)


class PythonEnvironmentOptions(PartOptions, Section, frozen=True):
    """Options of the `python` environment: where the part is, and what it may do.

    Attributes:
        effect: what its tools do to the world: `pure` (run again at will), `resettable` (only a fresh start is possible) or
            `external` (an effect outside, never repeated by itself). Empty leaves it to the class's own `effect`.
        output_bytes: bound on one output and on the artifact.
        memory_bytes: address space of an episode's process; 0 for no bound.
    """

    effect: str = ""
    output_bytes: int = 65_536
    memory_bytes: int = 4 * 1024**3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.effect not in {"", "pure", "resettable", "external"}:
            raise ValueError(f"environment.effect is {self.effect!r}; it must be pure, resettable or external")
        if self.output_bytes < 1 or self.memory_bytes < 0:
            raise ValueError(f"environment.output_bytes is {self.output_bytes}, memory_bytes {self.memory_bytes}")


class PythonEnvironment(SessionEnvironment):
    """Tools of a user's part; call `start` before anything else.

    Args:
        options: see `PythonEnvironmentOptions`.
        start: starts a host child.
    """

    def __init__(self, options: PythonEnvironmentOptions, start: Callable[[], Awaitable[Child]]) -> None:
        super().__init__(f"python-{os.getpid()}-{next(_lives)}-{time.time_ns():x}")
        self._options = options
        self._start = start
        self._starting = asyncio.Lock()
        self._host: Child | None = None
        self._hello: Hello | None = None
        self._effect = EffectClass(options.effect) if options.effect else None
        self._hosts: dict[Session, Child] = {}
        self._version = part_version(
            options, canonical_bytes((options.effect, options.output_bytes, options.memory_bytes))
        )

    @property
    def effect(self) -> EffectClass:
        if self._effect is None:
            raise ConfigError(
                f"environment {self._options.name} declares no effect; set environment.options.effect, or `effect` of the "
                'class, to "pure", "resettable" or "external"'
            )
        return self._effect

    @property
    def version(self) -> Address:
        return self._version

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        if self._hello is None:
            raise ConfigError(f"environment {self._options.name} was not started; its tools are known after `start`")
        return self._hello.tools

    @property
    def isolation(self) -> Isolation:
        """None: the part is its owner's code, and what the policy may do is what the part's tools do."""
        return Isolation("rlimits", "rusage", ("a user's own part",), "its CPU and memory as it counts them")

    async def start(self) -> None:
        """Returns once the part is loaded.

        Raises:
            ConfigError: when it does not load, has no tools, or declares no effect.
        """
        try:
            await self._living()
        except ProcessError as error:
            raise ConfigError(f"environment {self._options.name}: {error}") from error
        if self._effect is EffectClass.PURE and self._hello is not None and self._hello.is_stateful:
            raise ConfigError(
                f"environment {self._options.name} is a class and declared pure; use resettable or external"
            )
        _ = self.effect

    async def stop(self) -> None:
        await super().stop()
        if self._host is not None:
            host, self._host = self._host, None
            await host.close()

    async def artifact(self, handle: Handle, timeout_s: float) -> bytes:
        """What the part's `artifact` hook hands over; empty when it has none."""
        session = self._session(handle)
        if session is None or not self._has("artifact") or session not in self._hosts:
            return b""
        return (await self._ask(session, Method.ARTIFACT, Ask(session.opened_as, timeout_s))).output

    async def claim(self, handle: Handle, final_text: str, timeout_s: float) -> Terminal:
        session = self._session(handle)
        if session is not None and self._has("claim") and session in self._hosts:
            ask = Ask(session.opened_as, timeout_s, text=final_text)
            claimed = (await self._ask(session, Method.CLAIM, ask)).claim
            if claimed is not None:
                return Success() if claimed else Failure("the environment says that it is not done")
        return await super().claim(handle, final_text, timeout_s)

    async def _opened(self, session: Session, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                host = await self._living()
        except TimeoutError:
            raise EnvironmentFault(f"the host did not start within {timeout_s} s", Outcome.REJECTED) from None
        except ProcessError as error:
            raise EnvironmentFault(str(error), Outcome.REJECTED) from error
        await self._enter(session, host, timeout_s)

    async def _closed(self, session: Session) -> None:
        host = self._hosts.pop(session, None)
        if host is None or host.exit_status is not None:
            return
        try:
            await self._call(host, Method.CLOSE, Ask(session.opened_as, HOOK_TIMEOUT_S))
        except EnvironmentFault:
            return  # the host killed the process, or is gone itself: nothing is held any more

    async def _run(self, session: Session, action: Action, lease: Lease, timeout_s: float) -> Receipt:
        ask = Ask(session.opened_as, timeout_s, text=action.tool, arguments=action.arguments)
        if self._hosts[session].exit_status is not None and self.effect is EffectClass.PURE:
            await self._opened(session, timeout_s)
        answer = await self._ask(session, Method.CALL, ask)
        return Receipt(
            action.id,
            lease.token,
            action.arguments_hash,
            answer.status,
            answer.output,
            answer.output_bytes,
            metering=answer.metering,
        )

    def _has(self, hook: str) -> bool:
        return self._hello is not None and hook in self._hello.hooks

    async def _enter(self, session: Session, host: Child, timeout_s: float) -> None:
        task = session.task
        ask = Ask(
            session.opened_as,
            timeout_s,
            question=task.question,
            difficulty=task.difficulty,
            data=msgspec.json.decode(task.parameters, type=dict[str, Any]),
        )
        await self._call(host, Method.OPEN, ask)
        self._hosts[session] = host

    async def _ask(self, session: Session, method: Method, ask: Ask) -> Answer:
        """The host's answer; a fault costs the session its state."""
        try:
            return await self._call(self._hosts[session], method, ask)
        except EnvironmentFault:
            session.lose()
            raise

    async def _call(self, host: Child, method: Method, ask: Ask) -> Answer:
        try:
            # The host ends an overdue call itself; the margin is for its answer to arrive.
            payload = await host.call(method.value, msgspec.msgpack.encode(ask), timeout_s=ask.timeout_s + _GRACE_S)
            return msgspec.msgpack.decode(payload, type=Answer)
        except ProcessError as error:
            raise EnvironmentFault(str(error), error.outcome) from error
        except msgspec.DecodeError as error:
            raise EnvironmentFault(f"the host's answer to {method.value} cannot be read: {error}") from error

    async def _living(self) -> Child:
        """The running host, started again if it was lost. Raises ProcessError."""
        async with self._starting:
            if self._host is None or self._host.exit_status is not None:
                self._host = await self._start()
                self._hello = msgspec.msgpack.decode(self._host.hello, type=Hello)
                self._effect = self._effect or self._hello.effect
            return self._host
