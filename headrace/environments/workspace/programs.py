"""Programs of this machine that a sandbox is shown, with the libraries that they load.

Invariant: nothing but the named programs and what they need is shown; the version of the environment is made of their bytes.
"""

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.environments.sandbox.python_root import PythonRoot

_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


class Programs(msgspec.Struct, frozen=True):
    """What to show.

    Attributes:
        shown: pairs of a file of this machine and where it is shown.
        missing: names that this machine has no program for.
        digest: hash over the bytes of all files.
    """

    shown: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    digest: str


def find_programs(names: Sequence[str], root: PythonRoot) -> Programs:
    """The named programs; about 3 ms each.

    Raises:
        OSError: when a file cannot be read or its libraries cannot be listed.
    """
    loader = next((path for path in root.visible if Path(path).name.startswith("ld-")), None)
    shown: dict[str, str] = {"/usr/bin/python3": root.executable}
    missing: list[str] = []
    for name in dict.fromkeys(names):
        found = shutil.which(name, path=_PATH)
        if found is None:
            missing.append(name)
            continue
        program = str(Path(found).resolve())
        shown[f"/usr/bin/{name}"] = program
        if name == "sh":
            shown["/bin/sh"] = program
        if loader is not None:
            shown |= {library: library for library in _libraries(loader, program)}
    for place in [place for place in shown if place in root.visible]:
        del shown[place]
    digest = hashlib.sha256()
    for place, file in sorted(shown.items()):
        digest.update(place.encode() + b"\0" + hashlib.sha256(Path(file).read_bytes()).digest())
    pairs = tuple((file, place) for place, file in sorted(shown.items()))
    return Programs(pairs, tuple(missing), digest.hexdigest())


def _libraries(loader: str, program: str) -> list[str]:
    answer = subprocess.run([loader, "--list", program], capture_output=True, check=False, env={}, timeout=60)
    lines = answer.stdout.decode(errors="replace").splitlines() if answer.returncode == 0 else []
    paths = [line.partition("=>")[2].split()[0] for line in lines if "=>" in line and line.partition("=>")[2].split()]
    return [path for path in paths if path.startswith("/") and Path(path).is_file()]
