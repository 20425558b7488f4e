"""Confined processes kept ready: a few calculators for everybody, and fresh interpreters for whoever comes next.

Invariant: one that died is replaced when the next caller needs it; nobody waits for another's replacement. An interpreter
is given to one episode and never taken back.
"""

import asyncio

from headrace.environments.sandbox.launch import MISSING, possible_levels
from headrace.environments.sandbox.meters import TICK_S, MeterFactory
from headrace.environments.sandbox.options import Isolation, Level, SandboxOptions, ToolName
from headrace.environments.sandbox.process import SandboxProcess
from headrace.environments.sandbox.python_root import PythonRoot, find_python_root
from headrace.errors import Outcome, ProcessError

_SHARED = "the calculator is one process for all episodes: its CPU is split by call, its memory is nobody's"


class SandboxPool:
    """Starts and keeps confined processes of one environment."""

    def __init__(self, options: SandboxOptions, meters: MeterFactory) -> None:
        self._options = options
        self._meters = meters
        self._root: PythonRoot | None = None
        self._level: Level | None = None
        self._missing: tuple[str, ...] = ()
        self._metering = ""
        self._calculators: list[asyncio.Task[SandboxProcess]] = []
        self._ready: list[asyncio.Task[SandboxProcess]] = []
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def isolation(self) -> Isolation:
        """How strong it is; known after `start`."""
        assert self._level is not None, "the pool was not started"
        notes = (_SHARED,) if "calculator" in self._options.tools else ()
        if self._metering == "rusage":
            notes = (*notes, f"CPU in ticks of {1e3 * TICK_S:.0f} ms")
        return Isolation(self._level, self._metering, self._missing, "; ".join(notes))

    async def start(self) -> None:
        """Finds the strongest isolation that works here, and fills the pool.

        Raises:
            ProcessError: REJECTED, with what was tried and the remedy.
        """
        try:
            self._root = await asyncio.to_thread(find_python_root)
        except (OSError, ValueError) as error:
            raise ProcessError(f"sandbox: {error}", Outcome.REJECTED) from error
        first: asyncio.Task[SandboxProcess] | None = None
        tool = self._options.tools[0]
        failures: list[str] = []
        for level in possible_levels(self._options):
            self._level = level
            task = self._begin(tool)
            try:
                await task
                first = task
                break
            except ProcessError as error:
                failures.append(f"{level}: {error}")
        if first is None:
            self._level = None
            raise ProcessError(
                f"no sandbox works here ({'; '.join(failures) or 'bubblewrap is not installed'}). Allow user name spaces, "
                "or accept resource limits alone with environment.options.allow_weak_isolation = true",
                Outcome.REJECTED,
            )
        self._note(first.result())
        if "calculator" in self._options.tools:
            self._calculators = [
                self._begin("calculator") for _ in range(self._options.workers - (tool == "calculator"))
            ]
        if "python" in self._options.tools:
            self._ready = [self._begin("python") for _ in range(self._options.workers - (tool == "python"))]
        (self._calculators if tool == "calculator" else self._ready).insert(0, first)
        try:
            await asyncio.gather(*self._calculators, *self._ready)
        except BaseException:
            await self.stop()
            raise

    async def calculator(self) -> SandboxProcess:
        """The least busy calculator. Raises ProcessError."""
        slot = min(range(len(self._calculators)), key=lambda index: _load(self._calculators[index]))
        task = self._calculators[slot]
        if _is_useless(task):
            self._end(task)
            task = self._calculators[slot] = self._begin("calculator")
        return await asyncio.shield(task)

    async def interpreter(self) -> SandboxProcess:
        """A fresh interpreter that belongs to the caller. Raises ProcessError."""
        while self._ready and _is_useless(self._ready[0]):
            self._end(self._ready.pop(0))
        task = self._ready.pop(0) if self._ready else self._begin("python")
        self._ready.append(self._begin("python"))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._end(task)
            raise

    async def stop(self) -> None:
        """Ends every process that is not an episode's own."""
        tasks, self._calculators, self._ready = [*self._calculators, *self._ready], [], []
        for task in tasks:
            self._end(task)
        await asyncio.gather(*self._ending)

    def _begin(self, tool: ToolName) -> "asyncio.Task[SandboxProcess]":
        return asyncio.create_task(self._start(tool), name=f"sandbox: start {tool}")

    async def _start(self, tool: ToolName) -> SandboxProcess:
        assert self._root is not None and self._level is not None
        meter = self._meters.make()
        return await SandboxProcess.start(self._level, tool, self._options, root=self._root, meter=meter)

    def _note(self, process: SandboxProcess) -> None:
        assert self._level is not None
        self._missing = missing_behind(self._level, process)
        self._metering = process.meter.kind

    def _end(self, task: "asyncio.Task[SandboxProcess]") -> None:
        ending = asyncio.create_task(_close_started(task), name="sandbox: end")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


def missing_behind(level: Level, process: SandboxProcess) -> tuple[str, ...]:
    """What is not confined in a sandbox, in words."""
    missing = [*MISSING[level], *process.missing, *process.meter.missing]
    # A process count is bound by either of two limits; it is missing only without both.
    if "number of processes by rlimit" in missing:
        missing.remove("number of processes by rlimit")
        if process.meter.kind == "rusage" and "number of processes" not in missing:
            missing.append("number of processes")
    elif "number of processes" in missing:
        missing.remove("number of processes")
    return tuple(missing)


async def _close_started(task: "asyncio.Task[SandboxProcess]") -> None:
    try:
        process = await task
    except ProcessError:
        return
    await process.close()


def _is_useless(task: "asyncio.Task[SandboxProcess]") -> bool:
    if not task.done():
        return False
    return task.cancelled() or task.exception() is not None or task.result().is_lost


def _load(task: "asyncio.Task[SandboxProcess]") -> int:
    """Calls in flight; a process that is not there yet comes last, one that has to be replaced before it."""
    if not task.done():
        return 1 << 20
    return 1 << 10 if _is_useless(task) else task.result().in_flight
