"""The child's end of the channel: synchronous, standard library and msgspec only.

Invariant: the process does not outlive its parent. The kernel kills it when the parent dies, and where that is not
possible `poll` raises `ParentGone` at the end of the stream. While a call is open a small thread sends a sign of life, so
that a long computation is not mistaken for a dead process.
"""

import ctypes
import select
import signal
import socket
import sys
import threading
from typing import NamedTuple

from headrace.processes.frames import Frame, FrameError, FrameReader, Kind, encode_frame

HEARTBEAT_S = 1.0
_READ_BYTES = 1 << 18
_PR_SET_PDEATHSIG = 1


class ParentGone(Exception):
    """The parent closed the channel or died: stop at once."""


class Call(NamedTuple):
    """A request that has to be ended by `reply`, `reject` or `fail`.

    Attributes:
        call_id: names it in the answer.
        method: what is asked.
        payload: its argument.
    """

    call_id: int
    method: str
    payload: bytes


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent dies; does nothing where there is no such call."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


class Server:
    """Answers the parent's calls. Sends `hello` at once: whoever constructs it is ready."""

    def __init__(self, fd: int, hello: bytes = b"") -> None:
        die_with_parent()
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)
        self._readable = select.poll()
        self._readable.register(fd, select.POLLIN)
        self._reader = FrameReader()
        self._send_lock = threading.Lock()
        self._open: set[int] = set()
        self._busy = threading.Event()
        self._send(Frame(Kind.HELLO, 0, payload=hello))
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def poll(self, timeout_s: float | None) -> list[Call]:
        """Calls that have arrived, in order; waits for the first at most `timeout_s`, None for ever, 0 not at all.

        Raises:
            ParentGone: when the parent has closed the channel.
        """
        calls: list[Call] = []
        wait_ms = None if timeout_s is None else max(0, round(timeout_s * 1000))
        while not calls and self._readable.poll(wait_ms):
            data = self._receive()
            calls = [Call(frame.call_id, frame.text, frame.payload) for frame in self._reader.feed(data)]
        if calls:
            self._open.update(call.call_id for call in calls)
            self._busy.set()
        return calls

    def reply(self, call_id: int, payload: bytes) -> None:
        """Ends the call with its result; one that is over the frame bound ends it as failed."""
        try:
            self._end(Frame(Kind.REPLY, call_id, payload=payload))
        except FrameError as error:
            self.fail(call_id, str(error))

    def item(self, call_id: int, payload: bytes) -> None:
        """One item of a streamed call, which stays open."""
        self._send(Frame(Kind.ITEM, call_id, payload=payload))

    def reject(self, call_id: int, message: str) -> None:
        """Ends the call: nothing was executed, and asking again is safe."""
        self._end(Frame(Kind.REJECT, call_id, message))

    def fail(self, call_id: int, message: str) -> None:
        """Ends the call: it may have taken effect."""
        self._end(Frame(Kind.FAIL, call_id, message))

    def _end(self, frame: Frame) -> None:
        self._open.discard(frame.call_id)
        if not self._open:
            self._busy.clear()
        self._send(frame)

    def _send(self, frame: Frame) -> None:
        data = encode_frame(frame)
        with self._send_lock:
            try:
                self._socket.sendall(data)
            except (BrokenPipeError, ConnectionResetError) as error:
                raise ParentGone from error

    def _receive(self) -> bytes:
        try:
            data = self._socket.recv(_READ_BYTES)
        except ConnectionResetError as error:
            raise ParentGone from error
        if not data:
            raise ParentGone
        return data

    def _beat(self) -> None:
        pause = threading.Event()
        try:
            while True:
                self._busy.wait()
                pause.wait(HEARTBEAT_S)
                if self._busy.is_set():
                    self._send(Frame(Kind.BEAT, 0))
        except ParentGone:
            return
