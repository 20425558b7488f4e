"""The embedded engine: a synchronous object that turns token ids into sampled token ids.

Invariant: every token is drawn from the policy version that its segment names, in a cache that no version older than the
segment's `context_version_min` had a part in: with `on_swap = rebuild` that is the very version that samples. The draw of
token t of a turn is a function of (seed_key, t) alone. The same submissions in the same order give the same bytes.

Consumes: requests, interrupts, staged weights. Produces: segments and timings, one `step` at a time. Waits for nothing.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from headrace.errors import InferenceError, Outcome
from headrace.inference.cache import SlotCache
from headrace.inference.lineup import Lineup
from headrace.inference.options import EngineOptions
from headrace.inference.passes import Passes
from headrace.inference.rows import Ints, Rows
from headrace.inference.sampling import draw
from headrace.inference.stats import Counters, EngineStats, Timeline
from headrace.inference.turns import (
    NO_SLOT,
    Failure,
    Output,
    StepWork,
    Turn,
    prefix_ids,
)
from headrace.inference.weights import WeightBank
from headrace.records.arrays import FloatArray, IntArray
from headrace.records.ids import Address, PolicyRef
from headrace.records.segment import FinishReason, GenerateRequest
from headrace.records.streams import keyed_stream
from headrace.records.update import Activation, Standstill

_SEED_KEY_BYTES = 16


class EngineCore:
    """Slots over the weights of one policy. Not thread-safe; one caller steps it.

    Attributes:
        options: as given.
        bank: the weights by version.
        timeline: where its time went.
        counters: running totals.
        last_work: what the last `step` or `score` computed.
    """

    def __init__(
        self,
        options: EngineOptions,
        policy_dir: Path,
        weights_path: Callable[[Address], Path],
        clock: Callable[[], float],
    ) -> None:
        """Raises ConfigError for options out of bounds or a model that the slot cache cannot serve."""
        self.options = options
        self.bank = WeightBank(options, policy_dir, weights_path)
        self.timeline = Timeline(clock, "idle")
        self.counters = Counters()
        self.last_work = StepWork()
        config, dtype = self.bank.config, getattr(torch, options.dtype)
        self._cache = SlotCache(self.bank.cache_shape, dtype)
        self.rows = Rows(options.slots, options.context, config.vocab_size, self._cache)
        self._passes = Passes(options, self.rows, self._cache, dtype)
        self._clock = clock
        self._turns: dict[str, Turn] = {}
        self._turn_at: dict[int, Turn] = {}
        self._lineup = Lineup(options, self.rows, self._passes)
        self._outputs: list[Output] = []
        self._kept: frozenset[int] = frozenset()
        self._is_paused = False

    # Requests

    def submit(self, request: GenerateRequest) -> None:
        """Queues the request behind the earlier ones.

        Raises:
            InferenceError: REJECTED when it can never be served; nothing has changed then.
        """
        prompt_T = prefix_ids(request)
        refusal = self._refusal(request, prompt_T)
        if refusal is not None:
            raise InferenceError(f"{request.request_id}: {refusal}", Outcome.REJECTED)
        version = self._version_for(request)
        turn = Turn(request, prompt_T, self._clock(), version, version, cut=len(prompt_T))
        self._turns[request.request_id] = turn
        self._lineup.waiting.append(turn)

    def interrupt(self, request_ids: Sequence[str]) -> None:
        """Ends the turns now; the next `step` returns what they have, finish INTERRUPTED. Unknown ids are ignored."""
        for request_id in request_ids:
            turn = self._turns.get(request_id)
            if turn is not None:
                self._end(turn, FinishReason.INTERRUPTED)

    def abandon(self, request_ids: Sequence[str]) -> None:
        """Ends the turns now, and nothing more is returned of them."""
        self.interrupt(request_ids)
        self._outputs = [output for output in self._outputs if output.request_id not in request_ids]

    @property
    def is_idle(self) -> bool:
        """Whether `step` has nothing to do and nothing to return."""
        return not self._outputs and (self._is_paused or not self._turns)

    def pause(self) -> Standstill:
        """Computes no token until `resume`; everything else goes on."""
        self._is_paused = True
        return self._standstill()

    def resume(self) -> Standstill:
        """Steps compute again."""
        self._is_paused = False
        return self._standstill()

    def rest(self) -> None:
        """Notes that its caller waits because there is nothing to do."""
        self.timeline.enter("paused" if self._is_paused else "idle")

    # Weights

    def stage(self, policy: PolicyRef, weights: Address) -> None:
        """Loads a version aside; see `WeightBank.stage` for what is refused."""
        state = self.timeline.enter("sync")
        try:
            self.bank.stage(policy, weights)
        finally:
            self.timeline.enter(state)

    def activate(self, policy: PolicyRef, keep: frozenset[int]) -> Activation:
        """Serves unpinned requests with the staged version from the next token on.

        What runs unpinned is cut here, and by `on_swap` its cache is computed again by the following steps or kept.
        Versions in `keep` and those of pinned requests stay loaded.

        Raises:
            InferenceError: REJECTED when the version was not staged, or is older than the current one.
        """
        state, began_s = self.timeline.enter("sync"), self._clock()
        try:
            self.bank.activate(policy)
            rebuilt_tokens = sum(
                self._move(turn, policy.version)
                for turn in self._turns.values()
                if turn.request.pin_version is None and turn.version != policy.version
            )
            self._kept = keep
            self._release()
        finally:
            self.timeline.enter(state)
        self.counters.rebuilt_tokens += rebuilt_tokens
        return Activation(self.options.worker, self._clock() - began_s, rebuilt_tokens)

    @torch.inference_mode()
    def score(self, ids: Sequence[IntArray], version: int) -> list[FloatArray]:
        """Natural-log probabilities [T - 1] of each sequence's tokens after the first, at temperature 1.

        The version may be staged, current or kept.

        Raises:
            InferenceError: REJECTED when it is not held or a sequence does not fit, LOST when a value is not finite.
        """
        model = self.bank.model(version)
        for ids_T in ids:
            if not 1 < len(ids_T) <= self.bank.config.max_position_embeddings or not self._in_vocabulary(ids_T):
                raise InferenceError(
                    f"score: {len(ids_T)} ids; 2 to {self.bank.config.max_position_embeddings} of a vocabulary of "
                    f"{self.bank.config.vocab_size} are needed",
                    Outcome.REJECTED,
                )
        state = self.timeline.enter("score")
        scores: list[FloatArray] = []
        # One at a time: a value then does not depend on what else was asked.
        for ids_T in ids:
            ids_1T = torch.from_numpy(ids_T.astype(np.int64))[None]
            logprobs_TV = torch.log_softmax(model(input_ids=ids_1T, use_cache=False).logits[0, :-1].float(), dim=-1)
            scores.append(logprobs_TV.gather(1, ids_1T[0, 1:, None])[:, 0].numpy())
        self.timeline.enter(state)
        self.last_work = StepWork(prefill_tokens=sum(len(ids_T) for ids_T in ids))
        if not all(np.isfinite(score).all() for score in scores):
            raise InferenceError(f"score: version {version} gives log-probs that are not finite")
        return scores

    # Steps

    @torch.inference_mode()
    def step(self) -> list[Output]:
        """Admits, prefills within the budget, decodes one token of every sequence that is ready; returns what ended."""
        self.last_work = StepWork()
        if not self._is_paused:
            state = self.timeline.enter("prefill")
            self._admit()
            self._prefill()
            self.timeline.enter("decode")
            self._decode()
            self.timeline.enter(state)
        outputs, self._outputs = self._outputs, []
        return outputs

    def stats(self) -> EngineStats:
        """Where time went and what was done since the start."""
        seconds, wall_s = self.timeline.totals()
        self.counters.reused_tokens = self._lineup.reused_tokens
        return EngineStats(
            seconds=seconds,
            wall_s=wall_s,
            counters=self.counters,
            running=len(self._turns) - len(self._lineup.waiting),
            waiting=len(self._lineup.waiting),
            versions=self.bank.held,
            weights_bytes=self.bank.size_bytes,
            cache_bytes=self._cache.size_bytes,
        )

    def _admit(self) -> None:
        for turn in self._lineup.admit(self._clock()):
            request, slot, first = turn.request, turn.slot, len(turn.prompt_T)
            uniforms = keyed_stream(int.from_bytes(request.seed_key, "little")).random(request.max_tokens)
            self.rows.uniforms_SC[slot, first : first + request.max_tokens] = uniforms
            self.rows.temperature_S[slot] = request.sampling.temperature
            self.rows.limit_S[slot] = first + request.max_tokens
            self.rows.stops_SV[slot] = False
            self.rows.stops_SV[slot, list(request.stop_ids)] = True
            self._turn_at[slot] = turn

    def _prefill(self) -> None:
        budget_tokens = self.options.prefill_budget
        while True:
            is_first = budget_tokens == self.options.prefill_budget
            batch, counts_n, attended = self._lineup.next_batch(budget_tokens, is_first=is_first)
            if not batch:
                return
            slots_n = np.array([turn.slot for turn in batch], dtype=np.int64)
            is_chunk_n = (counts_n == self.options.prefill_chunk) & (
                self.rows.chunked_S[slots_n] == self.rows.cached_S[slots_n]
            )
            began_s = self._clock()
            logits_nV = self._passes.prefill(self.bank.forward(batch[0].version), slots_n, counts_n, attended)
            self.rows.charge_prefill(slots_n, counts_n, self._clock() - began_s)
            self.rows.chunked_S[slots_n] += np.where(is_chunk_n, counts_n, 0)
            self._record(prefill_tokens=int(counts_n.sum()))
            budget_tokens -= len(batch) * int(counts_n.max())
            ready_n = np.flatnonzero(self.rows.cached_S[slots_n] == self.rows.known_S[slots_n])
            for index in ready_n:
                self.rows.is_decoding_S[slots_n[index]] = True
                self._lineup.drop(batch[index])
            if len(ready_n):
                self._sample(slots_n[ready_n], logits_nV[torch.from_numpy(ready_n)])

    def _decode(self) -> None:
        slots = np.flatnonzero(self.rows.is_decoding_S)
        for slots_n in self._same_pass(slots):
            lengths_n = self.rows.cached_S[slots_n] + 1
            forward = self.bank.forward(int(self.rows.version_S[slots_n[0]]))
            began_s = self._clock()
            logits_nV = self._passes.decode(forward, slots_n, self._passes.bucket(int(lengths_n.max())))
            self.rows.charge_decode(slots_n, self._clock() - began_s)
            self._record(decode_rows=len(slots_n), attended_tokens=int(lengths_n.sum()))
            self._sample(slots_n, logits_nV)

    def _same_pass(self, slots: Ints) -> list[Ints]:
        """Slots that one pass can serve: of one version, and when deterministic of one attended length."""
        if not len(slots):
            return []
        keys = self.rows.version_S[slots]
        if self.options.deterministic:
            buckets = np.array([self._passes.bucket(int(cached) + 1) for cached in self.rows.cached_S[slots]])
            keys = keys * (self.options.context + 1) + buckets
        return [slots] if (keys == keys[0]).all() else [slots[keys == key] for key in np.unique(keys)]

    def _sample(self, slots_n: Ints, logits_nV: torch.Tensor) -> None:
        """Draws the next id of each slot and ends the turns that are complete."""
        rows = self.rows
        places_n = rows.known_S[slots_n]
        drawn = draw(logits_nV, rows.temperature_S[slots_n], rows.uniforms_SC[slots_n, places_n])
        ids_n, is_finite_n = drawn.ids_N.numpy(), drawn.is_finite_N.numpy()
        rows.ids_SC[slots_n, places_n] = ids_n
        rows.logprobs_SC[slots_n, places_n] = drawn.logprobs_N.numpy()
        rows.known_S[slots_n] += 1
        self.counters.decoded_tokens += len(slots_n)
        is_stop_n = rows.stops_SV[slots_n, ids_n]
        is_last_n = rows.known_S[slots_n] >= rows.limit_S[slots_n]
        for index in np.flatnonzero(is_stop_n | is_last_n | ~is_finite_n):
            turn = self._turn_at[int(slots_n[index])]
            if not is_finite_n[index]:
                self._fail(turn)
            else:
                self._end(turn, FinishReason.STOP if is_stop_n[index] else FinishReason.LENGTH)

    def _standstill(self) -> Standstill:
        computed = self.counters.prefill_tokens + self.counters.decoded_tokens
        return Standstill(self.options.worker, len(self._turns) - len(self._lineup.waiting), computed)

    def _move(self, turn: Turn, version: int) -> int:
        """Cached tokens lost by handing a turn to another version; what it has so far is cut."""
        if turn.slot == NO_SLOT:
            turn.serve_with(version)
            return 0
        if self.rows.known_S[turn.slot] > turn.cut:
            self._outputs.append(Output(turn.request_id, turn.segment(self.rows, None)))
        if self.options.on_swap == "keep_kv" and self.rows.is_decoding_S[turn.slot]:
            turn.go_on_with(version)
            self.rows.go_on(turn.slot, version)
            return 0
        lost = int(self.rows.cached_S[turn.slot])
        turn.preemptions += lost > 0
        turn.serve_with(version)
        self.rows.assign(turn.slot, version)
        self.rows.is_decoding_S[turn.slot] = False
        self._lineup.restart(turn)
        return lost

    def _end(self, turn: Turn, finish: FinishReason) -> None:
        self._outputs.append(Output(turn.request_id, turn.segment(self.rows, finish)))
        self._outputs.append(Output(turn.request_id, turn.timing(self._clock(), self.rows)))
        self._leave(turn)

    def _fail(self, turn: Turn) -> None:
        message = f"{turn.request_id}: version {turn.version} gives logits that are not finite; publish another version"
        self._outputs.append(Output(turn.request_id, Failure(message)))
        self.counters.failed_turns += 1
        self.rows.empty(turn.slot)
        self._leave(turn)

    def _leave(self, turn: Turn) -> None:
        """Frees the slot, whose cache stays for the next turn of the sequence."""
        self._lineup.drop(turn)
        del self._turns[turn.request_id]
        self.counters.turns += 1
        if turn.slot != NO_SLOT:
            self.rows.use(turn.slot, is_busy=False)
            del self._turn_at[turn.slot]
            turn.slot = NO_SLOT
        if turn.request.pin_version is not None:
            self._release()

    def _release(self) -> None:
        pinned = {turn.request.pin_version for turn in self._turns.values()}
        self.bank.retain(self._kept | frozenset(version for version in pinned if version is not None))

    def _record(self, prefill_tokens: int = 0, decode_rows: int = 0, attended_tokens: int = 0) -> None:
        work = self.last_work
        self.last_work = StepWork(
            work.prefill_tokens + prefill_tokens, work.decode_rows + decode_rows, work.attended_tokens + attended_tokens
        )
        self.counters.prefill_tokens += prefill_tokens

    def _version_for(self, request: GenerateRequest) -> int:
        assert self.bank.current is not None
        return self.bank.current.version if request.pin_version is None else request.pin_version

    def _in_vocabulary(self, ids_T: IntArray | Ints) -> bool:
        return len(ids_T) == 0 or (int(ids_T.min()) >= 0 and int(ids_T.max()) < self.bank.config.vocab_size)

    def _refusal(self, request: GenerateRequest, prompt_T: Ints) -> str | None:
        """Why the request can never be served; None when it can."""
        current, needed = self.bank.current, len(prompt_T) + request.max_tokens
        if current is None:
            return "no version is active; stage and activate one"
        checks = (
            (self._is_known(request.request_id), "it is still running"),
            (request.policy_id != current.policy_id, f"policy {request.policy_id} is not {current.policy_id}"),
            (
                request.pin_version is not None and not self.bank.serves(request.pin_version),
                f"version {request.pin_version} is not served; held are {list(self.bank.held)}",
            ),
            (
                self._version_for(request) < request.min_version,
                f"version {self._version_for(request)} is older than {request.min_version}, which sampled before",
            ),
            (
                not len(prompt_T) or request.max_tokens < 1,
                f"{len(prompt_T)} prefix ids and {request.max_tokens} tokens to sample; each must be at least 1",
            ),
            (needed > self.options.context, f"prefix and max_tokens need {needed} of {self.options.context} positions"),
            (
                not self._in_vocabulary(prompt_T)
                or not self._in_vocabulary(np.array(request.stop_ids, dtype=np.int64)),
                f"an id lies outside the vocabulary of {self.bank.config.vocab_size}",
            ),
            (len(request.seed_key) > _SEED_KEY_BYTES, f"seed_key holds {len(request.seed_key)} bytes, at most 16 fit"),
        )
        return next((why for is_refused, why in checks if is_refused), None)

    def _is_known(self, request_id: str) -> bool:
        return request_id in self._turns or any(output.request_id == request_id for output in self._outputs)
