"""Command lines that start a confined process, from the strongest isolation to the weakest.

What a process may see is decided here; what it may use is decided by `inside.confine`, which runs first inside.
"""

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import assert_never

from headrace.environments.sandbox.inside.confine import SCRATCH, Limits
from headrace.environments.sandbox.options import Level, SandboxOptions, ToolName
from headrace.environments.sandbox.python_root import PythonRoot
from headrace.processes.bubblewrap import find_bubblewrap

_PROJECT = Path(__file__).resolve().parents[3]
_INSIDE = "headrace/environments/sandbox/inside"
_CALCULATOR = "headrace/environments/calculator.py"
_MAIN = (
    "import sys; sys.path.insert(0, {!r}); "
    "from headrace.environments.sandbox.inside.main import main; main(sys.argv[1:])"
)

LEVELS: tuple[Level, ...] = ("bubblewrap_root", "bubblewrap", "rlimits")

MISSING: dict[Level, tuple[str, ...]] = {
    "bubblewrap_root": (),
    "bubblewrap": (),
    "rlimits": ("network", "files of the host", "processes of the host", "scratch folder", "end of detached processes"),
}

_counter = itertools.count()


def possible_levels(options: SandboxOptions) -> list[Level]:
    """Levels worth trying here, strongest first."""
    refused: set[Level] = set()
    if os.geteuid() != 0:
        refused.add("bubblewrap_root")
    if find_bubblewrap() is None:
        refused |= {"bubblewrap_root", "bubblewrap"}
    if not options.allow_weak_isolation:
        refused.add("rlimits")
    return [level for level in LEVELS[LEVELS.index(options.level) :] if level not in refused]


def command(level: Level, tool: ToolName, options: SandboxOptions, root: PythonRoot) -> list[str]:
    """The command of one confined process."""
    limits = Limits(
        memory_bytes=options.memory_bytes,
        cpu_s=options.cpu_s if tool == "python" else _UNBOUNDED_CPU_S,
        file_bytes=options.file_bytes,
        processes=options.processes,
        open_files=options.open_files,
        scratch_bytes=options.scratch_bytes,
        scratch_files=options.scratch_files,
        uid=_fresh_uid() if level != "bubblewrap" and os.geteuid() == 0 else None,
        has_mounts=level != "rlimits",
    )
    match level:
        case "bubblewrap_root":
            # bubblewrap's own process 1 stays root. The tool's process becomes another user, whom a parent without
            # capabilities may not signal: as process 1 it would outlive a parent that is killed.
            prefix = _bubblewrap((), options, root)
        case "bubblewrap":
            # The capability is for the bound on the scratch folder's files; `confine` gives it up.
            extra = ("--as-pid-1", "--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "CAP_SYS_ADMIN")
            prefix = _bubblewrap(extra, options, root)
        case "rlimits":
            prefix = []
        case _:
            assert_never(level)
    source = str(_PROJECT) if level == "rlimits" else "/sandbox"
    python = [root.executable, "-I", "-S", "-B", "-X", "utf8", "-c", _MAIN.format(source)]
    return [*prefix, *python, tool, json.dumps(limits), str(options.output_bytes)]


_UNBOUNDED_CPU_S = 1 << 30  # a calculator serves many episodes, and each of its answers is bounded by the language


def _bubblewrap(extra: Sequence[str], options: SandboxOptions, root: PythonRoot) -> list[str]:
    program = find_bubblewrap()
    assert program is not None
    arguments = [program, *extra, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    arguments += ["--unshare-cgroup-try", "--die-with-parent", "--clearenv", "--hostname", "sandbox"]
    # A signal to the own process group would otherwise reach bubblewrap's process outside.
    arguments += ["--new-session"]
    # Named one by one, since a folder that bubblewrap makes on the way may be closed to the user inside.
    for folder in sorted({str(parent) for path in root.visible for parent in Path(path).parents} - {"/"}):
        arguments += ["--perms", "0755", "--dir", folder]
    for path in root.visible:
        arguments += ["--ro-bind", path, path]
    for path in root.hidden:
        arguments += ["--perms", "0555", "--tmpfs", path, "--remount-ro", path]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    arguments += ["--size", str(options.scratch_bytes), "--perms", "1777", "--tmpfs", SCRATCH]
    for name in (_INSIDE, _CALCULATOR):
        arguments += ["--ro-bind", str(_PROJECT / name), f"/sandbox/{name}"]
    return [*arguments, "--remount-ro", "/", "--chdir", SCRATCH, "--"]


def _fresh_uid() -> int:
    """A user that no other sandbox is, so that its process count is its own and it can signal nobody else."""
    first, length = 2_000_000_000, 100_000_000
    for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines():
        start, _, count = (int(field) for field in line.split())
        if start == 0 and count < first + length:
            first, length = max(1, count - 4096), min(4095, count - 1)
    return first + next(_counter) % length
