"""The child's loop: frames of the child protocol in, calls of an asynchronous Inference port out.

Invariant: calls start in the order of their arrival; each is answered, and one that nobody waits for any more is cancelled.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable

import msgspec

from headrace.errors import InferenceError, Outcome
from headrace.inference.messages import (
    AbandonCall,
    ActivateCall,
    GenerateCall,
    RequestIds,
    ScoreCall,
    Scores,
    StageCall,
    TurnPart,
    decode,
    encode,
)
from headrace.ports import Inference, TurnTiming
from headrace.processes.serve import Call, ParentGone, Server
from headrace.records.arrays import as_int32
from headrace.records.segment import TokenSegment

_NO_DEADLINE_S = 1e9
"""The parent keeps the deadlines and abandons what misses them."""


async def serve_port(inference: Inference, server: Server) -> None:
    """Serves until the parent is gone. Raises whatever is not an `InferenceError`."""
    desk = _Desk(inference, server)
    loop = asyncio.get_running_loop()

    def read() -> None:
        # A thread, since the channel's end in a child is synchronous.
        try:
            while True:
                for call in server.poll(None):
                    loop.call_soon_threadsafe(desk.take, call)
        except ParentGone:
            loop.call_soon_threadsafe(desk.leave)

    threading.Thread(target=read, name="channel", daemon=True).start()
    try:
        await desk.end
    finally:
        await desk.close()


class _Desk:
    """The calls that are open."""

    def __init__(self, inference: Inference, server: Server) -> None:
        self._inference = inference
        self._server = server
        self._generations: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._methods: dict[str, Callable[[bytes], Awaitable[bytes]]] = {
            "interrupt": self._interrupt,
            "abandon": self._abandon,
            "stage": self._stage,
            "activate": self._activate,
            "score": self._score,
            "pause": self._pause,
            "resume": self._resume,
        }

    def take(self, call: Call) -> None:
        """Starts the call."""
        task = asyncio.create_task(self._answer(call), name=f"{call.method}/{call.call_id}")
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def leave(self) -> None:
        """There is nobody to serve any more."""
        if not self.end.done():
            self.end.set_result(None)

    async def close(self) -> None:
        """Cancels what is open."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.end.done():
            self.end.set_exception(error)

    async def _answer(self, call: Call) -> None:
        with contextlib.suppress(ParentGone):
            try:
                if call.method == "generate":
                    await self._generate(call)
                elif call.method in self._methods:
                    self._server.reply(call.call_id, await self._methods[call.method](call.payload))
                else:
                    self._server.reject(call.call_id, f"no method {call.method!r}")
            except InferenceError as error:
                end = self._server.reject if error.outcome is Outcome.REJECTED else self._server.fail
                end(call.call_id, str(error))
            except msgspec.MsgspecError as error:
                self._server.reject(call.call_id, f"{call.method}: payload cannot be read: {error}")

    async def _generate(self, call: Call) -> None:
        asked = decode(call.payload, GenerateCall)
        task = asyncio.current_task()
        assert task is not None
        self._generations[asked.ticket] = task
        segments: list[TokenSegment] = []
        timing: TurnTiming | None = None
        try:
            async for item in self._inference.generate(asked.request, _NO_DEADLINE_S):
                if isinstance(item, TurnTiming):
                    timing = item
                else:
                    segments.append(item)
        except asyncio.CancelledError:
            self._server.fail(call.call_id, f"{asked.request.request_id} was abandoned")
            raise
        finally:
            del self._generations[asked.ticket]
        self._server.reply(call.call_id, encode(TurnPart(tuple(segments), timing)))

    async def _abandon(self, payload: bytes) -> bytes:
        task = self._generations.get(decode(payload, AbandonCall).ticket)
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        return b""

    async def _interrupt(self, payload: bytes) -> bytes:
        await self._inference.interrupt(decode(payload, RequestIds).ids, _NO_DEADLINE_S)
        return b""

    async def _stage(self, payload: bytes) -> bytes:
        call = decode(payload, StageCall)
        await self._inference.stage(call.policy, call.weights, _NO_DEADLINE_S)
        return b""

    async def _activate(self, payload: bytes) -> bytes:
        call = decode(payload, ActivateCall)
        return encode(await self._inference.activate(call.policy, frozenset(call.keep), _NO_DEADLINE_S))

    async def _pause(self, payload: bytes) -> bytes:
        return encode(await self._inference.pause(_NO_DEADLINE_S))

    async def _resume(self, payload: bytes) -> bytes:
        return encode(await self._inference.resume(_NO_DEADLINE_S))

    async def _score(self, payload: bytes) -> bytes:
        call = decode(payload, ScoreCall)
        scores = await self._inference.score([as_int32(ids) for ids in call.ids], call.version, _NO_DEADLINE_S)
        return encode(Scores(tuple(scores)))
