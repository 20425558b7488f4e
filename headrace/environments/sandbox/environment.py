"""The Environment port over confined processes.

Invariants: whatever the policy's code does ends in a receipt, by the tool's own deadline; one episode's process is seen by
no other; an interpreter that ended from inside was ended by the policy, one that was killed from outside is lost.

After a timeout, a kill or the CPU limit the next call of the episode runs in a fresh interpreter, and its output says so
first.
"""

import asyncio
import itertools
import os
import sys
import time
from pathlib import Path

import msgspec

from headrace.environments.sandbox.artifact import ArtifactRefused, checked_artifact
from headrace.environments.sandbox.ending import blame, is_taken_away, metered
from headrace.environments.sandbox.meters import MeterFactory
from headrace.environments.sandbox.options import Isolation, SandboxOptions
from headrace.environments.sandbox.pool import SandboxPool
from headrace.environments.sandbox.process import SandboxProcess
from headrace.environments.sessions import Ended, Judge, Session, SessionEnvironment, claim_last_result
from headrace.environments.tools import CALCULATOR, PYTHON, SCHEMAS, BadArguments, calculator_expression, code_of
from headrace.errors import EnvironmentFault, Outcome, ProcessError
from headrace.ports import Handle
from headrace.processes.bubblewrap import bubblewrap_version
from headrace.records.action import Action, EffectClass
from headrace.records.execution import ExecutionStatus, Lease, Metering, Receipt
from headrace.records.harness import ToolSchema
from headrace.records.ids import Address
from headrace.records.provenance import content_version

RESTARTED = b"[a fresh interpreter: what earlier calls defined is gone]\n"

_STATUS = {
    b"O": ExecutionStatus.OK,
    b"E": ExecutionStatus.TOOL_ERROR,
    b"M": ExecutionStatus.OUT_OF_MEMORY,
    b"T": ExecutionStatus.TIMEOUT,
}
_MARKER_BYTES = 64
_TIMER_SLACK_S = 0.01
_lives = itertools.count(1)


