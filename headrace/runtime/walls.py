"""What a process of ours may see: name spaces around a worker that needs nothing of a run but its channel.

Invariant: behind the walls there are the interpreter, installed packages and this package, all read-only, and an empty
`/tmp`; no network, no other process, no run folder, no home folder, no environment variable of the parent's.
"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import headrace
from headrace.processes.bubblewrap import find_bubblewrap

PACKAGE = Path(headrace.__file__).resolve().parent
_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp", "OMP_NUM_THREADS": "1"}  # noqa: S108

_TRY_S = 10.0


def isolated_python(module: str, *arguments: str) -> list[str]:
    """A command that runs `main` of a module of ours in an isolated interpreter.

    Neither the current folder, the environment nor a user's `sitecustomize` decides what it imports.
    """
    code = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); from {module} import main; main()"
    return [sys.executable, "-I", "-B", "-c", code, *arguments]


def walled(argv: Sequence[str], files: Sequence[Path] = ()) -> list[str]:
    """The command with walls around it, and the files inside.

    Bubblewrap has to work here, as it does where the tools' sandbox has name spaces.
    """
    program = find_bubblewrap()
    assert program is not None
    # Only an ordinary user needs a user name space; root keeps its own and gives the user up later.
    users = [] if os.geteuid() == 0 else ["--unshare-user"]
    names = ("pid", "net", "ipc", "uts")
    arguments = [program, *users, *(f"--unshare-{name}" for name in names), "--unshare-cgroup-try"]
    arguments += ["--die-with-parent", "--as-pid-1", "--new-session", "--hostname", "grader", "--clearenv"]
    for name, value in _ENVIRONMENT.items():
        arguments += ["--setenv", name, value]
    # First the empty /tmp: the interpreter or this package may lie below it.
    arguments += ["--perms", "1777", "--tmpfs", "/tmp"]  # noqa: S108
    for path in visible():
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
            continue
        arguments += _shown(path)
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    for file in files:
        arguments += _shown(file)
    return [*arguments, "--remount-ro", "/", "--chdir", "/", "--", *argv]


def _shown(path: Path) -> list[str]:
    """Arguments that show a file or folder at its own place, read-only."""
    # A folder that bubblewrap makes on the way would be closed to another user; /tmp is there already.
    folders = [folder for folder in reversed(path.parents[:-1]) if str(folder) != "/tmp"]  # noqa: S108
    made = [part for folder in folders for part in ("--perms", "0755", "--dir", str(folder))]
    return [*made, "--ro-bind", str(path), str(path)]


def can_be_walled() -> bool:
    """Whether bubblewrap works here; tried once, which takes a few hundredths of a second."""
    if find_bubblewrap() is None:
        return False
    try:
        tried = subprocess.run(
            walled([sys.executable, "-I", "-c", ""]), timeout=_TRY_S, capture_output=True, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


def is_readable_by_anyone(*, through_parents: bool) -> bool:
    """Whether another user can read the interpreter and the packages, so that a worker may become one."""
    paths = [path for path in _own() for path in ([path, *path.parents] if through_parents else [path])]
    return all(path.stat().st_mode & 0o005 == 0o005 for path in paths)


def _own() -> list[Path]:
    """Folders of the interpreter, the installed packages and this package, each at the name it is imported by."""
    names = {sys.base_prefix, sys.base_exec_prefix, sys.prefix, str(PACKAGE)}
    names |= {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    return sorted(Path(name) for name in names)


def visible() -> list[Path]:
    """All that a worker behind walls sees: files, folders and links of the system, of Python and of this package."""
    shown: list[Path] = []
    for path in sorted([*map(Path, _SYSTEM), *_own()]):
        if path.exists() and not any(path.is_relative_to(other) for other in shown):
            shown.append(path)
    return shown
