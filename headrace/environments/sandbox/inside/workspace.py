"""One call on a workspace: its files come in as read-only folders, and what the call changed goes out as records.

The call's processes are ended before its changes are read, so nothing of them but files is left. Nothing here is trusted by
the outside: what a call says of its workspace is all that it can say of it.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import stat
import sys
import time
from pathlib import Path
from typing import NamedTuple, TypedDict

from headrace.environments.sandbox.inside import wire
from headrace.environments.sandbox.inside.bounded import Bounded
from headrace.environments.sandbox.inside.confine import SCRATCH

WORKSPACE, BELOW, LAYERS = "/workspace", "/below", "/layers"
MAX_DEPTH = 32
_NOSUID, _NODEV, _DETACH = 2, 4, 2
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_READ_BYTES = 1 << 16
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": SCRATCH,
    "TMPDIR": SCRATCH,
    "LANG": "C.UTF-8",
    # Files of equal size keep no time that tells them apart.
    "PYTHONDONTWRITEBYTECODE": "1",
}


class Place(TypedDict):
    """How the workspace comes in: the number of folders below it, whether as an overlay, and what may be written."""

    layers: int
    is_overlay: bool
    size_bytes: int
    files: int
    uid: int | None


class Workspace:
    """The mounted workspace, and one call on it."""

    def __init__(self, place: Place, output_bytes: int) -> None:
        self._output = Bounded(output_bytes)
        self._uid = place["uid"]
        libc = ctypes.CDLL(None, use_errno=True)
        where = LAYERS if place["is_overlay"] else WORKSPACE
        options = f"size={place['size_bytes']},nr_inodes={place['files']},mode=755"
        _check(libc.mount(b"tmpfs", where.encode(), b"tmpfs", _NOSUID | _NODEV, options.encode()), "tmpfs")
        below = [f"{BELOW}/{index}" for index in range(place["layers"])]
        if place["is_overlay"]:
            for name in ("upper", "work"):
                Path(LAYERS, name).mkdir()
            self._give(f"{LAYERS}/upper")
            layers = f"lowerdir={':'.join(below)},upperdir={LAYERS}/upper,workdir={LAYERS}/work,userxattr"
            _check(libc.mount(b"overlay", WORKSPACE.encode(), b"overlay", _NOSUID | _NODEV, layers.encode()), "overlay")
            self._changed = os.open(f"{LAYERS}/upper", _FOLDER_FLAGS)
            self._below: int | None = None
            libc.umount2(LAYERS.encode(), _DETACH)
        else:
            self._copy(below[0], WORKSPACE)
            self._give(WORKSPACE)
            self._below = os.open(below[0], _FOLDER_FLAGS)
            self._changed = -1
        for folder in below:
            libc.umount2(folder.encode(), _DETACH)

    def serve(self, fd: int) -> None:
        """Answers one call, with its changes, and ends."""
        request = wire.receive(fd)
        if request is None:
            return
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # its descriptors lead past the overlay
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # an orphan that is stopped is then waited for
        call = json.loads(request.payload)
        status, code = self._run(call["tool"], call["code"], call["timeout_s"])
        stopped = _end_others()
        shown, total = self._output.take()
        refused, records, walk = "", b"", _Walk()
        try:
            merged = os.open(WORKSPACE, _FOLDER_FLAGS)
            walk.visit(b"", _Folders(merged, self._changed, self._below), 0)
            records = b"".join(walk.records)
        except (OSError, ValueError, MemoryError) as error:
            refused = f"{type(error).__name__}: {error}"[:200]
        head = {
            "status": status,
            "code": code,
            "output_bytes": total,
            "stopped": 0 if status == "T" else stopped,
            "special": walk.special,
            "refused": refused,
        }
        payload = _chunk(json.dumps(head).encode("utf-8", "backslashreplace")) + _chunk(shown) + records
        wire.send(fd, wire.REPLY, request.call_id, payload=payload)

    def _give(self, path: str) -> None:
        if self._uid is not None:
            os.chown(path, self._uid, self._uid, follow_symlinks=False)

    def _copy(self, source: str, target: str) -> None:
        for entry in os.scandir(source):
            place = f"{target}/{entry.name}"
            if entry.is_symlink():
                Path(place).symlink_to(Path(entry.path).readlink())
            elif entry.is_dir():
                Path(place).mkdir()
                self._copy(entry.path, place)
            else:
                shutil.copy(entry.path, place)
            self._give(place)

    def _run(self, tool: str, code: str, timeout_s: float) -> tuple[str, int]:
        """One letter (O, E an exit status other than 0, K a signal, T the deadline) and the status or signal."""
        if tool == "shell":
            command = ["/bin/sh", "-c", code]
        else:
            command = [sys.executable, "-s", "-S", "-E", "-B", "-X", "utf8", "-c", code]
        deadline = time.monotonic() + timeout_s
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become_tool(command, write_fd)
        os.close(write_fd)
        os.set_blocking(read_fd, False)
        pid_fd = os.pidfd_open(pid)
        sources = [read_fd, pid_fd]
        while True:
            ready, _, _ = select.select(sources, [], [], max(deadline - time.monotonic(), 0.0))
            if not ready:
                self._output.add(f"\n[no end within {timeout_s:g} s; the call was stopped]".encode())
                return "T", 0
            data = _read_now(read_fd)
            self._output.add(data or b"")
            if data == b"":
                sources = [pid_fd]  # closed by everybody: it would be ready for ever
            if not data and pid_fd in ready:
                break
        _, status = os.waitpid(pid, 0)
        code_or_signal = os.waitstatus_to_exitcode(status)
        if code_or_signal == 0:
            return "O", 0
        return ("E", code_or_signal) if code_or_signal > 0 else ("K", -code_or_signal)


class _Folders(NamedTuple):
    """One folder three times: as it is, with its changed names alone, and as it was; -1 and None without them."""

    merged: int
    changed: int
    below: int | None

    def inner(self, name: bytes) -> "_Folders":
        merged = _open_folder(name, self.merged)
        changed = -1 if self.changed < 0 else os.open(name, _FOLDER_FLAGS, dir_fd=self.changed)
        return _Folders(merged, changed, None if self.below is None else _maybe_folder(name, self.below))

    def close(self) -> None:
        for fd in self:
            if fd is not None and fd >= 0:
                os.close(fd)


class _Walk:
    """Reads what changed.

    Attributes:
        records: of everything that was found.
        special: number of things that are no file, folder or link.
    """

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.special = 0

    def visit(self, path: bytes, folders: _Folders, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ValueError(f"folders are deeper than {MAX_DEPTH}")
        kept: list[bytes] = []
        for name in sorted(map(os.fsencode, os.listdir(folders.merged))):  # noqa: PTH208 - a descriptor has no path
            mode = os.stat(name, dir_fd=folders.merged, follow_symlinks=False).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                self.special += 1
                continue
            kept.append(name)
            if folders.changed < 0 or _exists(name, folders.changed):
                full = path + b"/" + name if path else name
                if stat.S_ISDIR(mode):
                    self._enter(name, full, folders, depth)
                elif stat.S_ISLNK(mode):
                    self.records.append(b"L" + _chunk(full) + _chunk(os.readlink(name, dir_fd=folders.merged)))
                else:
                    self.records += _file_records(name, full, folders)
        self.records.append(b"N" + _chunk(path) + _chunk(b"\0".join(kept)))

    def _enter(self, name: bytes, path: bytes, folders: _Folders, depth: int) -> None:
        self.records.append(b"D" + _chunk(path) + _chunk(b""))
        inner = folders.inner(name)
        self.visit(path, inner, depth + 1)
        inner.close()


def _become_tool(command: list[str], write_fd: int) -> None:
    """Never returns."""
    try:
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (write_fd, 1), (write_fd, 2)):
            os.dup2(source, target)
        os.chdir(WORKSPACE)
        os.execve(command[0], command, _ENVIRONMENT)  # noqa: S606 - the call itself
    except (OSError, ValueError) as error:
        os.write(2, f"cannot start: {error}\n".encode("utf-8", "backslashreplace"))
    finally:
        os._exit(127)


def _read_now(fd: int) -> bytes | None:
    """Output that is there; None when there is none yet, empty at its end."""
    try:
        return os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return None


def _end_others() -> int:
    """How many processes of the call were left; none is any more."""
    me, living = os.getpid(), 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) not in (1, me):
            with contextlib.suppress(OSError):
                state = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
                living += state != "Z"
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    return living


def _open_folder(name: bytes, parent: int) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=parent)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=parent)
        return os.open(name, _FOLDER_FLAGS, dir_fd=parent)


def _maybe_folder(name: bytes, parent: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.open(name, _FOLDER_FLAGS, dir_fd=parent)
    return None


def _exists(name: bytes, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _file_records(name: bytes, path: bytes, folders: _Folders) -> list[bytes]:
    """One record, none for a file that is as it was below."""
    data, is_program = _read(name, folders.merged)
    if folders.below is not None:
        with contextlib.suppress(OSError):
            if _read(name, folders.below) == (data, is_program):
                return []
    return [(b"X" if is_program else b"F") + _chunk(path) + _chunk(data)]


def _read(name: bytes, folder: int) -> tuple[bytes, bool]:
    try:
        fd = os.open(name, _FILE_FLAGS, dir_fd=folder)
    except PermissionError:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        os.chmod(name, 0o600 | stat.S_IMODE(mode), dir_fd=folder)
        fd = os.open(name, _FILE_FLAGS, dir_fd=folder)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("no regular file")
        return file.read(), bool(status.st_mode & 0o100)


def _chunk(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"the {what} cannot be mounted: {os.strerror(ctypes.get_errno())}")
