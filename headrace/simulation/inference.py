"""A simulated inference engine: lengths from the workload, time from the cost model, versions as a real one stamps them.

Invariants: a version cut falls at the whole number of tokens that were sampled when the new version went live; a pinned
request is cut by none; nothing is served before a version is activated, at the start as after a crash.

What it takes for its draws it reads off the request, as a real engine would: the task's index off the prompt, episode and
step off the request's id. A continued turn (a prefix that ends in policy tokens) samples what is left of the drawn length.
"""

import asyncio
import dataclasses
import itertools
import math
from collections.abc import AsyncIterator, Awaitable, Sequence

from headrace.errors import InferenceError, IntegrityError, Outcome
from headrace.ports import TurnTiming
from headrace.records.arrays import Float32Bytes, IntArray
from headrace.records.ids import Address, EpisodeId, PolicyId, PolicyRef
from headrace.records.segment import FinishReason, GenerateRequest, Origin, TokenSegment, TurnCompute, num_tokens
from headrace.records.update import Activation, Standstill
from headrace.simulation import tokens
from headrace.simulation.costs import EngineCost
from headrace.simulation.device import SharedDevice
from headrace.simulation.pending import PendingCalls
from headrace.simulation.prefixes import PrefixCache
from headrace.simulation.serving import Job, SharedServer
from headrace.simulation.weights import SimulatedWeights, WeightShelf
from headrace.simulation.workload import Draws

_TINY_WORK = 1e-6