class _Interpreter:
    """The python process of one session, which may be another after each call."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.process: SandboxProcess | None = None
        self.is_restarted = False


class SandboxEnvironment(SessionEnvironment):
    """Calculator and Python in confined processes.

    Attributes:
        artifacts_refused: artifacts that were no plain files and became empty.
    """

    def __init__(
        self, options: SandboxOptions, *, judge: Judge = claim_last_result, meters: MeterFactory | None = None
    ) -> None:
        super().__init__(f"sandbox-{os.getpid()}-{next(_lives)}-{time.time_ns():x}", judge)
        self.artifacts_refused = 0
        self._options = options
        self._pool = SandboxPool(options, meters or MeterFactory(options))
        self._start: asyncio.Task[None] | None = None
        self._interpreters: dict[Session, _Interpreter] = {}
        described = msgspec.json.encode(options, order="deterministic")
        self._version = content_version(sys.version, bubblewrap_version(), described, *_sources())

    @property
    def effect(self) -> EffectClass:
        return EffectClass.RESETTABLE if PYTHON.name in self._options.tools else EffectClass.PURE

    @property
    def version(self) -> Address:
        return self._version

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return tuple(SCHEMAS[name] for name in self._options.tools)

    @property
    def isolation(self) -> Isolation:
        """How strong the sandbox is on this platform; known after `start`."""
        return self._pool.isolation

    async def start(self) -> None:
        """Returns once the pool is warm; `open` does it where nobody did.

        Raises:
            EnvironmentFault: REJECTED when no sandbox works here.
        """
        if self._start is None:
            self._start = asyncio.create_task(self._pool.start(), name="sandbox: start")
        try:
            await asyncio.shield(self._start)
        except ProcessError as error:
            self._start = None
            raise EnvironmentFault(str(error), Outcome.REJECTED) from error

    async def stop(self) -> None:
        await super().stop()
        if self._start is not None:
            await asyncio.gather(self._start, return_exceptions=True)
        await self._pool.stop()

    async def artifact(self, handle: Handle, timeout_s: float) -> bytes:
        """Files of the scratch folder's `artifact` folder; empty when there are none or they are refused."""
        session = self._session(handle)
        interpreter = None if session is None else self._interpreters.get(session)
        if interpreter is None or interpreter.process is None or interpreter.process.is_lost:
            return b""
        async with interpreter.lock:
            try:
                data = await interpreter.process.call("artifact", b"", min(timeout_s, self._options.wall_s))
                return checked_artifact(data, self._options.artifact_bytes)
            except (ProcessError, ArtifactRefused):
                # The process and all that it holds are the policy's: so is the failure to hand it over.
                self.artifacts_refused += 1
                return b""

    async def _opened(self, session: Session, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self.start()
        except TimeoutError:
            raise EnvironmentFault(f"the sandbox did not start within {timeout_s} s", Outcome.REJECTED) from None
        self._interpreters[session] = _Interpreter()

    async def _closed(self, session: Session) -> None:
        interpreter = self._interpreters.pop(session, None)
        if interpreter is not None and interpreter.process is not None:
            await interpreter.process.close()

    async def _run(self, session: Session, action: Action, lease: Lease, timeout_s: float) -> Receipt:
        timeout_s = min(timeout_s, self._options.wall_s)
        latency_s = min(self._options.latency_of(session.task.address), timeout_s)
        if latency_s:
            await asyncio.sleep(latency_s)
        try:
            if latency_s == timeout_s:
                output = f"no answer within {timeout_s:g} s".encode()
                result = Ended(ExecutionStatus.TIMEOUT, output, len(output), Metering())
            elif action.tool not in self._options.tools:
                raise BadArguments(f"unknown tool {action.tool[:64]}")
            elif action.tool == CALCULATOR.name:
                result = await self._calculate(session, calculator_expression(action.arguments), timeout_s - latency_s)
            else:
                result = await self._interpret(session, code_of(action.arguments), timeout_s - latency_s)
        except BadArguments as error:
            output = f"error: {error}".encode("utf-8", "backslashreplace")
            result = Ended(ExecutionStatus.TOOL_ERROR, output, len(output), Metering())
        if latency_s:
            metering = msgspec.structs.replace(result.metering, wall_s=result.metering.wall_s + latency_s)
            result = msgspec.structs.replace(result, metering=metering)
        return result.receipt(action, lease)

    async def _calculate(self, session: Session, expression: str, timeout_s: float) -> Ended:
        """The policy cannot hang or kill a calculator, so any failure of it is the platform's."""
        start_s = time.monotonic()
        try:
            calculator = await self._pool.calculator()
        except ProcessError as error:
            raise EnvironmentFault(str(error), Outcome.REJECTED) from error
        try:
            answer = await calculator.call("calculate", expression.encode("utf-8", "surrogatepass"), timeout_s)
        except ProcessError as error:
            if not calculator.is_lost:
                await calculator.close()
            if error.outcome is Outcome.LOST:
                session.lose()
            raise EnvironmentFault(str(error), error.outcome) from error
        metering = Metering(wall_s=time.monotonic() - start_s, cpu_s=calculator.meter.take_cpu_s())
        return Ended(_STATUS[answer[:1]], answer[1:], len(answer) - 1, metering)

    async def _interpret(self, session: Session, code: str, timeout_s: float) -> Ended:
        interpreter = self._interpreters[session]
        async with interpreter.lock:
            notice = b""
            if interpreter.process is not None and interpreter.process.is_lost:
                if is_taken_away(interpreter.process, self.isolation.level):
                    session.lose()
                    raise EnvironmentFault(
                        f"{session.episode}: its interpreter was killed from outside", Outcome.REJECTED
                    )
                await self._retire(interpreter)
            if interpreter.process is None:
                try:
                    interpreter.process = await self._pool.interpreter()
                except ProcessError as error:
                    raise EnvironmentFault(str(error), Outcome.REJECTED) from error
                notice = RESTARTED if interpreter.is_restarted else b""
            result = await self._ask(session, interpreter, code, timeout_s)
            return msgspec.structs.replace(
                result, output=notice + result.output, output_bytes=len(notice) + result.output_bytes
            )

    async def _ask(self, session: Session, interpreter: _Interpreter, code: str, timeout_s: float) -> Ended:
        process = interpreter.process
        assert process is not None
        start_s, before = time.monotonic(), process.meter.begin()
        try:
            answer = await process.call("run", code.encode("utf-8", "surrogatepass"), timeout_s)
        except ProcessError as error:
            after = process.meter.read()
            is_overdue = not process.is_lost and time.monotonic() - start_s > timeout_s - _TIMER_SLACK_S
            await process.child.close(grace_s=0.0)
            status, text = blame(
                process,
                self.isolation.level,
                is_out_of_memory=after.oom_kills > before.oom_kills,
                is_overdue=is_overdue,
                timeout_s=timeout_s,
            )
            metering = metered(process, before, after, start_s)
            await self._retire(interpreter)
            if status is None:
                session.lose()
                raise EnvironmentFault(f"{session.episode}: {error}") from error
            output = text.encode()
            return Ended(status, output, len(output), metering)
        after = process.meter.read()
        metering = metered(process, before, after, start_s)
        if len(answer) < 9 or answer[:1] not in _STATUS or len(answer) > self._options.output_bytes + 9 + _MARKER_BYTES:
            await self._retire(interpreter)
            output = b"the interpreter gave a forged answer and was stopped"
            return Ended(ExecutionStatus.KILLED, output, len(output), metering)
        if answer[:1] == b"T":
            await self._retire(interpreter)
        # A process of the tool's may have been killed for memory while the interpreter itself lived on.
        is_out_of_memory = after.oom_kills > before.oom_kills
        status = ExecutionStatus.OUT_OF_MEMORY if is_out_of_memory else _STATUS[answer[:1]]
        return Ended(status, answer[9:], int.from_bytes(answer[1:9], "little"), metering)

    async def _retire(self, interpreter: _Interpreter) -> None:
        if interpreter.process is not None:
            await interpreter.process.close()
        interpreter.process, interpreter.is_restarted = None, True


def _sources() -> list[bytes]:
    """The code that decides what a tool answers."""
    folder = Path(__file__).parent
    files = [*sorted(folder.rglob("*.py")), *sorted(folder.parent.glob("*.py"))]
    return [file.read_bytes() for file in files]
