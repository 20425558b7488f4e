"""The host of a part: loads it once, forks a process for each episode, and stands between them and the parent.

Invariant: an episode's process holds no descriptor but its own channel; a call that misses its deadline costs its own
episode the process and no other; a process that is gone is reaped.

* consumes: calls of the parent.
* waits for: a call, an answer of an episode's process, or the next deadline.
* produces: one answer per call.
"""

import inspect
import os
import select
import signal
import socket
import time
from collections import deque
from typing import Any

import msgspec

from headrace.environments.parts.messages import Answer, Ask, Hello, Method, PartSettings
from headrace.environments.parts.worker import HOOKS, EpisodeWorker
from headrace.extend.signatures import tools_of
from headrace.processes.frames import Frame, FrameReader, Kind, encode_frame
from headrace.processes.serve import Call, ParentGone, Server
from headrace.records.action import EffectClass
from headrace.records.execution import ExecutionStatus, Metering

RESTARTED = b"[a fresh environment: what earlier calls did is gone]\n"
_READ_BYTES = 1 << 16


def hello_of(part: Any) -> Hello:
    """What there is to know of a part. Raises ConfigError when it has no tools."""
    tools = tuple(tool.schema for tool in tools_of(part, HOOKS))
    declared = getattr(part, "effect", None)
    hooks = frozenset(name for name in HOOKS if inspect.isclass(part) and callable(getattr(part, name, None)))
    return Hello(tools, None if declared is None else EffectClass(declared), inspect.isclass(part), hooks)


class _Episode:
    """One episode, with its process while it has one."""

    def __init__(self, opened: Ask) -> None:
        self.opened = opened
        self.pid = 0
        self.channel: socket.socket | None = None
        self.reader = FrameReader()
        self.waiting: deque[tuple[Call, Ask]] = deque()
        self.running: tuple[Call, Ask] | None = None
        self.deadline_s = float("inf")
        self.start_s = 0.0
        self.is_restarted = False


