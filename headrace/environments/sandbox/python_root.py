"""The smallest file tree that the standard library of this Python runs in.

Invariant: nothing but the interpreter, its standard library and the shared objects that these load is visible inside;
installed packages, the project, home folders and run folders are not.
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec

_PROBE = """
import ctypes, importlib, json, os, sys, sysconfig
folder = sysconfig.get_path("platstdlib")
for name in sorted(os.listdir(os.path.join(folder, "lib-dynload"))):
    module = name.split(".")[0]
    if not module.startswith(("_test", "_xx", "xx", "_tkinter", "readline", "_curses")):
        try:
            importlib.import_module(module)
        except ImportError:
            pass
class Info(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
names = []
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
def visit(info, size, data):
    names.append(os.fsdecode(info.contents.name or b""))
    return 0
ctypes.CDLL(None).dl_iterate_phdr(visit, None)
print(json.dumps({"stdlib": sysconfig.get_path("stdlib"), "platstdlib": folder, "libraries": names}))
"""


class PythonRoot(msgspec.Struct, frozen=True):
    """What to show inside, each at its own path.

    Attributes:
        executable: the interpreter, outside any virtual environment.
        visible: files and folders.
        hidden: folders below them that are covered, because packages are installed there.
    """

    executable: str
    visible: tuple[str, ...]
    hidden: tuple[str, ...]


@functools.cache
def find_python_root() -> PythonRoot:
    """The tree of the running Python; takes about 0.1 s once.

    Raises:
        OSError: when the interpreter cannot be run.
        ValueError: when its answer cannot be read.
    """
    executable = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    command = [executable, "-I", "-S", "-c", _PROBE]
    answer = subprocess.run(command, capture_output=True, check=False, env={}, timeout=60)
    if answer.returncode != 0:
        raise ValueError(f"{executable} cannot list its libraries: {answer.stderr.decode(errors='replace')[-500:]}")
    found = json.loads(answer.stdout)
    folders = {found["stdlib"], found["platstdlib"]}
    libraries = {name for name in found["libraries"] if name.startswith("/") and Path(name).is_file()}
    libraries = {name for name in libraries if not any(Path(name).is_relative_to(folder) for folder in folders)}
    cache = {"/etc/ld.so.cache"} if Path("/etc/ld.so.cache").is_file() else set[str]()
    hidden = [Path(folder) / name for folder in folders for name in ("site-packages", "dist-packages")]
    return PythonRoot(
        executable,
        tuple(sorted(folders)) + tuple(sorted({executable} | libraries | cache)),
        tuple(sorted({str(folder) for folder in hidden if folder.is_dir()})),
    )
