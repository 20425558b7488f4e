"""The sandbox's options, and what it says about its own strength."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from headrace.records.ids import Address

ToolName = Literal["calculator", "python"]
Inside = Literal["calculator", "python", "workspace"]
Level = Literal["bubblewrap_root", "bubblewrap", "rlimits"]


class ProcessBounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What bounds the processes of every sandbox; a policy that reaches one gets a receipt that says so.

    Attributes:
        wall_s: seconds of one call; a tool that takes longer is stopped.
        cpu_s: CPU seconds of one process over its life.
        memory_bytes: address space of one process, and of a whole sandbox where control groups can be written.
        processes: processes and threads of one sandbox.
        open_files: open files of one process.
        output_bytes: bytes of output shown; the middle of a longer one is cut.
        artifact_bytes: size of what is handed to the grader.
        start_s: seconds in which a sandbox has to come up.
    """

    wall_s: float
    cpu_s: int = 10
    memory_bytes: int
    processes: int
    open_files: int
    output_bytes: int = 16_384
    artifact_bytes: int = 1024 * 1024
    start_s: float = 20.0

    def check_bounds(self, least: Mapping[str, float], may_be_zero: Sequence[str] = ()) -> None:
        """Refuses a number that is not above 0, or is below the least that works.

        Args:
            least: by field.
            may_be_zero: fields that are checked elsewhere.

        Raises:
            ValueError: naming field, value and bound.
        """
        for name in self.__struct_fields__:
            value, bound = getattr(self, name), least.get(name, 0)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if is_number and name not in may_be_zero and (value <= 0 or value < bound):
                wanted = f"at least {bound}" if bound else "above 0"
                raise ValueError(f"environment.options.{name} is {value}; it must be {wanted}")


class SandboxOptions(ProcessBounds, frozen=True, kw_only=True):
    """Tools, bounds and latency of one sandbox.

    Attributes:
        tools: which tools are offered; with `python` the environment is resettable, without it pure.
        workers: calculator processes, and fresh interpreters kept ready.
        file_bytes: size of one file.
        scratch_bytes: size of the scratch folder, which lies in memory.
        scratch_files: files and folders in it.
        latency_s: seconds that every call waits first, computing nothing, as for a tool that is far away; they count towards
            `wall_s`.
        slow_share: share of tasks, by a hash of their content, whose calls wait `slow_factor` times as long.
        slow_factor: how many times.
        level: strongest isolation to try; weaker ones follow.
        allow_weak_isolation: accept a platform without name spaces, where tools run with resource limits alone.
    """

    tools: tuple[ToolName, ...] = ("calculator",)
    workers: int = 1
    wall_s: float = 5.0
    memory_bytes: int = 256 * 1024 * 1024
    processes: int = 16
    open_files: int = 64
    file_bytes: int = 16 * 1024 * 1024
    scratch_bytes: int = 32 * 1024 * 1024
    scratch_files: int = 1024
    latency_s: float = 0.0
    slow_share: float = 0.0
    slow_factor: float = 10.0
    level: Level = "bubblewrap_root"
    allow_weak_isolation: bool = False

    def __post_init__(self) -> None:
        if not self.tools or len(set(self.tools)) != len(self.tools):
            raise ValueError(
                f"environment.options.tools is {self.tools}; name each of calculator and python at most once"
            )
        least = {"workers": 1, "output_bytes": 256, "memory_bytes": 64 * 1024 * 1024, "processes": 4, "open_files": 16}
        if not (self.latency_s >= 0.0 and self.latency_s * max(1.0, self.slow_factor) < self.wall_s):
            raise ValueError(
                f"environment.options.latency_s is {self.latency_s} and slow_factor {self.slow_factor}; their "
                f"product must be >= 0 and stay below wall_s, {self.wall_s}"
            )
        if not 0.0 <= self.slow_share <= 1.0:
            raise ValueError(f"environment.options.slow_share is {self.slow_share}; a share lies in [0, 1]")
        self.check_bounds(least, may_be_zero=("latency_s", "slow_share"))

    def latency_of(self, task: Address) -> float:
        """Seconds that the calls of a task wait."""
        is_slow = int(task[:8], 16) < self.slow_share * 16**8
        return self.latency_s * (self.slow_factor if is_slow else 1.0)


class Isolation(msgspec.Struct, frozen=True):
    """How strong the sandbox of this run is.

    Attributes:
        level: `bubblewrap_root` (name spaces, another user), `bubblewrap` (name spaces of an ordinary user) or
            `rlimits` (resource limits alone).
        metering: `cgroup2`, `cgroup1` or `rusage`.
        missing: what this platform could not confine, in words.
        note: what else was found out about the platform; empty for nothing.
    """

    level: Level
    metering: str
    missing: tuple[str, ...]
    note: str = ""
