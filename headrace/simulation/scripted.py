"""An inference engine whose policy is a script: what it says in each turn is given, how it is served is real.

Invariant: the ids of a turn are what the real tokenizer makes of the script, sampled one after another and stamped with the
version that is active at that token; budgets, interruption, pinning and the order of versions are kept as by any engine.
"""

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from headrace.errors import InferenceError, IntegrityError, Outcome
from headrace.ports import TurnTiming
from headrace.records.arrays import Float32Bytes, IntArray, float32_bytes, int32_bytes
from headrace.records.ids import Address, EpisodeId, PolicyId, PolicyRef
from headrace.records.segment import FinishReason, GenerateRequest, Origin, TokenSegment
from headrace.records.update import Activation, Standstill
from headrace.simulation.weights import SimulatedWeights, WeightShelf

LOGPROB = -0.5
"""Behaviour log-prob of every scripted token."""


@dataclasses.dataclass(frozen=True)
class ScriptedTurn:
    """One turn of a scripted policy.

    Attributes:
        text: what it says before its calls; a control literal in it stays ordinary text.
        calls: raw text of each call, well-formed or not.
        ids: sampled as they are instead of text and calls, for turns that no tokenizer would make.
        is_endless: says the same again and again and never ends the turn.
        token_s: seconds of each token.
    """

    text: str = ""
    calls: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    is_endless: bool = False
    token_s: float = 0.0


Script = Callable[[EpisodeId, int], ScriptedTurn]
"""What an episode says at a step."""

Encode = Callable[[str, Sequence[str]], IntArray]
"""Ids of a turn's text and calls, the stop token last."""


