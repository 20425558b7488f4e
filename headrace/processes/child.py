"""The parent's end of a child process.

Invariant: every call ends, by its answer, by its deadline or by the loss of the child, and a child that was started is
always reaped. Nothing is polled: the channel, the process and its output are all watched by the event loop. An answer
that comes after its deadline is dropped and counted.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Self

from headrace.errors import Outcome, ProcessError
from headrace.processes.channel import Channel
from headrace.processes.frames import MAX_FRAME_BYTES, Frame, FrameError, Kind, encode_frame
from headrace.processes.output import OutputTail

EXIT_GRACE_S = 1.0
"""A child whose channel broke has so long to exit by itself, so that its own exit status is reported."""

MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""A stream whose consumer lags behind by more is ended as lost."""

MINIMAL_ENV: Mapping[str, str] = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
"""The whole environment of a child; nothing of the parent's is passed on unless it is named."""

_starts = itertools.count(1)


@dataclasses.dataclass(frozen=True)
class ChildOptions:
    """How a child is watched.

    Attributes:
        silence_s: a child that has a call open and sends nothing, not even a heartbeat, for so long is lost.
        max_frame_bytes: largest frame that is taken from it; a smaller one for a child that is not trusted.
        log_path: file that everything it writes to its standard streams is appended to.
    """

    silence_s: float = 30.0
    max_frame_bytes: int = MAX_FRAME_BYTES
    log_path: Path | None = None


