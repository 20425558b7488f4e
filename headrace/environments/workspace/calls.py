"""One call on a workspace: a sandbox of its own, started, asked, measured and ended.

Invariant: a call changes nothing outside; what it wrote comes back as records, whole or not at all.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.environments.sandbox.ending import blame, metered
from headrace.environments.sandbox.launch import Mounts
from headrace.environments.sandbox.meters import MeterFactory, Usage
from headrace.environments.sandbox.options import Level
from headrace.environments.sandbox.process import SandboxProcess
from headrace.environments.sandbox.python_root import PythonRoot
from headrace.environments.sessions import Ended
from headrace.environments.workspace.options import WorkspaceOptions
from headrace.environments.workspace.programs import Programs
from headrace.environments.workspace.tree import ChangesRefused, Record, read_records
from headrace.errors import EnvironmentFault, ProcessError
from headrace.records.execution import ExecutionStatus, Metering

GRACE_S = 2.0
"""Seconds after the tool's own deadline in which its changes have to come back."""

_STATUS = {
    "O": ExecutionStatus.OK,
    "E": ExecutionStatus.TOOL_ERROR,
    "K": ExecutionStatus.KILLED,
    "T": ExecutionStatus.TIMEOUT,
}
_MARKER_BYTES = 256
_TIMER_SLACK_S = 0.01
_NOTHING_KEPT = "the workspace is as it was before the call"


class Head(msgspec.Struct, frozen=True):
    """What the sandbox says of a call.

    Attributes:
        status: `O`, `E`, `K` or `T`.
        code: exit status or signal.
        output_bytes: true size of its output.
        stopped: processes that it left behind, which were ended.
        special: things in the workspace that are no file, folder or link, which are not kept.
        refused: why its changes could not be read; empty when they could.
    """

    status: str
    code: int
    output_bytes: int
    stopped: int
    special: int
    refused: str


class CallResult(Ended, frozen=True):
    """How a call ended.

    Attributes:
        records: what it changed; None when nothing of it is kept.
    """

    records: tuple[Record, ...] | None


class Caller:
    """Runs calls behind one kind of walls.

    Args:
        options: bounds.
        meters: makes meters.
        level: the walls.
        root: the Python that is shown.
        programs: the programs that are shown.
    """

    def __init__(
        self, options: WorkspaceOptions, meters: MeterFactory, level: Level, *, root: PythonRoot, programs: Programs
    ) -> None:
        self._options = options
        self._sandbox = options.sandbox
        self._meters = meters
        self._root = root
        self._programs = programs
        self.level: Level = level

    async def start(self, layers: Sequence[Path], is_overlay: bool, size_bytes: int) -> SandboxProcess:
        """A sandbox that has the workspace mounted; `size_bytes` is that of its files. Raises ProcessError."""
        options = self._options
        mounts = Mounts(
            programs=self._programs.shown,
            layers=tuple(map(str, layers)),
            is_overlay=is_overlay,
            size_bytes=options.call_bytes if is_overlay else options.call_bytes + size_bytes,
            files=options.workspace_files,
        )
        return await SandboxProcess.start(
            self.level, "workspace", self._sandbox, root=self._root, meter=self._meters.make(), mounts=mounts
        )

    async def run(self, process: SandboxProcess, tool: str, code: str, timeout_s: float) -> CallResult:
        """The result; the sandbox is gone afterwards.

        Raises:
            EnvironmentFault: LOST when the platform took the sandbox away.
        """
        start_s, before = time.monotonic(), process.meter.begin()
        call = json.dumps({"tool": tool, "code": code, "timeout_s": timeout_s}).encode()
        try:
            try:
                answer = await process.call("run", call, timeout_s + GRACE_S)
            except ProcessError as error:
                return await self._unanswered(process, error, timeout_s, start_s, before=before)
            after = process.meter.read()
            metering = metered(process, before, after, start_s)
            is_out_of_memory = after.oom_kills > before.oom_kills
        finally:
            await process.close()
        try:
            return self._read(answer, metering, is_out_of_memory)
        except (ValueError, msgspec.DecodeError) as error:
            output = f"[{error}; {_NOTHING_KEPT}]".encode("utf-8", "backslashreplace")
            return CallResult(ExecutionStatus.KILLED, output, len(output), metering, None)

    async def _unanswered(
        self, process: SandboxProcess, error: ProcessError, timeout_s: float, start_s: float, *, before: Usage
    ) -> CallResult:
        after = process.meter.read()
        waited_s = time.monotonic() - start_s
        is_overdue = not process.is_lost and waited_s > timeout_s + GRACE_S - _TIMER_SLACK_S
        await process.child.close(grace_s=0.0)
        status, text = blame(
            process,
            self.level,
            is_out_of_memory=after.oom_kills > before.oom_kills,
            is_overdue=is_overdue,
            timeout_s=timeout_s,
        )
        metering = metered(process, before, after, start_s)
        if status is None:
            raise EnvironmentFault(f"the sandbox was taken away under a call: {error}") from error
        output = f"[{text.replace('the interpreter', 'it')}; {_NOTHING_KEPT}]".encode()
        return CallResult(status, output, len(output), metering, None)

    def _read(self, answer: bytes, metering: Metering, is_out_of_memory: bool) -> CallResult:
        """The result of an answer, which the policy's code may have forged. Raises ValueError or msgspec.DecodeError."""
        raw, position = _chunk(answer, 0)
        shown, position = _chunk(answer, position)
        head = msgspec.json.decode(raw, type=Head)
        status = ExecutionStatus.OUT_OF_MEMORY if is_out_of_memory else _STATUS.get(head.status)
        if status is None or len(shown) > self._options.output_bytes + _MARKER_BYTES or head.output_bytes < 0:
            raise ChangesRefused("the sandbox gave a forged answer")
        notes: list[str] = []
        if head.status == "E":
            notes.append(f"exit status {head.code}")
        if head.status == "K":
            notes.append(f"ended by signal {head.code}")
        if head.stopped:
            notes.append(f"{head.stopped} processes that it left behind were stopped")
        if head.special:
            notes.append(f"{head.special} pipes, sockets or devices are not kept")
        records: tuple[Record, ...] | None = None
        if head.refused:
            notes.append(f"{head.refused}; {_NOTHING_KEPT}")
        else:
            records = tuple(read_records(answer[position:]))
        note = f"\n[{'; '.join(notes)}]".encode() if notes else b""
        return CallResult(status, shown + note, head.output_bytes + len(note), metering, records)


def _chunk(data: bytes, position: int) -> tuple[bytes, int]:
    end = position + 4 + int.from_bytes(data[position : position + 4], "little")
    if position + 4 > len(data) or end > len(data):
        raise ChangesRefused("the sandbox's answer ends in the middle")
    return data[position + 4 : end], end


def refused(result: CallResult, reason: str) -> CallResult:
    """The result when what the call changed may not be kept."""
    note = f"\n[{reason}; {_NOTHING_KEPT}]".encode()
    return msgspec.structs.replace(
        result,
        status=ExecutionStatus.TOOL_ERROR,
        output=result.output + note,
        output_bytes=result.output_bytes + len(note),
        records=None,
    )
