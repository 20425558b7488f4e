"""One confined process: started, measured, ended with everything that it left behind."""

import asyncio
import contextlib
import json
import os
import signal

from headrace.environments.sandbox.launch import NO_MOUNTS, Mounts, command
from headrace.environments.sandbox.meters import Meter, children
from headrace.environments.sandbox.options import Inside, Level, SandboxOptions
from headrace.environments.sandbox.python_root import PythonRoot
from headrace.errors import Outcome, ProcessError
from headrace.processes.child import Child, ChildOptions

_FRAME_SLACK_BYTES = 65_536
_SILENCE_SLACK_S = 60.0


class SandboxProcess:
    """A child behind the sandbox's walls.

    Attributes:
        child: the process.
        meter: what it uses.
        missing: what could not be confined.
        in_flight: calls without an answer yet.
        is_tool_first: whether the tool is the first process of its name space.
    """

    def __init__(self, child: Child, meter: Meter, missing: tuple[str, ...]) -> None:
        self.child = child
        self.meter = meter
        self.missing = missing
        self.in_flight = 0
        # Below the child lies process 1 of the name space, and below that the tool, unless it is process 1 itself.
        first = next(iter(children(child.pid)), child.pid)
        tool = next(iter(children(first)), first)
        self.is_tool_first = tool == first
        meter.attach(first, tool)
        self._pidfd = -1
        if first != child.pid:
            with contextlib.suppress(ProcessLookupError):
                self._pidfd = os.pidfd_open(first)

    @classmethod
    async def start(
        cls,
        level: Level,
        tool: Inside,
        options: SandboxOptions,
        *,
        root: PythonRoot,
        meter: Meter,
        mounts: Mounts = NO_MOUNTS,
    ) -> "SandboxProcess":
        """A confined process that has said hello. Raises ProcessError."""
        watched = ChildOptions(
            # A tool is timed by its deadline; it sends no heartbeats.
            silence_s=options.wall_s + _SILENCE_SLACK_S,
            max_frame_bytes=max(options.output_bytes, options.artifact_bytes, 2 * mounts.size_bytes)
            + _FRAME_SLACK_BYTES,
        )
        argv = meter.wrapped(command(level, tool, options, root=root, mounts=mounts))
        try:
            child = await Child.start(f"sandbox {tool}", argv, start_timeout_s=options.start_s, options=watched)
        except BaseException:
            meter.close()
            raise
        try:
            missing = tuple(json.loads(child.hello))
        except ValueError as error:
            await child.close(grace_s=0.0)
            meter.close()
            raise ProcessError(f"sandbox {tool}: unreadable hello: {error}", Outcome.REJECTED) from error
        return cls(child, meter, missing)

    @property
    def is_lost(self) -> bool:
        return self.child.exit_status is not None

    async def call(self, method: str, payload: bytes, timeout_s: float) -> bytes:
        """The answer. Raises ProcessError."""
        self.in_flight += 1
        try:
            return await self.child.call(method, payload, timeout_s=timeout_s)
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        """Ends every process in it; returns when they are gone."""
        await self.child.close(grace_s=0.0)
        if self._pidfd >= 0:
            # The first process of a name space is gone only after all others are.
            pidfd, self._pidfd = self._pidfd, -1
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            loop = asyncio.get_running_loop()
            gone = asyncio.Event()
            loop.add_reader(pidfd, gone.set)
            try:
                await gone.wait()
            finally:
                loop.remove_reader(pidfd)
                os.close(pidfd)
        self.meter.close()