class ScriptedInference:
    """`Inference` of a scripted policy.

    Attributes:
        requests: every request so far, in order of arrival.
    """

    def __init__(
        self, script: Script, encode: Encode, shelf: WeightShelf, *, policy_id: PolicyId, context: int | None = None
    ) -> None:
        """An engine that serves no version yet.

        Args:
            script: what the policy says.
            encode: the harness's own way from text to ids.
            shelf: where weights lie.
            policy_id: the policy that it serves.
            context: tokens of the longest sequence; None for no bound.
        """
        self.requests: list[GenerateRequest] = []
        self._script = script
        self._encode = encode
        self._shelf = shelf
        self._policy_id = policy_id
        self._context = context
        self._known: dict[int, Address] = {}
        self._held: set[int] = set()
        self._current: int | None = None
        self._running: dict[str, asyncio.Event] = {}
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._said_tokens = 0

    async def generate(self, request: GenerateRequest, timeout_s: float) -> AsyncIterator[TokenSegment | TurnTiming]:
        turn = self._admit(request)
        loop = asyncio.get_running_loop()
        begin_s, stop = loop.time(), asyncio.Event()
        self._running[request.request_id] = stop
        pieces: list[tuple[int, list[int]]] = []
        finish = FinishReason.LENGTH
        try:
            async with asyncio.timeout(timeout_s):
                for token in itertools.islice(self._tokens(turn, request.stop_ids), request.max_tokens):
                    await self._goes_on.wait()
                    if stop.is_set():
                        finish = FinishReason.INTERRUPTED
                        break
                    version = self._served(request)
                    if not pieces or pieces[-1][0] != version:
                        pieces.append((version, []))
                    pieces[-1][1].append(token)
                    self._said_tokens += 1
                    if token in request.stop_ids:
                        finish = FinishReason.STOP
                        break
                    await asyncio.sleep(turn.token_s)
                    if stop.is_set():
                        finish = FinishReason.INTERRUPTED
                        break
        except TimeoutError:
            raise InferenceError(f"{request.request_id}: not finished within {timeout_s} s") from None
        finally:
            del self._running[request.request_id]
        for position, (version, ids) in enumerate(pieces):
            yield self._segment(request, version, ids, finish if position == len(pieces) - 1 else None)
        # Each version has to compute the cache of the tokens before it again.
        yield TurnTiming(request.request_id, 0.0, loop.time() - begin_s, len(pieces) - 1)

    async def interrupt(self, request_ids: Sequence[str], timeout_s: float) -> None:
        for name in request_ids:
            if name in self._running:
                self._running[name].set()

    async def stage(self, policy: PolicyRef, weights: Address, timeout_s: float) -> None:
        self._read(policy, weights)
        if self._known.setdefault(policy.version, weights) != weights:
            raise _rejected(f"{policy} is there already with other contents")

    async def activate(self, policy: PolicyRef, keep: frozenset[int], timeout_s: float) -> Activation:
        if policy.policy_id != self._policy_id or policy.version not in self._known:
            raise _rejected(f"{policy} is not staged")
        if self._current is not None and policy.version < self._current:
            raise _rejected(f"{policy} is older than version {self._current}, which is served")
        self._current = policy.version
        self._held = {version for version in self._held if version in keep} | {policy.version}
        return Activation("engine", 0.0, 0)

    async def pause(self, timeout_s: float) -> Standstill:
        self._goes_on.clear()
        return Standstill("engine", len(self._running), self._said_tokens)

    async def resume(self, timeout_s: float) -> Standstill:
        self._goes_on.set()
        return Standstill("engine", len(self._running), self._said_tokens)

    async def score(self, ids: Sequence[IntArray], version: int, timeout_s: float) -> list[Float32Bytes]:
        if version not in self._known:
            raise _rejected(f"version {version} is neither held nor staged")
        held = self._read(PolicyRef(self._policy_id, version), self._known[version])
        return [held.logprobs(ids_T) for ids_T in ids]

    def _admit(self, request: GenerateRequest) -> ScriptedTurn:
        """What to say. Raises InferenceError REJECTED when the request cannot be served."""
        name = request.request_id
        if name in self._running:
            raise _rejected(f"{name} is running already")
        if request.policy_id != self._policy_id or self._current is None:
            raise _rejected(f"{name}: policy {request.policy_id} is not served here")
        if request.pin_version is not None and request.pin_version not in self._held:
            raise _rejected(f"{name}: version {request.pin_version} is not held, only {sorted(self._held)}")
        if self._served(request) < request.min_version:
            raise _rejected(f"{name}: needs version {request.min_version}, would be served {self._served(request)}")
        if request.max_tokens < 1 or not request.prefix:
            raise _rejected(f"{name}: {request.max_tokens} tokens after {len(request.prefix)} segments of prefix")
        length = sum(map(len, request.prefix)) + request.max_tokens
        if self._context is not None and length > self._context:
            raise _rejected(f"{name}: {length} tokens are over the context of {self._context}")
        self.requests.append(request)
        episode, _, step = name.partition("/")
        return self._script(EpisodeId.parse(episode), int(step.partition("#")[0]))

    def _served(self, request: GenerateRequest) -> int:
        assert self._current is not None
        return self._current if request.pin_version is None else request.pin_version

    def _tokens(self, turn: ScriptedTurn, stop_ids: tuple[int, ...]) -> Iterator[int]:
        ids: list[int] = list(turn.ids) or self._encode(turn.text, turn.calls).tolist()
        if not turn.is_endless:
            return iter(ids)
        return itertools.cycle([token for token in ids if token not in stop_ids])

    def _segment(
        self, request: GenerateRequest, version: int, ids: Sequence[int], finish: FinishReason | None
    ) -> TokenSegment:
        return TokenSegment(
            Origin.POLICY,
            int32_bytes(ids),
            behavior_logprobs=float32_bytes([LOGPROB] * len(ids)),
            policy=PolicyRef(self._policy_id, version),
            context_version_min=version,
            sampling=request.sampling,
            finish=finish,
        )

    def _read(self, policy: PolicyRef, weights: Address) -> SimulatedWeights:
        try:
            found = self._shelf.read(weights)
        except (KeyError, IntegrityError) as error:
            raise _rejected(f"{policy}: weights {weights} cannot be loaded: {error}") from error
        if (found.policy_id, found.version) != (policy.policy_id, policy.version):
            raise _rejected(f"{policy}: the weights are those of {found.policy_id}@{found.version}")
        return found


def _rejected(message: str) -> InferenceError:
    return InferenceError(message, Outcome.REJECTED)
