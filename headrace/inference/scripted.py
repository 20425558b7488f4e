"""The Inference port over whoever says what comes next: an oracle, a person, a recording. No weights, no sampling.

Invariant: what is said goes through the port as an engine's would: whole turns within the token budget, with a finish
reason, stamped with the version that the caller names. A turn that nobody sampled has log-prob 0: its speaker was certain.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import numpy as np

from headrace.errors import InferenceError, Outcome
from headrace.ports import TurnTiming
from headrace.records.arrays import Float32Bytes, IntArray, float32_bytes, int32_bytes
from headrace.records.ids import Address, PolicyRef
from headrace.records.segment import FinishReason, GenerateRequest, Origin, TokenSegment
from headrace.records.update import Activation, Standstill

Speaker = Callable[[GenerateRequest], Awaitable[Sequence[TokenSegment]]]
"""Says the turn that a request asks for."""


class ScriptedInference:
    """Implements `ports.Inference` for generation alone."""

    def __init__(self, speak: Speaker) -> None:
        self._speak = speak

    async def generate(self, request: GenerateRequest, timeout_s: float) -> AsyncIterator[TokenSegment | TurnTiming]:
        for segment in await self._speak(request):
            yield segment
        yield TurnTiming(request.request_id, 0.0, 0.0, 0)

    async def interrupt(self, request_ids: Sequence[str], timeout_s: float) -> None:
        """Nothing runs that could be cut."""

    async def stage(self, policy: PolicyRef, weights: Address, timeout_s: float) -> None:
        raise _no_weights()

    async def activate(self, policy: PolicyRef, keep: frozenset[int], timeout_s: float) -> Activation:
        raise _no_weights()

    async def score(self, ids: Sequence[IntArray], version: int, timeout_s: float) -> list[Float32Bytes]:
        raise _no_weights()

    async def pause(self, timeout_s: float) -> Standstill:
        raise _no_weights()

    async def resume(self, timeout_s: float) -> Standstill:
        raise _no_weights()


def said(request: GenerateRequest, ids: IntArray, policy: PolicyRef) -> TokenSegment:
    """The ids as the answer to a request, cut after its first stop token and at its token budget, as an engine cuts."""
    stops = np.flatnonzero(np.isin(ids, request.stop_ids))
    kept = ids[: min(request.max_tokens, int(stops[0]) + 1 if len(stops) else len(ids))]
    is_stopped = len(kept) > 0 and int(kept[-1]) in request.stop_ids
    return TokenSegment(
        origin=Origin.POLICY,
        ids=int32_bytes(kept),
        behavior_logprobs=float32_bytes(np.zeros(len(kept), np.float32)),
        policy=policy,
        context_version_min=policy.version,
        sampling=request.sampling,
        finish=FinishReason.STOP if is_stopped else FinishReason.LENGTH,
    )


def _no_weights() -> InferenceError:
    return InferenceError("a scripted policy has no weights", Outcome.REJECTED)
