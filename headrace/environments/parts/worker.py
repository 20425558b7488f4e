"""The process of one episode: an instance of the part, and the calls on it one after the other.

Invariant: a `ToolError` is an answer; any other exception ends the process, for nobody knows what it left behind.
"""

import asyncio
import inspect
import os
import resource
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from headrace.environments.parts.messages import Answer, Ask, Method, PartSettings
from headrace.extend.problems import Problem
from headrace.extend.signatures import Tool, ToolError, as_bytes, tools_of
from headrace.processes.frames import Frame, FrameReader, Kind, encode_frame
from headrace.processes.serve import die_with_parent
from headrace.records.execution import ExecutionStatus, Metering

HOOKS = frozenset({"claim", "artifact", "close"})
_READ_BYTES = 1 << 16


class EpisodeWorker:
    """Calls of one episode on one instance."""

    def __init__(self, part: Any, settings: PartSettings) -> None:
        self._part = part
        self._settings = settings
        self._instance: Any = None
        self._tools: dict[str, Tool] = {}
        self._runner = asyncio.Runner()
        self._methods: dict[Method, Callable[[Ask], Answer]] = {
            Method.OPEN: self._open,
            Method.CALL: self._call,
            Method.CLAIM: self._claim,
            Method.ARTIFACT: self._artifact,
            Method.CLOSE: self._close,
        }

    def serve(self, channel: socket.socket, host: int) -> NoReturn:
        """Answers until the host is gone."""
        die_with_parent()
        if os.getppid() != host:  # it died before the kernel was asked
            os._exit(0)
        if self._settings.memory_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (self._settings.memory_bytes, self._settings.memory_bytes))
        reader = FrameReader()
        while data := channel.recv(_READ_BYTES):
            for frame in reader.feed(data):
                channel.sendall(encode_frame(self.answer(frame)))
        os._exit(0)

    def answer(self, frame: Frame) -> Frame:
        """The frame that answers; a FAIL one names the exception and where it was raised."""
        ask = msgspec.msgpack.decode(frame.payload, type=Ask)
        start_s, before = time.monotonic(), _usage()
        try:
            answer = self._methods[Method(frame.text)](ask)
        except ToolError as error:
            answer = self._shown(f"error: {error}".encode("utf-8", "backslashreplace"), ExecutionStatus.TOOL_ERROR)
        except MemoryError:
            answer = self._shown(b"the memory limit was reached", ExecutionStatus.OUT_OF_MEMORY)
        except Exception as error:  # boundary: a user's code raises what it likes
            return Frame(Kind.FAIL, frame.call_id, _described(error))
        after = _usage()
        metering = Metering(time.monotonic() - start_s, after[0] - before[0], after[1])
        payload = msgspec.msgpack.encode(msgspec.structs.replace(answer, metering=metering))
        return Frame(Kind.REPLY, frame.call_id, payload=payload)

    def _open(self, ask: Ask) -> Answer:
        if inspect.isclass(self._part):
            problem = Problem(ask.question, difficulty=ask.difficulty, data=ask.data)
            arguments = (problem,) if inspect.signature(self._part).parameters else ()
            make: Callable[..., Any] = self._part
            self._instance = make(*arguments)
        else:
            self._instance = self._part
        self._tools = {tool.name: tool for tool in tools_of(self._instance, HOOKS)}
        return Answer()

    def _call(self, ask: Ask) -> Answer:
        tool = self._tools.get(ask.text)
        if tool is None:
            raise ToolError(f"unknown tool {ask.text[:64]}")
        return self._shown(as_bytes(self._run(tool.function, **tool.read(ask.arguments))), ExecutionStatus.OK)

    def _claim(self, ask: Ask) -> Answer:
        claimed = self._run(self._instance.claim, ask.text)
        if claimed is not None and not isinstance(claimed, bool):
            raise TypeError(f"claim returned {claimed!r}; True, False or None is needed")
        return Answer(claim=claimed)

    def _artifact(self, ask: Ask) -> Answer:
        del ask
        output = as_bytes(self._run(self._instance.artifact))
        if len(output) > self._settings.output_bytes:
            raise ValueError(f"an artifact of {len(output)} bytes; output_bytes allows {self._settings.output_bytes}")
        return Answer(output=output, output_bytes=len(output))

    def _close(self, ask: Ask) -> Answer:
        del ask
        self._run(self._instance.close)
        return Answer()

    def _run(self, function: Callable[..., Any], /, *positional: Any, **named: Any) -> Any:
        value = function(*positional, **named)
        return self._runner.run(_awaited(value)) if inspect.isawaitable(value) else value

    def _shown(self, output: bytes, status: ExecutionStatus) -> Answer:
        return Answer(status, output[: self._settings.output_bytes], len(output))


async def _awaited(value: Any) -> Any:
    return await value


def _usage() -> tuple[float, int]:
    """CPU seconds and the highest resident size of this process and its children."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return cpu_s, max(own.ru_maxrss, children.ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def _described(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno} in {last.name})"[:1000]