class Host:
    """Serves one part."""

    def __init__(self, part: Any, settings: PartSettings, fd: int) -> None:
        self._part = part
        self._settings = settings
        self._fd = fd
        self._server = Server(fd, msgspec.msgpack.encode(hello_of(part)))
        self._episodes: dict[str, _Episode] = {}

    def serve(self) -> None:
        """Serves until the parent is gone."""
        try:
            while True:
                self._wait()
                for call in self._server.poll(0.0):
                    self._take(call)
                for episode in list(self._episodes.values()):
                    if episode.running is not None and time.monotonic() >= episode.deadline_s:
                        self._overdue(episode)
        except ParentGone:
            return

    def _wait(self) -> None:
        """Returns when there is something to do; reads what episodes answered."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        by_fd = {episode.channel.fileno(): episode for episode in self._episodes.values() if episode.channel}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        deadline_s = min((episode.deadline_s for episode in self._episodes.values()), default=float("inf"))
        left_ms = None if deadline_s == float("inf") else max(0, round((deadline_s - time.monotonic()) * 1000) + 1)
        for fd, _ in poll.poll(left_ms):
            if fd in by_fd:
                self._hear(by_fd[fd])

    def _take(self, call: Call) -> None:
        ask = msgspec.msgpack.decode(call.payload, type=Ask)
        episode = self._episodes.get(ask.session)
        if call.method == Method.OPEN.value:
            episode = self._episodes[ask.session] = _Episode(ask)
            if not inspect.isclass(self._part):  # its process is forked by the first call
                self._server.reply(call.call_id, msgspec.msgpack.encode(Answer()))
                return
        if episode is None:
            self._server.reject(call.call_id, f"{ask.session} is not open here")
            return
        if call.method == Method.CLOSE.value and not self._has_close_hook(episode):
            self._end(episode)
            del self._episodes[ask.session]
            self._server.reply(call.call_id, msgspec.msgpack.encode(Answer()))
            return
        episode.waiting.append((call, ask))
        self._next(episode)

    def _has_close_hook(self, episode: _Episode) -> bool:
        return episode.channel is not None and inspect.isclass(self._part) and hasattr(self._part, "close")

    def _next(self, episode: _Episode) -> None:
        """Sends the next request to the episode's process, which is forked where there is none."""
        if episode.running is not None or not episode.waiting:
            return
        call, ask = episode.waiting.popleft()
        if episode.channel is None:
            self._fork(episode)
            if call.method != Method.OPEN.value:  # the instance is made first
                self._send(episode, Frame(Kind.CALL, 0, Method.OPEN.value, msgspec.msgpack.encode(episode.opened)))
        episode.running = (call, ask)
        episode.start_s = time.monotonic()
        episode.deadline_s = episode.start_s + ask.timeout_s
        self._send(episode, Frame(Kind.CALL, call.call_id, call.method, call.payload))

    def _send(self, episode: _Episode, frame: Frame) -> None:
        assert episode.channel is not None
        try:
            episode.channel.sendall(encode_frame(frame))
        except OSError:
            return  # it is gone, which the next read reports

    def _fork(self, episode: _Episode) -> None:
        ours, theirs = socket.socketpair()
        host = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                for other in [self._fd, ours.fileno()]:
                    os.close(other)
                for other in self._episodes.values():
                    if other.channel is not None:
                        other.channel.close()
                EpisodeWorker(self._part, self._settings).serve(theirs, host)
            finally:
                os._exit(70)
        theirs.close()
        episode.pid, episode.channel, episode.reader = pid, ours, FrameReader()

    def _hear(self, episode: _Episode) -> None:
        assert episode.channel is not None
        try:
            data = episode.channel.recv(_READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self._died(episode)
            return
        for frame in episode.reader.feed(data):
            self._answered(episode, frame)

    def _answered(self, episode: _Episode, frame: Frame) -> None:
        if frame.kind is Kind.FAIL:
            running, episode.running = episode.running, None
            self._end(episode)
            if running is not None:
                self._server.fail(running[0].call_id, frame.text)
            self._next(episode)
            return
        if episode.running is None or frame.call_id == 0:
            return  # the instance was made ahead of its first call
        call, ask = episode.running
        episode.running, episode.deadline_s = None, float("inf")
        payload = frame.payload
        if episode.is_restarted and call.method == Method.CALL.value:
            episode.is_restarted = False
            payload = _with_notice(payload)
        if call.method == Method.CLOSE.value:
            self._end(episode)
            del self._episodes[ask.session]
        self._server.reply(call.call_id, payload)
        self._next(episode)

    def _died(self, episode: _Episode) -> None:
        status, _ = self._end(episode, is_killed=False)
        running, episode.running = episode.running, None
        if running is not None:
            self._server.fail(running[0].call_id, f"its process ended with {os.waitstatus_to_exitcode(status)}")
        self._next(episode)

    def _overdue(self, episode: _Episode) -> None:
        """A call that hangs is an outcome: its process ends, and the next call finds a fresh one."""
        assert episode.running is not None
        (call, ask), episode.running = episode.running, None
        _, cpu_s = self._end(episode)
        if call.method == Method.CALL.value:
            episode.is_restarted = inspect.isclass(self._part)
            text = f"no answer within {ask.timeout_s:g} s; it was stopped".encode()
            metering = Metering(time.monotonic() - episode.start_s, cpu_s)
            answer = Answer(ExecutionStatus.TIMEOUT, text, len(text), metering)
            self._server.reply(call.call_id, msgspec.msgpack.encode(answer))
        elif call.method == Method.CLOSE.value:
            del self._episodes[ask.session]
            self._server.reply(call.call_id, msgspec.msgpack.encode(Answer()))
        else:
            self._server.fail(call.call_id, f"{call.method} did not end within {ask.timeout_s:g} s")
        self._next(episode)

    def _end(self, episode: _Episode, *, is_killed: bool = True) -> tuple[int, float]:
        """Reaps the episode's process; its wait status and CPU seconds."""
        episode.deadline_s = float("inf")
        if episode.channel is None:
            return 0, 0.0
        episode.channel.close()
        episode.channel = None
        if is_killed:
            os.kill(episode.pid, signal.SIGKILL)
        _, status, usage = os.wait4(episode.pid, 0)
        return status, usage.ru_utime + usage.ru_stime


def _with_notice(payload: bytes) -> bytes:
    answer = msgspec.msgpack.decode(payload, type=Answer)
    replaced = msgspec.structs.replace(
        answer, output=RESTARTED + answer.output, output_bytes=len(RESTARTED) + answer.output_bytes
    )
    return msgspec.msgpack.encode(replaced)
