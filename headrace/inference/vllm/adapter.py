"""The Inference port over a vLLM server, which holds one copy of the weights.

Invariant: nothing that a version sampled leaves before that version is active. New weights are loaded when they are first
scored or activated: from then on until their activation no request enters the server, and under `keep_kv`, where what runs
goes on with them, its tokens are held back. A version that is taken back takes what it sampled with it.

Dimensions: T tokens.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec import structs

from headrace.errors import InferenceError, Outcome
from headrace.inference.vllm.client import Piece, Span, VllmClient
from headrace.inference.vllm.options import VllmOptions
from headrace.ports import TurnTiming
from headrace.records.arrays import Float32Bytes, IntArray, float32_bytes, int32_bytes
from headrace.records.ids import Address, PolicyRef
from headrace.records.segment import FinishReason, GenerateRequest, Origin, TokenSegment
from headrace.records.update import Activation, Standstill

_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.INTERRUPTED}
_ASK_AGAIN_S = 0.1


@dataclasses.dataclass(eq=False)
class _Turn:
    """A request on its way.

    Attributes:
        request: as submitted.
        prompt: its prefix, and what was sampled since.
        segments: sampled so far.
        entries: how often it entered the server.
        is_inside: whether it is in the server now.
        is_interrupted: no more is wanted.
        preemptions: how often a swap cut it.
        wait_s: seconds outside the server.
    """

    request: GenerateRequest
    prompt: list[int]
    segments: list[TokenSegment] = dataclasses.field(default_factory=list)
    entries: int = 0
    is_inside: bool = False
    is_interrupted: bool = False
    preemptions: int = 0
    wait_s: float = 0.0

    @property
    def name(self) -> str:
        """A name that no earlier request to the server had."""
        return f"{self.request.request_id}@{self.entries}"

    @property
    def sampled(self) -> int:
        return sum(map(len, self.segments))


class VllmInference:
    """One server. All methods run on one event loop."""

    def __init__(self, client: VllmClient, options: VllmOptions, weights_path: Callable[[Address], Path]) -> None:
        self._client = client
        self._options = options
        self._weights_path = weights_path
        self._staged: dict[int, tuple[PolicyRef, Address]] = {}
        self._active: PolicyRef | None = None
        self._loaded: int | None = None
        self._turns: dict[str, _Turn] = {}
        self._changed = asyncio.Condition()
        self._swap = asyncio.Lock()
        self._is_paused = False
        self._computed_tokens = 0
        self._pause_s = 0.0
        self._rebuilt = 0

    async def generate(self, request: GenerateRequest, timeout_s: float) -> AsyncIterator[TokenSegment | TurnTiming]:
        self._admit(request)
        prompt = np.concatenate([segment.ids_T for segment in request.prefix] or [[]]).astype(int).tolist()
        turn = self._turns[request.request_id] = _Turn(request, prompt)
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        try:
            async with asyncio.timeout(timeout_s):
                await self._sample(turn)
        except TimeoutError:
            raise InferenceError(f"{request.request_id}: not finished within {timeout_s} s", Outcome.LOST) from None
        finally:
            del self._turns[request.request_id]
            await self._notify()
        for segment in turn.segments:
            yield segment
        generate_s = max(0.0, loop.time() - begin_s - turn.wait_s)
        yield TurnTiming(request.request_id, turn.wait_s, generate_s, turn.preemptions)

    async def interrupt(self, request_ids: Sequence[str], timeout_s: float) -> None:
        turns = [self._turns[name] for name in request_ids if name in self._turns]
        for turn in turns:
            turn.is_interrupted = True
        async with _deadline("interrupt", timeout_s):
            await self._notify()
            await self._end(turns)

    async def stage(self, policy: PolicyRef, weights: Address, timeout_s: float) -> None:
        if self._active is not None and policy.version < self._active.version:
            raise InferenceError(f"{policy} is older than {self._active}; versions never fall", Outcome.REJECTED)
        known = self._staged.get(policy.version)
        if known is not None and known != (policy, weights):
            raise InferenceError(f"{policy} is staged with other weights, {known[1]}", Outcome.REJECTED)
        try:
            path = self._weights_path(weights)
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except (KeyError, OSError) as error:
            raise InferenceError(f"{policy}: its weights cannot be read: {error}", Outcome.REJECTED) from error
        if found != weights:
            raise InferenceError(f"{policy}: {path} hashes to {found}", Outcome.REJECTED)
        self._staged[policy.version] = (policy, weights)

    async def activate(self, policy: PolicyRef, keep: frozenset[int], timeout_s: float) -> Activation:
        if policy.version not in self._staged or self._staged[policy.version][0] != policy:
            raise InferenceError(f"{policy} is not staged", Outcome.REJECTED)
        if self._active is not None and policy.version < self._active.version:
            raise InferenceError(f"{policy} is older than {self._active}; versions never fall", Outcome.REJECTED)
        begin_s = asyncio.get_running_loop().time()
        async with _deadline("activate", timeout_s), self._swap:
            await self._load(policy.version)
            self._active = policy
            self._staged = {policy.version: self._staged[policy.version]}
        await self._notify()
        pause_s, self._pause_s = self._pause_s or asyncio.get_running_loop().time() - begin_s, 0.0
        rebuilt, self._rebuilt = self._rebuilt, 0
        return Activation(self._options.worker, pause_s, rebuilt)

    async def pause(self, timeout_s: float) -> Standstill:
        # Not the server's own pause, in which it would score nothing either: what runs is taken out and comes in again.
        self._is_paused = True
        async with _deadline("pause", timeout_s):
            await self._end(self._inside())
        return self._standstill()

    async def resume(self, timeout_s: float) -> Standstill:
        self._is_paused = False
        await self._notify()
        return self._standstill()

    async def score(self, ids: Sequence[IntArray], version: int, timeout_s: float) -> list[Float32Bytes]:
        if version not in self._staged:
            raise InferenceError(f"version {version} is not held; held are {sorted(self._staged)}", Outcome.REJECTED)
        async with _deadline("score", timeout_s), self._swap:
            await self._load(version)
            scores = await asyncio.gather(*(self._client.score(ids_T.tolist()) for ids_T in ids))
        return [float32_bytes(np.minimum(np.asarray(score), 0.0)) for score in scores]

    def _admit(self, request: GenerateRequest) -> None:
        """Raises InferenceError, REJECTED, for a request that cannot be served."""
        problem = self._problem(request)
        if problem:
            raise InferenceError(f"{request.request_id}: {problem}", Outcome.REJECTED)

    def _problem(self, request: GenerateRequest) -> str | None:
        prefix, active = sum(map(len, request.prefix)), self._active
        if request.request_id in self._turns:
            return "a request of this id is still running"
        if active is None or request.policy_id != active.policy_id:
            return f"policy {request.policy_id!r} is not served, {active} is"
        if request.pin_version not in (None, active.version):
            return f"pinned to version {request.pin_version}, only {active.version} is held"
        if request.min_version > active.version:
            return f"needs version {request.min_version} or newer, {active.version} is served"
        if request.max_tokens < 1 or prefix < 1 or prefix + request.max_tokens > self._options.context:
            return f"{prefix} + {request.max_tokens} tokens; inference.options.context is {self._options.context}"
        return None

    async def _sample(self, turn: _Turn) -> None:
        """Fills the turn's segments up to the last, once every version in them is active."""
        while not turn.segments or turn.segments[-1].finish is None:
            await self._wait(turn, lambda: turn.is_interrupted or self._is_open())
            held = self._active
            assert held is not None
            if turn.is_interrupted:
                nothing = _segment(turn, Piece([], [], [], "abort"), Span(held.version, 0, 0), held)
                turn.segments.append(structs.replace(nothing, finish=FinishReason.INTERRUPTED))
                return
            if turn.request.pin_version not in (None, held.version):
                raise InferenceError(f"{turn.request.request_id}: only {held} is held by now", Outcome.REJECTED)
            turn.preemptions += bool(turn.sampled)
            turn.entries += 1
            turn.is_inside = True
            try:
                piece = await self._client.generate(turn.name, turn.prompt, self._sampling(turn), str(held.version))
                self._computed_tokens += len(piece.ids) + (len(turn.prompt) if turn.entries == 1 else 0)
            finally:
                turn.is_inside = False
                await self._notify()
            await self._take(turn, piece, held)

    async def _take(self, turn: _Turn, piece: Piece, held: PolicyRef) -> None:
        """Cuts what the server gave into segments."""
        is_over = piece.finish != "abort" or turn.is_interrupted
        spans = piece.spans or [Span(held.version, 0, 0)]
        newest = max(span.version for span in spans)
        await self._wait(turn, lambda: self._is_committed(newest) or newest not in self._staged)
        if not self._is_committed(newest):
            raise InferenceError(f"{turn.name}: tokens of version {newest}, which was taken back", Outcome.LOST)
        for span in spans:
            is_last = is_over and span is spans[-1]
            if span.start == span.stop and not is_last:
                continue
            segment = _segment(turn, piece, span, held)
            turn.segments.append(structs.replace(segment, finish=_FINISH[piece.finish]) if is_last else segment)
        turn.preemptions += len(spans) - 1
        turn.prompt += piece.ids

    async def _load(self, version: int) -> None:
        """Brings a staged version into the server; what runs there is ended or frozen meanwhile. Under the swap lock."""
        if self._loaded == version:
            return
        loop = asyncio.get_running_loop()
        await self._wait_until(lambda: all(turn.request.pin_version is None for turn in self._inside()))
        self._loaded = None  # nobody enters from here on
        begin_s, keep = loop.time(), self._options.on_swap == "keep_kv"
        await self._client.pause(keep=keep)
        if not keep:
            await self._end(self._inside())
            self._rebuilt += sum(len(turn.prompt) for turn in self._turns.values() if turn.sampled)
        _, address = self._staged[version]
        await self._client.load(str(self._weights_path(address)), address, version)
        await self._client.resume()
        self._loaded = version
        self._pause_s += loop.time() - begin_s

    async def _end(self, turns: Sequence[_Turn]) -> None:
        """Returns once none of them is in the server."""
        while names := [turn.name for turn in turns if turn.is_inside]:
            await self._client.abort(names)
            # The server does not say whether it knew them yet: one that was on its way is asked again.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ASK_AGAIN_S):
                    await self._wait_until(lambda: not any(turn.is_inside for turn in turns))

    def _inside(self) -> list[_Turn]:
        return [turn for turn in self._turns.values() if turn.is_inside]

    def _is_committed(self, version: int) -> bool:
        return self._active is not None and version <= self._active.version

    def _is_open(self) -> bool:
        return not self._is_paused and self._active is not None and self._loaded == self._active.version

    def _standstill(self) -> Standstill:
        begun = sum(turn.entries > 0 for turn in self._turns.values())
        return Standstill(self._options.worker, begun, self._computed_tokens)

    async def _wait(self, turn: _Turn, is_true: Callable[[], bool]) -> None:
        """Waits, and counts the seconds as the turn's."""
        begin_s = asyncio.get_running_loop().time()
        await self._wait_until(is_true)
        turn.wait_s += asyncio.get_running_loop().time() - begin_s

    async def _wait_until(self, is_true: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(is_true)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    @staticmethod
    def _sampling(turn: _Turn) -> dict[str, object]:
        key = hashlib.sha256(turn.request.seed_key + turn.sampled.to_bytes(8, "little")).digest()
        return {
            "max_tokens": turn.request.max_tokens - turn.sampled,
            "temperature": turn.request.sampling.temperature,
            "seed": int.from_bytes(key[:7], "little"),
            "stop_token_ids": list(turn.request.stop_ids),
        }


def _segment(turn: _Turn, piece: Piece, span: Span, held: PolicyRef) -> TokenSegment:
    """Tokens of one version; their cache began under `held`, whatever weights computed the rest of it."""
    part = slice(span.start, span.stop)
    return TokenSegment(
        origin=Origin.POLICY,
        ids=int32_bytes(piece.ids[part]),
        behavior_logprobs=float32_bytes(np.minimum(np.asarray(piece.logprobs[part], dtype=np.float32), 0.0)),
        policy=PolicyRef(held.policy_id, span.version),
        context_version_min=held.version,
        sampling=turn.request.sampling,
    )


@contextlib.asynccontextmanager
async def _deadline(what: str, timeout_s: float) -> AsyncIterator[None]:
    """Raises InferenceError, LOST, when the block takes longer."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise InferenceError(f"vllm: {what} took longer than {timeout_s} s", Outcome.LOST) from None
