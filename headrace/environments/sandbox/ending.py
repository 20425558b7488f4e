"""How a call in a sandbox ended, and what it used: who is to blame for a process that is gone.

Invariant: what ran inside can only end its sandbox in ways that count as its own doing.
"""

import time

from headrace.environments.sandbox.meters import Usage
from headrace.environments.sandbox.options import Level
from headrace.environments.sandbox.process import SandboxProcess
from headrace.records.execution import ExecutionStatus, Metering


def is_taken_away(process: SandboxProcess, level: Level) -> bool:
    """Whether the platform ended the process, and not what ran in it.

    The outer process of a sandbox is in no name space that the policy's code can reach: only the platform sends it
    a signal, and an exit status is always the policy's doing. Without name spaces nobody can tell, and it counts as
    the policy's.
    """
    status = process.child.exit_status
    is_signal = status is not None and status < 0 and not process.child.is_killed_by_us
    return is_signal and level != "rlimits"


def blame(
    process: SandboxProcess, level: Level, *, is_out_of_memory: bool, is_overdue: bool, timeout_s: float
) -> tuple[ExecutionStatus | None, str]:
    """Status and text of a call without an answer; None when the platform took the process away."""
    if is_out_of_memory:
        return ExecutionStatus.OUT_OF_MEMORY, "the memory limit was reached; the interpreter was stopped"
    if is_overdue:
        return ExecutionStatus.TIMEOUT, f"no answer within {timeout_s:g} s; the interpreter was stopped"
    if is_taken_away(process, level):
        return None, ""
    if process.child.is_killed_by_us:
        return ExecutionStatus.KILLED, "the interpreter broke its channel and was stopped"
    return ExecutionStatus.KILLED, f"the interpreter ended with exit status {process.child.exit_status}"


def metered(process: SandboxProcess, before: Usage, after: Usage, start_s: float) -> Metering:
    """What one call used."""
    wall_s = time.monotonic() - start_s
    cpu_s = after.cpu_s - before.cpu_s
    if process.meter.kind == "rusage" and after.cpu_s < before.cpu_s:
        # The process table has forgotten it. Its parent was told what it used, unless bubblewrap's own process 1 stood
        # between them; the wall time then stands for it.
        cpu_s = process.child.cpu_s - before.cpu_s if process.is_tool_first else wall_s
    return Metering(
        wall_s=wall_s,
        cpu_s=max(cpu_s, 0.0),
        memory_peak_bytes=after.memory_peak_bytes,
        io_bytes=max(after.io_bytes - before.io_bytes, 0),
    )