class _Stream:
    """Items that arrived and were not read yet."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[bytes | ProcessError | None] = asyncio.Queue()
        self.unread_bytes = 0


class Child:
    """A running child process.

    Attributes:
        name: what it is called in messages.
        incarnation: this life of it; no two starts share one.
        pid: its process id.
        hello: payload of its first message.
        late_answers: answers dropped because their call had ended.
        exit_status: exit status, or minus the signal; None while it lives.
        is_killed_by_us: whether its parent killed it, for whatever reason.
        cpu_s: CPU seconds of it and of the descendants that were waited for; 0.0 while it lives.
    """

    def __init__(
        self, name: str, process: "subprocess.Popen[bytes]", output: OutputTail, options: ChildOptions
    ) -> None:
        """Only `start` makes one."""
        self.name = name
        self.pid = process.pid
        self.incarnation = f"{name}-{process.pid}-{next(_starts)}-{time.time_ns():x}"
        self.hello = b""
        self.late_answers = 0
        self.exit_status: int | None = None
        self.is_killed_by_us = False
        self.cpu_s = 0.0
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._process = process
        self._output = output
        self._channel = Channel(self._on_frame, options.max_frame_bytes)
        self._silence_s = options.silence_s
        self._greeted: asyncio.Future[bytes] = loop.create_future()
        self._lost: asyncio.Future[str] = loop.create_future()
        self._calls: dict[int, asyncio.Future[bytes] | _Stream] = {}
        self._last_call = 0
        self._silence_timer: asyncio.TimerHandle | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        name: str,
        argv: Sequence[str],
        *,
        start_timeout_s: float,
        env: Mapping[str, str] | None = None,
        options: ChildOptions = ChildOptions(),
    ) -> Self:
        """A child that has said hello.

        `argv` gets `--channel-fd N` appended. `env` is added to `MINIMAL_ENV`. What the child writes to its standard
        streams is kept as a bounded tail for error messages.

        Raises:
            ProcessError: REJECTED when it could not be started, died first or did not say hello in time.
        """
        ours, theirs = socket.socketpair()
        output = OutputTail(options.log_path)
        try:
            # Not asyncio's own: that one starts a thread per child to wait for it. The spawn itself is a vfork.
            process = subprocess.Popen(  # noqa: ASYNC220
                [*argv, "--channel-fd", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output.write_fd,
                stderr=output.write_fd,
                pass_fds=(theirs.fileno(),),
                env={**MINIMAL_ENV, **(env or {})},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            ours.close()
            output.close()
            raise ProcessError(f"{name}: {argv[0]} could not be started: {error}", Outcome.REJECTED) from error
        finally:
            theirs.close()
        output.watch()
        child = cls(name, process, output, options)
        try:
            await child._loop.create_unix_connection(lambda: child._channel, sock=ours)
            child._supervisor = asyncio.create_task(child._supervise(), name=f"{name}: supervisor")
            async with asyncio.timeout(start_timeout_s):
                child.hello = await child._greeted
        except TimeoutError:
            await child.close(grace_s=0.0)
            raise ProcessError(
                f"{name}: no hello within {start_timeout_s} s{output.quoted()}", Outcome.REJECTED
            ) from None
        except BaseException:
            await child.close(grace_s=0.0)
            raise
        return child

    async def call(self, method: str, payload: bytes, *, timeout_s: float) -> bytes:
        """The child's answer.

        Raises:
            ProcessError: REJECTED when the child said so or was never reached; LOST when it failed, died or missed the
                deadline.
        """
        answer: asyncio.Future[bytes] = self._loop.create_future()
        call_id = 0
        try:
            async with asyncio.timeout(timeout_s):
                call_id = await self._send(method, payload, answer)
                return await answer
        except TimeoutError:
            raise self._overdue(method, timeout_s, call_id) from None
        finally:
            self._forget(call_id)
            if answer.done() and not answer.cancelled():
                answer.exception()  # marked as seen: the deadline may have won against a failure

    async def stream(self, method: str, payload: bytes, *, timeout_s: float) -> AsyncIterator[bytes]:
        """The items of the child's answer; ends with the call. `timeout_s` covers the whole stream.

        Raises:
            ProcessError: as `call` does.
        """
        arrived = _Stream()
        deadline = self._loop.time() + timeout_s
        call_id = 0
        try:
            async with asyncio.timeout_at(deadline):
                call_id = await self._send(method, payload, arrived)
            while True:
                # The deadline is renewed for each item: a timeout must never fire while the consumer holds one.
                async with asyncio.timeout_at(deadline):
                    item = await arrived.items.get()
                if item is None:
                    return
                if isinstance(item, ProcessError):
                    raise item
                arrived.unread_bytes -= len(item)
                yield item
        except TimeoutError:
            raise self._overdue(method, timeout_s, call_id) from None
        finally:
            self._forget(call_id)

    def wait_lost(self) -> Awaitable[str]:
        """Which child is gone and why, once it is. Nobody has to await it."""
        return asyncio.shield(self._lost)

    async def close(self, grace_s: float = 2.0) -> None:
        """Closes the channel, waits for the exit, kills what is left, reaps. Safe to call twice."""
        self._channel.close("closed by its parent")
        try:
            if grace_s > 0 and self._supervisor is not None:
                async with asyncio.timeout(grace_s):
                    await asyncio.shield(self._supervisor)
        except TimeoutError:
            pass
        finally:
            self._kill()
        if self._supervisor is None:
            self._supervisor = asyncio.create_task(self._supervise(), name=f"{self.name}: supervisor")
        await asyncio.shield(self._supervisor)

    async def _send(self, method: str, payload: bytes, answer: "asyncio.Future[bytes] | _Stream") -> int:
        """Id of the call, which is registered and on its way."""
        await self._channel.writable()
        if self._lost.done() or self._channel.broken.done():
            gone = self._lost.result() if self._lost.done() else f"{self.name}: {self._channel.broken.result()}"
            raise ProcessError(f"{method} was not sent: {gone}", Outcome.REJECTED)
        call_id = self._last_call + 1
        try:
            data = encode_frame(Frame(Kind.CALL, call_id, method, payload))
        except FrameError as error:
            raise ProcessError(f"{self.name}: {method} was not sent: {error}", Outcome.REJECTED) from error
        self._last_call = call_id
        self._calls[call_id] = answer
        if self._silence_timer is None:
            self._channel.last_heard_s = self._loop.time()
            self._silence_timer = self._loop.call_later(self._silence_s, self._check_silence)
        self._channel.send(data)
        return call_id

    def _forget(self, call_id: int) -> None:
        self._calls.pop(call_id, None)

    def _overdue(self, method: str, timeout_s: float, call_id: int) -> ProcessError:
        outcome = Outcome.LOST if call_id else Outcome.REJECTED
        return ProcessError(f"{self.name}: {method} had no answer within {timeout_s} s", outcome)

    def _check_silence(self) -> None:
        self._silence_timer = None
        if not self._calls or self._lost.done():
            return
        left_s = self._channel.last_heard_s + self._silence_s - self._loop.time()
        if left_s > 0:
            self._silence_timer = self._loop.call_later(left_s, self._check_silence)
        else:
            self._channel.close(f"silent for {self._silence_s} s with {len(self._calls)} open calls")
            self._kill()

    def _on_frame(self, frame: Frame) -> None:
        """Raises FrameError when the frame cannot come from a child that keeps the protocol."""
        if frame.kind is Kind.BEAT:
            return
        if frame.kind is Kind.HELLO:
            if self._greeted.done():
                raise FrameError("a second hello")
            self._greeted.set_result(frame.payload)
            return
        if frame.kind is Kind.CALL or not 0 < frame.call_id <= self._last_call:
            raise FrameError(f"a {frame.kind.name} frame for call {frame.call_id} of {self._last_call}")
        call = self._calls.get(frame.call_id)
        if call is None:
            self.late_answers += frame.kind is not Kind.ITEM
        elif frame.kind is Kind.ITEM:
            self._on_item(frame, call)
        else:
            del self._calls[frame.call_id]
            self._end(call, frame)

    def _on_item(self, frame: Frame, call: "asyncio.Future[bytes] | _Stream") -> None:
        if not isinstance(call, _Stream):
            raise FrameError(f"an item for call {frame.call_id}, which is no stream")
        call.unread_bytes += len(frame.payload)
        if call.unread_bytes > MAX_UNREAD_BYTES:
            del self._calls[frame.call_id]
            call.items.put_nowait(ProcessError(f"{self.name}: over {MAX_UNREAD_BYTES} bytes of a stream were not read"))
        else:
            call.items.put_nowait(frame.payload)

    def _end(self, call: "asyncio.Future[bytes] | _Stream", frame: Frame) -> None:
        error: ProcessError | None = None
        if frame.kind is not Kind.REPLY:
            outcome = Outcome.REJECTED if frame.kind is Kind.REJECT else Outcome.LOST
            error = ProcessError(f"{self.name}: {frame.text}", outcome)
        if isinstance(call, _Stream):
            if error is None and frame.payload:
                call.unread_bytes += len(frame.payload)
                call.items.put_nowait(frame.payload)
            call.items.put_nowait(error)
        elif not call.done():
            if error is None:
                call.set_result(frame.payload)
            else:
                call.set_exception(error)

    async def _supervise(self) -> None:
        """Waits for the end of the process or the channel, then buries the child and ends all calls."""
        exited = self._watch_exit()
        await asyncio.wait((exited, self._channel.broken), return_when=asyncio.FIRST_COMPLETED)
        if not exited.done():
            await asyncio.wait((exited,), timeout=EXIT_GRACE_S)
            if not exited.done():
                self._kill()
                await exited
        # The leader is not reaped yet, so its group id cannot belong to anyone else: what it left behind goes too.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        status = self._reap()
        # What it sent before it died is still in the socket: an answer that arrived is an answer.
        await asyncio.wait((self._channel.broken,), timeout=EXIT_GRACE_S)
        await self._output.drained(timeout_s=EXIT_GRACE_S)
        reason = self._reason(status)
        self._channel.close(reason)
        self._lost.set_result(f"{self.name}: {reason}")
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            error = ProcessError(f"{self.name}: {reason}")
            if isinstance(call, _Stream):
                call.items.put_nowait(error)
            elif not call.done():
                call.set_exception(error)
        if not self._greeted.done():
            self._greeted.set_exception(ProcessError(f"{self.name}: {reason}", Outcome.REJECTED))

    def _watch_exit(self) -> "asyncio.Future[None]":
        exited: asyncio.Future[None] = self._loop.create_future()
        pidfd = os.pidfd_open(self.pid)

        def on_exit() -> None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
            exited.set_result(None)

        self._loop.add_reader(pidfd, on_exit)
        return exited

    def _reap(self) -> int:
        _, wait_status, usage = os.wait4(self.pid, 0)
        self.cpu_s = usage.ru_utime + usage.ru_stime
        # Popen must know, or it would wait for a process id that may be another's by then.
        self._process.returncode = self.exit_status = os.waitstatus_to_exitcode(wait_status)
        return self.exit_status

    def _reason(self, status: int) -> str:
        how = f"exit status {status}"
        if status < 0:
            try:
                how = f"killed by {signal.Signals(-status).name}"
            except ValueError:
                how = f"killed by signal {-status}"
        broken = self._channel.broken
        why = f", {broken.result()}" if broken.done() and broken.result() else ""
        return f"{how}{why}{self._output.quoted()}"

    def _kill(self) -> None:
        # Not Popen.kill: that one reaps, and only the supervisor may.
        if self.exit_status is None:
            self.is_killed_by_us = True
            os.kill(self.pid, signal.SIGKILL)
