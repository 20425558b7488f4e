"""What a sandbox used, measured from outside: control groups where they can be written, else the process table.

Invariant: a meter reads only what the kernel counts; nothing that the sandbox says about itself enters.
"""

import abc
import contextlib
import itertools
import os
import signal
from pathlib import Path
from typing import NamedTuple

from headrace.environments.sandbox.options import SandboxOptions

_PREFIX = "headrace-"
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
"""Grain of CPU times in the process table, in seconds."""
_V1_CONTROLLERS = ("cpuacct", "memory", "pids")
_counter = itertools.count(1)


class Usage(NamedTuple):
    """Counters since the sandbox started.

    Attributes:
        cpu_s: CPU seconds of all its processes.
        memory_peak_bytes: highest use; 0 when unknown.
        io_bytes: bytes read and written; 0 when unknown.
        oom_kills: processes that the kernel killed for its memory limit.
    """

    cpu_s: float = 0.0
    memory_peak_bytes: int = 0
    io_bytes: int = 0
    oom_kills: int = 0


class Meter(abc.ABC):
    """Measures one sandbox.

    Attributes:
        kind: `cgroup2`, `cgroup1` or `rusage`.
        missing: bounds that it could not set.
    """

    kind: str
    missing: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._first_pid = 0
        self._tool_pid = 0
        self._taken_s = 0.0

    def wrapped(self, argv: list[str]) -> list[str]:
        """The command, started so that it is measured from its first instruction."""
        return argv

    def attach(self, first_pid: int, tool_pid: int) -> None:
        """Names the first process of the sandbox and the one that the tool runs in, as seen from outside."""
        self._first_pid, self._tool_pid = first_pid, tool_pid
        self._taken_s = self.cpu_s()

    def begin(self) -> Usage:
        """Usage before a call, from which its peak is counted where the kernel can."""
        return self.read()

    def take_cpu_s(self) -> float:
        """CPU seconds since this was last asked, so that calls which share a process add up to what it used."""
        now_s = max(self.cpu_s(), self._taken_s)
        taken_s, self._taken_s = now_s - self._taken_s, now_s
        return taken_s

    @abc.abstractmethod
    def cpu_s(self) -> float:
        """CPU seconds so far."""

    @abc.abstractmethod
    def read(self) -> Usage:
        """Usage so far; what a process that is gone used may be missing."""

    def close(self) -> None:
        """Frees what the meter holds; its processes are gone."""
        self._first_pid = self._tool_pid = 0

    def _io_bytes(self) -> int:
        """Bytes read and written by the tool's process and those it waited for."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = dict(line.split(": ") for line in Path(f"/proc/{self._tool_pid}/io").read_text().splitlines())
            return int(fields["rchar"]) + int(fields["wchar"])
        return 0


class RusageMeter(Meter):
    """Sums over the process tree; what a process used that died unwaited is lost."""

    kind = "rusage"
    missing = ("memory of all processes together",)

    def begin(self) -> Usage:
        with contextlib.suppress(OSError):
            Path(f"/proc/{self._tool_pid}/clear_refs").write_text("5")
        return self.read()

    def cpu_s(self) -> float:
        return self.read().cpu_s

    def read(self) -> Usage:
        cpu_s, peak_bytes, pids = 0.0, 0, [self._first_pid]
        while pids:
            pid = pids.pop()
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                cpu_s += sum(int(field) for field in stat[11:15]) * TICK_S
                peak_bytes += _resident_peak(pid)
                pids += children(pid)
        return Usage(cpu_s, peak_bytes, self._io_bytes())


def _resident_peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def children(pid: int) -> list[int]:
    """Process ids of the children of any thread."""
    return [
        int(child)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text(encoding="ascii").split()
    ]


class CgroupMeter(Meter):
    """One control group per hierarchy, which the sandbox is in from its first instruction."""

    def __init__(self, folders: dict[str, Path], options: SandboxOptions, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self._folders = folders
        memory_bytes = str(options.memory_bytes + options.scratch_bytes)
        is_v2 = kind == "cgroup2"
        # bubblewrap's own processes are two more.
        bounds = [
            ("memory", "memory.max" if is_v2 else "memory.limit_in_bytes", memory_bytes),
            ("pids", "pids.max", str(options.processes + 2)),
        ]
        names = {"memory": "memory of all processes together", "pids": "number of processes"}
        self.missing = tuple(names[what] for what, file, value in bounds if not _write(folders[what] / file, value))
        _write(folders["memory"] / ("memory.swap.max" if is_v2 else "memory.memsw.limit_in_bytes"), memory_bytes)
        self._peak = folders["memory"] / ("memory.peak" if is_v2 else "memory.max_usage_in_bytes")
        self._kills = folders["memory"] / ("memory.events" if is_v2 else "memory.oom_control")

    def wrapped(self, argv: list[str]) -> list[str]:
        joins = "".join(f"echo $$ > '{folder}/cgroup.procs' && " for folder in dict.fromkeys(self._folders.values()))
        return ["/bin/sh", "-c", f'{joins}exec "$@"', "sandbox", *argv]

    def begin(self) -> Usage:
        _write(self._peak, "0")
        return self.read()

    def read(self) -> Usage:
        peak = _read(self._peak).strip()
        kills = dict(line.split() for line in _read(self._kills).splitlines()).get("oom_kill", "0")
        return Usage(self.cpu_s(), int(peak) if peak.isdecimal() else 0, self._io_bytes(), int(kills))

    def close(self) -> None:
        for folder in dict.fromkeys(self._folders.values()):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def cpu_s(self) -> float:
        if self.kind == "cgroup1":
            return int(_read(self._folders["cpuacct"] / "cpuacct.usage") or "0") / 1e9
        fields = dict(line.split() for line in _read(self._folders["cpuacct"] / "cpu.stat").splitlines())
        return int(fields.get("usage_usec", "0")) / 1e6


class MeterFactory:
    """Makes the best meters that this process has the right to make."""

    def __init__(self, options: SandboxOptions, kinds: tuple[str, ...] = ("cgroup2", "cgroup1", "rusage")) -> None:
        self._options = options
        self._kinds = kinds
        self._parents = own_groups()
        for parent in dict.fromkeys(self._parents.values()):
            _sweep(parent)

    def make(self) -> Meter:
        """A meter for one new sandbox."""
        name = f"{_PREFIX}{os.getpid()}-{next(_counter)}"
        for kind in self._kinds:
            if kind == "rusage":
                break
            parents = self._parents_of(kind)
            if parents is not None and (folders := _make_groups(parents, name)) is not None:
                return CgroupMeter(folders, self._options, kind)
        return RusageMeter()

    def _parents_of(self, kind: str) -> dict[str, Path] | None:
        if kind == "cgroup1":
            names = [name for name in _V1_CONTROLLERS if name in self._parents]
            return {name: self._parents[name] for name in names} if len(names) == len(_V1_CONTROLLERS) else None
        unified = self._parents.get("")
        if unified is None:
            return None
        available = _read(unified / "cgroup.controllers").split()
        # Where the controllers live in the older hierarchy, that one can bound more.
        if "memory" not in available and "memory" in self._parents and "cgroup1" in self._kinds:
            return None
        _write(unified / "cgroup.subtree_control", "+memory +pids")
        return dict.fromkeys(_V1_CONTROLLERS, unified)


def own_groups() -> dict[str, Path]:
    """Folder of this process's control group by controller; the unified hierarchy has the empty name."""
    mounts: dict[str, Path] = {}
    for line in _read(Path("/proc/self/mounts")).splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2":
            mounts[""] = Path(where)
        elif kind == "cgroup":
            mounts.update(dict.fromkeys(options.split(","), Path(where)))
    groups: dict[str, Path] = {}
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            if name in mounts and (folder := mounts[name] / path.lstrip("/")).is_dir():
                groups[name] = folder
    return groups


def _make_groups(parents: dict[str, Path], name: str) -> dict[str, Path] | None:
    made: dict[str, Path] = {}
    for what, parent in parents.items():
        folder = parent / name
        try:
            folder.mkdir(exist_ok=True)
            made[what] = folder
            if not os.access(folder / "cgroup.procs", os.W_OK):
                raise PermissionError(folder)
        except OSError:
            for done in dict.fromkeys(made.values()):
                with contextlib.suppress(OSError):
                    done.rmdir()
            return None
    return made


def _sweep(parent: Path) -> None:
    """Ends and removes what a run that was killed left behind; groups of a living process are its own."""
    for folder in parent.glob(f"{_PREFIX}*-*"):
        owner = folder.name[len(_PREFIX) :].partition("-")[0]
        if Path(f"/proc/{owner}").exists():
            continue
        for pid in _read(folder / "cgroup.procs").split():
            # 0 stands for a process of another name space: not ours to end.
            if pid != "0":
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(OSError):
            folder.rmdir()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _write(path: Path, text: str) -> bool:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        return False
    return True
