"""The loop of an engine in a child process.

Consumes: calls. Waits for: a call when idle, nothing while busy. Unblocked by: a call, or the end of the parent.
Produces: at most one frame per request and step, and the answers.

Invariant: calls take effect in the order of their arrival, between two steps.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from headrace.errors import InferenceError, Outcome
from headrace.inference.core import EngineCore
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
from headrace.inference.turns import Failure, Output
from headrace.ports import TurnTiming
from headrace.processes.serve import Call, ParentGone, Server
from headrace.records.arrays import as_int32, float32_bytes
from headrace.records.segment import TokenSegment


def serve_engine(core: EngineCore, server: Server) -> None:
    """Serves until the parent is gone. Whatever is not an `InferenceError` ends the process."""
    desk = _Desk(core, server)
    try:
        while True:
            if core.is_idle:
                core.rest()
            calls = server.poll(None if core.is_idle else 0.0)
            core.timeline.enter("serve")
            for call in calls:
                desk.take(call)
            if not core.is_idle:
                desk.hand_out(core.step())
    except ParentGone:
        return


class _Open(NamedTuple):
    """A generation that runs: the call to answer, and the caller's name for it."""

    call_id: int
    ticket: int


class _Desk:
    """Turns calls into operations of the core, and its outputs into frames."""

    def __init__(self, core: EngineCore, server: Server) -> None:
        self._core = core
        self._server = server
        self._call_of: dict[str, _Open] = {}
        self._methods: dict[str, Callable[[bytes], bytes]] = {
            "interrupt": self._interrupt,
            "abandon": self._abandon,
            "stage": self._stage,
            "activate": self._activate,
            "score": self._score,
            "pause": lambda _: encode(core.pause()),
            "resume": lambda _: encode(core.resume()),
            "stats": lambda _: encode(core.stats()),
        }

    def take(self, call: Call) -> None:
        """Executes the call, or starts it if it is a generation."""
        try:
            if call.method == "generate":
                start = decode(call.payload, GenerateCall)
                self._core.submit(start.request)
                self._call_of[start.request.request_id] = _Open(call.call_id, start.ticket)
            elif call.method in self._methods:
                self._server.reply(call.call_id, self._methods[call.method](call.payload))
            else:
                self._server.reject(call.call_id, f"no method {call.method!r}; there are {sorted(self._methods)}")
        except InferenceError as error:
            end = self._server.reject if error.outcome is Outcome.REJECTED else self._server.fail
            end(call.call_id, str(error))
        except msgspec.MsgspecError as error:
            self._server.reject(call.call_id, f"{call.method}: payload cannot be read: {error}")

    def hand_out(self, outputs: list[Output]) -> None:
        """Sends what a step gave, one frame per request."""
        by_request: dict[str, list[TokenSegment | TurnTiming | Failure]] = {}
        for output in outputs:
            by_request.setdefault(output.request_id, []).append(output.item)
        for request_id, items in by_request.items():
            call_id, last = self._call_of[request_id].call_id, items[-1]
            if isinstance(last, Failure):
                self._server.fail(call_id, last.message)
                del self._call_of[request_id]
                continue
            timing = last if isinstance(last, TurnTiming) else None
            part = TurnPart(tuple(item for item in items if isinstance(item, TokenSegment)), timing)
            if timing is None:
                self._server.item(call_id, encode(part))
            else:
                self._server.reply(call_id, encode(part))
                del self._call_of[request_id]

    def _interrupt(self, payload: bytes) -> bytes:
        self._core.interrupt(decode(payload, RequestIds).ids)
        return b""

    def _abandon(self, payload: bytes) -> bytes:
        ticket = decode(payload, AbandonCall).ticket
        for request_id, running in list(self._call_of.items()):
            if running.ticket == ticket:
                self._core.abandon((request_id,))
                del self._call_of[request_id]
                self._server.fail(running.call_id, f"{request_id} was abandoned")
        return b""

    def _stage(self, payload: bytes) -> bytes:
        call = decode(payload, StageCall)
        self._core.stage(call.policy, call.weights)
        return b""

    def _activate(self, payload: bytes) -> bytes:
        call = decode(payload, ActivateCall)
        return encode(self._core.activate(call.policy, frozenset(call.keep)))

    def _score(self, payload: bytes) -> bytes:
        call = decode(payload, ScoreCall)
        scores = self._core.score([as_int32(ids) for ids in call.ids], call.version)
        return encode(Scores(tuple(float32_bytes(score) for score in scores)))