@dataclasses.dataclass(eq=False)
class _Turn(Job):
    """One request.

    Attributes:
        request: what was asked.
        stop: its last token when it ends by itself, None when the budget cuts it.
        arrived_s: when it came.
        done: its finish, or the error that ended it.
        entered: the version that it entered under.
        version: the version that samples it now.
        pieces: (version, tokens) of what other versions sampled of it before.
        cut: tokens of all these pieces.
        rebuilds: how often its cache was computed again.
        prefill_tokens: tokens of cache that were computed for it, those of rebuilds included.
        rebuilt_s: seconds of the engine that its rebuilds took.
    """

    request: GenerateRequest = dataclasses.field(kw_only=True)
    stop: int | None = dataclasses.field(kw_only=True)
    arrived_s: float = dataclasses.field(kw_only=True)
    done: "asyncio.Future[FinishReason]" = dataclasses.field(kw_only=True)
    entered: int = -1
    version: int = -1
    pieces: list[tuple[int, int]] = dataclasses.field(default_factory=list[tuple[int, int]])
    cut: int = 0
    rebuilds: int = 0
    prefill_tokens: int = 0
    rebuilt_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Whole tokens that hold its work."""
        return max(1, math.ceil(self.work - 1e-9))

    def close_piece(self, num_tokens: int) -> None:
        """The version of now sampled it up to this many tokens, and no further."""
        if num_tokens > self.cut:
            self.pieces.append((self.version, num_tokens - self.cut))
            self.cut = num_tokens


class SimulatedInference:
    """`Inference` with a cost model.

    Attributes:
        sampled_tokens: tokens sampled so far in turns that ended.
    """

    def __init__(
        self,
        draws: Draws,
        cost: EngineCost,
        shelf: WeightShelf,
        *,
        policy_id: PolicyId,
        device: SharedDevice | None = None,
        worker: str = "engine",
    ) -> None:
        """An engine that holds no version yet.

        Args:
            draws: the workload under its seed.
            cost: rates, slots, swaps.
            shelf: where weights lie.
            policy_id: the policy that it serves.
            device: shared with a trainer; None is a device of its own.
            worker: its name.
        """
        self.sampled_tokens = 0
        self._draws = draws
        self._cost = cost
        self._shelf = shelf
        self._policy_id = policy_id
        self._worker = worker
        self._server: SharedServer[_Turn] = SharedServer(cost, on_enter=self._enter, on_leave=self._complete)
        self._pending = PendingCalls()
        self._turns: dict[str, _Turn] = {}
        self._cache = PrefixCache(4 * cost.slots)
        self._staged: dict[int, Address] = {}
        self._held: dict[int, Address] = {}
        self._current: int | None = None
        self._device = device or SharedDevice()
        self._device.attach(self._server.slow)

    def twin(self, worker: str) -> "SimulatedInference":
        """Another engine of the same kind, with devices of its own and no version yet."""
        return SimulatedInference(self._draws, self._cost, self._shelf, policy_id=self._policy_id, worker=worker)

    @property
    def version(self) -> int | None:
        """The version that unpinned requests are served with; None before the first and after a crash."""
        return self._current

    @property
    def slot_seconds(self) -> float:
        """Integral of the number of busy slots over time."""
        self._server.clock()
        return self._server.slot_seconds

    @property
    def num_active(self) -> int:
        return len(self._server.active)

    @property
    def num_waiting(self) -> int:
        return self._server.num_waiting

    # --- generation

    async def generate(self, request: GenerateRequest, timeout_s: float) -> AsyncIterator[TokenSegment | TurnTiming]:
        turn = self._admit(request)
        loop = asyncio.get_running_loop()
        deadline = loop.call_later(timeout_s, self._expire, turn, timeout_s)
        error: InferenceError | None = None
        finish: FinishReason | None = None
        try:
            self._server.submit(turn)
            finish = await turn.done
        except InferenceError as lost:
            error = lost
        finally:
            deadline.cancel()
            del self._turns[request.request_id]
            if turn.end is None:
                self._server.withdraw(turn)
        segments = self._segments(turn, finish)
        for segment in segments:
            yield segment
        if error is not None:
            raise error
        waited_until_s = turn.start_s if turn.start is not None else loop.time()
        waited_s, generated_s = waited_until_s - turn.arrived_s, loop.time() - waited_until_s
        compute = TurnCompute(turn.prefill_tokens, turn.prefill_s + turn.rebuilt_s, turn.decode_s)
        yield TurnTiming(request.request_id, waited_s, generated_s, turn.rebuilds, compute)

    def _admit(self, request: GenerateRequest) -> _Turn:
        """The turn, not yet submitted. Raises InferenceError REJECTED when it cannot be served."""
        name = request.request_id
        if name in self._turns:
            raise _rejected(f"{name} is running already")
        if request.policy_id != self._policy_id:
            raise _rejected(f"{name}: policy {request.policy_id} is not served here, only {self._policy_id}")
        if self._current is None:
            raise _rejected(f"{name}: {self._worker} has proven no version yet")
        if request.pin_version is not None and request.pin_version not in self._held:
            raise _rejected(f"{name}: version {request.pin_version} is not held, only {sorted(self._held)}")
        served = self._current if request.pin_version is None else request.pin_version
        if served < request.min_version:
            raise _rejected(f"{name}: needs version {request.min_version}, would be served {served}")
        if request.max_tokens < 1 or not request.prefix:
            raise _rejected(f"{name}: {request.max_tokens} tokens after {len(request.prefix)} segments of prefix")
        work, stop = self._length(request)
        loop = asyncio.get_running_loop()
        turn = _Turn(
            work=work,
            context=num_tokens(request.prefix),
            trajectory=request.trajectory,
            request=request,
            stop=stop,
            arrived_s=loop.time(),
            done=loop.create_future(),
        )
        self._turns[name] = turn
        return turn

    def _length(self, request: GenerateRequest) -> tuple[float, int | None]:
        """Work of this request, and the token that ends it; None when the budget does."""
        try:
            index = tokens.task_index(request.prefix[0].ids)
            episode_name, _, position = request.request_id.partition("/")
            episode, step = EpisodeId.parse(episode_name), int(position.partition("#")[0])
        except ValueError as error:
            raise _rejected(f"{request.request_id}: no simulated request: {error}") from error
        attempt, drawn = self._draws.episode(index, episode), self._draws.step(index, episode, step)
        work = max(drawn.tokens - num_tokens(_last_turn(request.prefix)), _TINY_WORK)
        if math.ceil(work - 1e-9) > request.max_tokens:
            return float(request.max_tokens), None
        if drawn.is_malformed:
            return work, tokens.GARBLED_END
        return work, tokens.FINAL_END if step + 1 >= attempt.num_turns else tokens.CALL_END

    def _enter(self, turn: _Turn) -> None:
        """A turn got its slot: it is served with the version of this moment, unless it is pinned."""
        request = turn.request
        assert self._current is not None
        turn.entered = turn.version = self._current if request.pin_version is None else request.pin_version
        turn.prefill_s = self._cost.turn_start_s
        if self._cost.prefill_tokens_per_s:
            cached = self._cache.tokens((request.affinity, request.trajectory), turn.version)
            turn.prefill_tokens = max(0, turn.context - cached)
            turn.prefill_s += turn.prefill_tokens / self._cost.prefill_tokens_per_s
            prompt = itertools.takewhile(lambda segment: segment.origin is not Origin.POLICY, request.prefix)
            self._cache.put(request.affinity, turn.version, num_tokens(prompt))

    def _complete(self, turn: _Turn) -> None:
        if not turn.done.done():
            turn.done.set_result(FinishReason.LENGTH if turn.stop is None else FinishReason.STOP)

    def _expire(self, turn: _Turn, timeout_s: float) -> None:
        if not turn.done.done():
            turn.done.set_exception(InferenceError(f"{turn.request.request_id}: not finished in {timeout_s} s"))

    def _segments(self, turn: _Turn, finish: FinishReason | None) -> list[TokenSegment]:
        """The turn cut at its version changes; without a finish only the pieces that a cut had closed."""
        is_whole = finish in (FinishReason.STOP, FinishReason.LENGTH)
        # A turn that never had a slot has no version of its own: it is stamped with the present one.
        if turn.start is None:
            pin = turn.request.pin_version
            turn.entered = turn.version = pin if pin is not None else (self._current or 0)
        if finish is not None:
            turn.close_piece(turn.num_tokens if is_whole else _whole(turn.sampled_at(turn.end or 0.0)))
        pieces = turn.pieces
        if finish is not None and not pieces:
            pieces = [(turn.version, 0)]
        self.sampled_tokens += turn.cut
        is_reusable = self._cost.on_swap == "rebuild" or turn.version == turn.entered
        if self._cost.prefill_tokens_per_s and is_whole and is_reusable:
            self._cache.put(turn.request.trajectory, turn.version, turn.context + turn.cut)
        stop = turn.stop if finish is FinishReason.STOP else None
        last = len(pieces) - 1
        return [
            TokenSegment(
                origin=Origin.POLICY,
                ids=tokens.turn(count, stop if position == last else None),
                behavior_logprobs=tokens.logprobs(count),
                policy=PolicyRef(self._policy_id, piece_version),
                context_version_min=piece_version
                if self._cost.on_swap == "rebuild"
                else min(turn.entered, piece_version),
                sampling=turn.request.sampling,
                finish=finish if position == last else None,
            )
            for position, (piece_version, count) in enumerate(pieces)
        ]

    async def interrupt(self, request_ids: Sequence[str], timeout_s: float) -> None:
        for name in request_ids:
            turn = self._turns.get(name)
            if turn is not None and not turn.done.done():
                self._server.withdraw(turn)
                turn.done.set_result(FinishReason.INTERRUPTED)

    async def pause(self, timeout_s: float) -> Standstill:
        await self._in_time(self._device.begin_turn(), timeout_s, "pause")
        return self._standstill()

    async def resume(self, timeout_s: float) -> Standstill:
        await self._in_time(self._device.end_turn(), timeout_s, "resume")
        return self._standstill()

    async def _in_time(self, switch: Awaitable[None], timeout_s: float, what: str) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await switch
        except TimeoutError:
            raise InferenceError(f"{what}: {self._device.switch_s} s needed, {timeout_s} s allowed") from None

    def _standstill(self) -> Standstill:
        self._server.clock()
        return Standstill(self._worker, len(self._server.active), round(self._server.computed_tokens))

    # --- versions

    async def stage(self, policy: PolicyRef, weights: Address, timeout_s: float) -> None:
        self._read(policy, weights)
        if self._staged.get(policy.version, weights) != weights or self._held.get(policy.version, weights) != weights:
            raise _rejected(f"{policy} is there already with other contents")
        seconds = self._draws.drawn(self._cost.stage_s, "engine", self._worker, "stage", policy.version)
        await self._pending.spend(seconds, timeout_s, lambda: InferenceError(f"{policy}: not staged in {timeout_s} s"))
        self._staged[policy.version] = weights

    async def activate(self, policy: PolicyRef, keep: frozenset[int], timeout_s: float) -> Activation:
        if policy.policy_id == self._policy_id and policy.version == self._current:
            return Activation(self._worker, 0.0, 0)
        if policy.policy_id != self._policy_id or policy.version not in self._staged:
            raise _rejected(f"{policy} is not staged, only {sorted(self._staged)}")
        if self._current is not None and policy.version < self._current:
            raise _rejected(f"{policy} is older than version {self._current}, which is served")
        self._held[policy.version] = self._staged[policy.version]
        self._staged = {version: weights for version, weights in self._staged.items() if version > policy.version}
        self._current = policy.version
        rebuilt = self._swap(policy.version)
        self._unload(keep)
        pause_s = self._cost.swap_pause_s + self._prefill_s(rebuilt)
        if pause_s > 0.0:
            self._server.hold()
            asyncio.get_running_loop().call_later(pause_s, self._server.release)
        await self._pending.spend(pause_s, timeout_s, lambda: InferenceError(f"{policy}: not active in {timeout_s} s"))
        return Activation(self._worker, pause_s, rebuilt)

    def _swap(self, version: int) -> int:
        """Cuts what runs; tokens of cache to be computed again."""
        clock, rebuilt, is_rebuilt = self._server.clock(), 0, self._cost.on_swap == "rebuild"
        for turn in self._server.active:
            if turn.request.pin_version is None:
                sampled = turn.sampled_at(clock)
                turn.close_piece(_whole(sampled))
                turn.version = version
                if is_rebuilt:
                    lost = turn.context + math.floor(sampled)
                    turn.rebuilds += 1
                    turn.rebuilt_s += self._prefill_s(lost)
                    turn.prefill_tokens += lost if self._cost.prefill_tokens_per_s else 0
                    rebuilt += lost
        return rebuilt

    def _prefill_s(self, num_tokens: int) -> float:
        """Seconds of the engine alone."""
        return num_tokens / self._cost.prefill_tokens_per_s if self._cost.prefill_tokens_per_s else 0.0

    def _unload(self, keep: frozenset[int]) -> None:
        pinned = {turn.request.pin_version for turn in self._turns.values()}
        wanted = {*keep, self._current, *pinned}
        self._held = {version: weights for version, weights in self._held.items() if version in wanted}

    async def score(self, ids: Sequence[IntArray], version: int, timeout_s: float) -> list[Float32Bytes]:
        weights = self._held.get(version) or self._staged.get(version)
        if weights is None:
            raise _rejected(f"version {version} is neither held nor staged")
        held = self._read(PolicyRef(self._policy_id, version), weights)
        count = sum(len(ids_T) for ids_T in ids)
        seconds = self._prefill_s(count)
        await self._pending.spend(
            seconds, timeout_s, lambda: InferenceError(f"{count} tokens not scored in {timeout_s} s")
        )
        return [held.logprobs(ids_T) for ids_T in ids]

    def _read(self, policy: PolicyRef, weights: Address) -> SimulatedWeights:
        try:
            found = self._shelf.read(weights)
        except (KeyError, IntegrityError) as error:
            raise _rejected(f"{policy}: weights {weights} cannot be loaded: {error}") from error
        if (found.policy_id, found.version) != (policy.policy_id, policy.version):
            raise _rejected(f"{policy}: the weights are those of {found.policy_id}@{found.version}")
        return found

    def crash(self) -> None:
        """Everything in memory is gone: running requests are lost, and no version is served until one is activated."""
        self._current = None
        self._staged, self._held = {}, {}
        self._cache = PrefixCache(4 * self._cost.slots)
        # Those that wait first, or they would be let in as slots come free.
        for turn in sorted(self._turns.values(), key=lambda turn: turn.start is not None):
            self._server.withdraw(turn)
            if not turn.done.done():
                turn.done.set_exception(InferenceError(f"{turn.request.request_id}: {self._worker} crashed"))
        self._pending.fail_all(lambda: InferenceError(f"{self._worker} crashed"))


def _last_turn(prefix: Sequence[TokenSegment]) -> list[TokenSegment]:
    """What the policy sampled at the end of a prefix: the turn that goes on. The newest segment first."""
    turn: list[TokenSegment] = []
    for segment in reversed(prefix):
        if segment.origin is not Origin.POLICY:
            break
        turn.append(segment)
    return turn


def _whole(sampled: float) -> int:
    """Whole tokens among those sampled, a real number that may have lost a little to rounding."""
    return math.floor(sampled + 1e-9)


def _rejected(message: str) -> InferenceError:
    return InferenceError(message, Outcome.REJECTED)
