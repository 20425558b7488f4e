"""The Inference port over an engine in a child process.

Invariant: every request ends: with its timing, with an `InferenceError`, or, when its consumer leaves or its deadline
passes, by being abandoned in the child, so that no slot works for nobody.
"""

import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import cast

from headrace.errors import InferenceError, ProcessError
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
from headrace.inference.stats import EngineStats
from headrace.ports import TurnTiming
from headrace.processes.child import Child
from headrace.records.arrays import Float32Bytes, IntArray, int32_bytes
from headrace.records.ids import Address, PolicyRef
from headrace.records.segment import GenerateRequest, TokenSegment
from headrace.records.update import Activation, Standstill

ABANDON_TIMEOUT_S = 10.0
"""How long a leaving consumer waits until the child has freed its slot."""


class ChildInference:
    """An engine child as `ports.Inference`. The child's owner starts and closes it."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._tickets = itertools.count()

    async def generate(self, request: GenerateRequest, timeout_s: float) -> AsyncIterator[TokenSegment | TurnTiming]:
        call = GenerateCall(request, next(self._tickets))
        stream = cast("AsyncGenerator[bytes, None]", self._child.stream("generate", encode(call), timeout_s=timeout_s))
        is_running = True
        try:
            async with contextlib.aclosing(stream) as parts:
                async for payload in parts:
                    part = decode(payload, TurnPart)
                    is_running = part.timing is None
                    for segment in part.segments:
                        yield segment
                    if part.timing is not None:
                        yield part.timing
                        return
            raise InferenceError(f"{request.request_id}: the engine ended the turn without a timing")
        except ProcessError as error:
            raise _attributed(error) from error
        finally:
            if is_running:
                await self._abandon(call.ticket)

    async def interrupt(self, request_ids: Sequence[str], timeout_s: float) -> None:
        await self._call("interrupt", RequestIds(tuple(request_ids)), timeout_s)

    async def stage(self, policy: PolicyRef, weights: Address, timeout_s: float) -> None:
        await self._call("stage", StageCall(policy, weights), timeout_s)

    async def activate(self, policy: PolicyRef, keep: frozenset[int], timeout_s: float) -> Activation:
        answer = await self._call("activate", ActivateCall(policy, tuple(sorted(keep))), timeout_s)
        return decode(answer, Activation)

    async def score(self, ids: Sequence[IntArray], version: int, timeout_s: float) -> list[Float32Bytes]:
        call = ScoreCall(tuple(int32_bytes(ids_T) for ids_T in ids), version)
        return list(decode(await self._call("score", call, timeout_s), Scores).logprobs)

    async def pause(self, timeout_s: float) -> Standstill:
        return decode(await self._call("pause", RequestIds(()), timeout_s), Standstill)

    async def resume(self, timeout_s: float) -> Standstill:
        return decode(await self._call("resume", RequestIds(()), timeout_s), Standstill)

    async def stats(self, timeout_s: float) -> EngineStats:
        """Where the child's time went and what it did since its start."""
        return decode(await self._call("stats", RequestIds(()), timeout_s), EngineStats)

    async def _call(self, method: str, message: object, timeout_s: float) -> bytes:
        try:
            return await self._child.call(method, encode(message), timeout_s=timeout_s)
        except ProcessError as error:
            raise _attributed(error) from error

    async def _abandon(self, ticket: int) -> None:
        # A child that is gone has no slot to free, and one that refused the request does not know the ticket.
        with contextlib.suppress(ProcessError):
            await self._child.call("abandon", encode(AbandonCall(ticket)), timeout_s=ABANDON_TIMEOUT_S)


def _attributed(error: ProcessError) -> InferenceError:
    return InferenceError(f"inference: {error}", error.outcome)
