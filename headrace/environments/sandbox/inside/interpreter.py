"""One episode's Python interpreter: names stay from call to call, whatever is printed comes back bounded.

The policy's code runs in this very process and may do anything to it. Nothing here is trusted by the outside: it bounds,
meters and times from there. What this module gives is a faithful answer to code that does not attack it.
"""

import ast
import contextlib
import io
import linecache
import os
import select
import signal
import stat
import sys
import threading
import traceback
import types

from headrace.environments.sandbox.inside import wire
from headrace.environments.sandbox.inside.bounded import Bounded
from headrace.environments.sandbox.inside.confine import SCRATCH

ARTIFACT_FOLDER = f"{SCRATCH}/artifact"
MAX_ARTIFACT_FILES = 256
_FILE_NAME = "<python>"
_READ_BYTES = 1 << 16
_LAST_DRAIN_READS = 64


class CpuTimeOver(BaseException):
    """The process used up its CPU seconds; not an Exception, so that a bare `except Exception` does not hide it."""


class Interpreter:
    """Runs code in one namespace and answers the channel."""

    def __init__(self, output_bytes: int, is_alone: bool) -> None:
        self._is_alone = is_alone
        self._pid = os.getpid()
        self._output = _Output(output_bytes)
        self._namespace: dict[str, object] = {"__name__": "__main__", "__builtins__": __builtins__}
        signal.signal(signal.SIGXCPU, _on_cpu_over)

    def serve(self, fd: int) -> None:
        """Answers until the channel closes."""
        while (request := wire.receive(fd)) is not None:
            if request.method == "artifact":
                try:
                    wire.send(fd, wire.REPLY, request.call_id, payload=collect_artifact(self._is_alone))
                except (OSError, ValueError) as error:
                    wire.send(fd, wire.REJECT, request.call_id, text=str(error))
                continue
            status = self._run(request.payload.decode("utf-8", "surrogatepass"))
            reap()
            shown, total = self._output.take()
            wire.send(fd, wire.REPLY, request.call_id, payload=status + total.to_bytes(8, "little") + shown)
            if status == b"T":
                os._exit(0)

    def _run(self, code: str) -> bytes:
        """One status letter: O, E for an exception, M for memory, T for CPU time."""
        reserve = bytearray(1 << 20)
        try:
            self._execute(code)
            status = b"O"
        except MemoryError:
            del reserve
            self._output.add(b"MemoryError: the memory limit was reached\n")
            status = b"M"
        except CpuTimeOver:
            self._output.add(b"the CPU time limit was reached; the interpreter was stopped\n")
            status = b"T"
        except BaseException as error:  # the boundary between the policy's code and the answer to it
            del reserve
            self._output.add(describe(error))
            status = b"E"
        # The code may have closed or replaced its own streams; what it printed before is in the pipe already.
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        return status

    def _execute(self, code: str) -> None:
        """Like a prompt: the value of a last expression is printed."""
        linecache.cache[_FILE_NAME] = (len(code), None, code.splitlines(keepends=True), _FILE_NAME)
        tree = ast.parse(code, _FILE_NAME)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        try:
            exec(compile(tree, _FILE_NAME, "exec"), self._namespace)  # noqa: S102 - this is what the sandbox is for
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), _FILE_NAME, "eval"), self._namespace)  # noqa: S307
                if value is not None:
                    print(repr(value))  # noqa: T201
        finally:
            # A process that the code forked arrives here as well; the answer is not its to give.
            if os.getpid() != self._pid:
                os._exit(0)


def reap() -> None:
    """Buries what ended: each counts against the process limit until then, and process 1 inherits every orphan."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _on_cpu_over(_signal: int, _frame: types.FrameType | None) -> None:
    raise CpuTimeOver


def describe(error: BaseException) -> bytes:
    """The traceback without this module's own frames; only the type's name when even that fails."""
    try:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != _FILE_NAME:
            frames = frames.tb_next
        text = "".join(traceback.format_exception(type(error), error, frames, limit=8))
    except BaseException:  # its own methods are the policy's code
        text = f"{type(error).__name__}\n"
    return text.encode("utf-8", "backslashreplace")


class _Output:
    """Everything written to descriptors 1 and 2, of which the first three quarters and the last quarter are kept."""

    def __init__(self, limit_bytes: int) -> None:
        self._kept = Bounded(limit_bytes)
        self._lock = threading.Lock()
        self._read_fd, write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        for descriptor in (1, 2):
            os.dup2(write_fd, descriptor)
        os.close(write_fd)
        raw = io.FileIO(1, "w", closefd=False)
        stream = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding="utf-8", errors="surrogateescape", line_buffering=True
        )
        sys.stdout = sys.stderr = stream
        threading.stack_size(1 << 18)
        threading.Thread(target=self._drain_for_ever, name="output", daemon=True).start()

    def add(self, data: bytes) -> None:
        """Output of the interpreter itself, in its place behind what was printed so far."""
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        with self._lock:
            self._drain(_LAST_DRAIN_READS)
            self._kept.add(data)

    def take(self) -> tuple[bytes, int]:
        """What to show and the true size; the next output starts anew."""
        with self._lock:
            self._drain(_LAST_DRAIN_READS)
            return self._kept.take()

    def _drain_for_ever(self) -> None:
        while True:
            select.select([self._read_fd], [], [])
            with self._lock:
                self._drain(1)

    def _drain(self, reads: int) -> None:
        for _ in range(reads):
            try:
                data = os.read(self._read_fd, _READ_BYTES)
            except BlockingIOError:
                return
            self._kept.add(data)


def collect_artifact(is_alone: bool) -> bytes:
    """Regular files below the artifact folder, each as name length, name, size, bytes; empty when there are none.

    Everything else is ended first, so that nothing changes while it is read; `is_alone` tells that this process sees no
    other than those of its own sandbox.
    """
    if is_alone:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL)
    parts: list[bytes] = []
    for folder, folders, names in os.walk(ARTIFACT_FOLDER):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)  # noqa: PTH118 - a name may be no valid text
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                    raise ValueError(f"artifact: {name!r} is a link or no regular file")
                relative = os.path.relpath(path, ARTIFACT_FOLDER).encode("utf-8", "surrogateescape")
                data = file.read()
            parts += [len(relative).to_bytes(4, "little"), relative, len(data).to_bytes(4, "little"), data]
            if len(parts) > 4 * MAX_ARTIFACT_FILES:
                raise ValueError(f"artifact: more than {MAX_ARTIFACT_FILES} files")
    return b"".join(parts)
