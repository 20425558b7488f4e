"""Command lines that start a confined process, from the strongest isolation to the weakest.

What a process may see is decided here; what it may use is decided by `inside.confine`, which runs first inside.
"""

import dataclasses
import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import assert_never

from headrace.environments.sandbox.inside.confine import SCRATCH, Limits
from headrace.environments.sandbox.inside.workspace import BELOW, LAYERS, WORKSPACE, Place
from headrace.environments.sandbox.options import Inside, Level, SandboxOptions
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


@dataclasses.dataclass(frozen=True)
class Mounts:
    """What a sandbox sees besides its Python.

    Attributes:
        programs: pairs of a file of the host and where it is shown.
        layers: folders below the workspace, the topmost first; empty without a workspace.
        is_overlay: whether they are laid over each other, else the first is copied.
        size_bytes: what may be written to the workspace.
        files: files and folders that may be made in it.
    """

    programs: tuple[tuple[str, str], ...] = ()
    layers: tuple[str, ...] = ()
    is_overlay: bool = False
    size_bytes: int = 0
    files: int = 0


NO_MOUNTS = Mounts()


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


def command(
    level: Level, tool: Inside, options: SandboxOptions, *, root: PythonRoot, mounts: Mounts = NO_MOUNTS
) -> list[str]:
    """The command of one confined process."""
    is_other_user = level != "bubblewrap" and os.geteuid() == 0
    uid = None
    if is_other_user:
        uid = workspace_owner() if mounts.layers else _fresh_uid()
    limits = Limits(
        memory_bytes=options.memory_bytes,
        cpu_s=_UNBOUNDED_CPU_S if tool == "calculator" else options.cpu_s,
        file_bytes=options.file_bytes,
        processes=options.processes,
        open_files=options.open_files,
        scratch_bytes=options.scratch_bytes,
        scratch_files=options.scratch_files,
        uid=uid,
        is_shared=is_other_user and bool(mounts.layers),
        has_mounts=level != "rlimits",
    )
    place = Place(
        layers=len(mounts.layers),
        is_overlay=mounts.is_overlay,
        size_bytes=mounts.size_bytes,
        files=mounts.files,
        uid=uid,
    )
    match level:
        case "bubblewrap_root":
            # bubblewrap's own process 1 stays root. The tool's process becomes another user, whom a parent without
            # capabilities may not signal: as process 1 it would outlive a parent that is killed.
            prefix = _bubblewrap((), options, root, mounts)
        case "bubblewrap":
            # The capabilities are for the bound on the scratch folder's files, and for the work folder of an overlay,
            # which is closed to its own owner; `confine` gives them up.
            extra = ("--as-pid-1", "--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "CAP_SYS_ADMIN")
            if mounts.layers:
                extra += ("--cap-add", "CAP_DAC_OVERRIDE")
            prefix = _bubblewrap(extra, options, root, mounts)
        case "rlimits":
            prefix = []
        case _:
            assert_never(level)
    source = str(_PROJECT) if level == "rlimits" else "/sandbox"
    python = [root.executable, "-I", "-S", "-B", "-X", "utf8", "-c", _MAIN.format(source)]
    return [*prefix, *python, tool, json.dumps(limits), str(options.output_bytes), json.dumps(place)]


_UNBOUNDED_CPU_S = 1 << 30  # a calculator serves many episodes, and each of its answers is bounded by the language


def _bubblewrap(extra: Sequence[str], options: SandboxOptions, root: PythonRoot, mounts: Mounts) -> list[str]:
    program = find_bubblewrap()
    assert program is not None
    arguments = [program, *extra, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    arguments += ["--unshare-cgroup-try", "--die-with-parent", "--clearenv", "--hostname", "sandbox"]
    # A signal to the own process group would otherwise reach bubblewrap's process outside.
    arguments += ["--new-session"]
    shown = [*root.visible, *(place for _, place in mounts.programs)]
    # Named one by one, since a folder that bubblewrap makes on the way may be closed to the user inside.
    for folder in sorted({str(parent) for path in shown for parent in Path(path).parents} - {"/"}):
        arguments += ["--perms", "0755", "--dir", folder]
    for path in root.visible:
        arguments += ["--ro-bind", path, path]
    for path in root.hidden:
        arguments += ["--perms", "0555", "--tmpfs", path, "--remount-ro", path]
    for path, place in mounts.programs:
        arguments += ["--ro-bind", path, place]
    if mounts.layers:
        for folder in (WORKSPACE, LAYERS, BELOW):
            arguments += ["--perms", "0755", "--dir", folder]
        for index, path in enumerate(mounts.layers):
            arguments += ["--ro-bind", path, f"{BELOW}/{index}"]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    arguments += ["--size", str(options.scratch_bytes), "--perms", "1777", "--tmpfs", SCRATCH]
    for name in (_INSIDE, _CALCULATOR):
        arguments += ["--ro-bind", str(_PROJECT / name), f"/sandbox/{name}"]
    return [*arguments, "--remount-ro", "/", "--chdir", SCRATCH, "--"]


def _fresh_uid() -> int:
    """A user that no other sandbox is, so that its process count is its own and it can signal nobody else."""
    first, length = _free_uids()
    return first + 1 + next(_counter) % (length - 1)


def workspace_owner() -> int:
    """The one user that owns every workspace, so that its files are at hand in whichever sandbox comes next."""
    return _free_uids()[0]


def _free_uids() -> tuple[int, int]:
    """First and number of user ids that nobody else has."""
    first, length = 2_000_000_000, 100_000_000
    for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines():
        start, _, count = (int(field) for field in line.split())
        if start == 0 and count < first + length:
            first, length = max(1, count - 4096), min(4095, count - 1)
    return first, length
