"""A running request and how its tokens become segments.

Invariant: the engine stamps a segment with the version that sampled it; a segment is cut before the version changes.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np

from headrace.inference.rows import Ints, Rows
from headrace.ports import TurnTiming
from headrace.records.arrays import float32_bytes, int32_bytes
from headrace.records.ids import PolicyRef
from headrace.records.segment import FinishReason, GenerateRequest, Origin, TokenSegment, TurnCompute

NO_SLOT = -1


class Failure(msgspec.Struct, frozen=True):
    """The engine cannot finish the request.

    Attributes:
        message: value, bound and remedy.
    """

    message: str


class Output(NamedTuple):
    """Attributes:
    request_id: whose.
    item: a segment, or the last item: timing or failure.
    """

    request_id: str
    item: TokenSegment | TurnTiming | Failure


class StepWork(NamedTuple):
    """What a step or a scoring computed; the input of a cost model.

    Attributes:
        prefill_tokens: tokens computed in prefill or scoring.
        decode_rows: tokens sampled by decoding.
        attended_tokens: sum over the decoded rows of the positions that each attended to.
    """

    prefill_tokens: int = 0
    decode_rows: int = 0
    attended_tokens: int = 0


@dataclasses.dataclass(slots=True, eq=False)
class Turn:
    """One request on its way.

    Attributes:
        request: as submitted.
        prompt_T: ids of its prefix.
        arrival_s: when it was submitted.
        version: what samples it now; set at admission for an unpinned one.
        context_version_min: oldest version of its cache; below `version` once it went on in an older one's.
        slot: where it runs, NO_SLOT while it waits.
        started_s: when it got its slot.
        cut: number of ids that lie in segments already.
        preemptions: how often its cache was thrown away.
        donor: an earlier turn whose prefill will hold a part of this one's prefix.
        shared: how much of it.
    """

    request: GenerateRequest
    prompt_T: Ints
    arrival_s: float
    version: int
    context_version_min: int
    slot: int = NO_SLOT
    started_s: float = 0.0
    cut: int = 0
    preemptions: int = 0
    donor: "Turn | None" = None
    shared: int = 0

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def trajectory(self) -> str:
        """Names the sequence that it goes on with."""
        return self.request.trajectory

    def serve_with(self, version: int) -> None:
        """Tokens from here on are sampled by this version, in a cache of this version."""
        self.version = self.context_version_min = version

    def go_on_with(self, version: int) -> None:
        """Tokens from here on are sampled by this version, in the cache that is there."""
        self.version = version

    def segment(self, rows: Rows, finish: FinishReason | None) -> TokenSegment:
        """Tokens sampled since the last cut, possibly none."""
        known = self.cut if self.slot == NO_SLOT else int(rows.known_S[self.slot])
        span = slice(self.cut, known)
        self.cut = known
        return TokenSegment(
            origin=Origin.POLICY,
            ids=int32_bytes(rows.ids_SC[self.slot, span]),
            behavior_logprobs=float32_bytes(rows.logprobs_SC[self.slot, span]),
            policy=PolicyRef(self.request.policy_id, self.version),
            context_version_min=self.context_version_min,
            sampling=self.request.sampling,
            finish=finish,
        )

    def timing(self, now_s: float, rows: Rows) -> TurnTiming:
        """How the turn went, as of now."""
        if self.slot == NO_SLOT:
            return TurnTiming(self.request_id, now_s - self.arrival_s, 0.0, self.preemptions, TurnCompute(0, 0.0, 0.0))
        wait_s, generate_s = self.started_s - self.arrival_s, now_s - self.started_s
        return TurnTiming(self.request_id, wait_s, generate_s, self.preemptions, rows.compute(self.slot))


def prefix_ids(request: GenerateRequest) -> Ints:
    """Ids of the whole prefix [T]."""
    return np.concatenate([segment.ids_T for segment in request.prefix] or [[]]).astype(np.int64)


class Counters(msgspec.Struct):
    """Running totals of an engine.

    Attributes:
        prefill_tokens: prefix tokens computed.
        decoded_tokens: tokens sampled.
        reused_tokens: prefix tokens found in the cache of the same or another slot.
        rebuilt_tokens: cached tokens thrown away by new weights and computed again.
        turns: turns ended, whatever the way.
        failed_turns: turns that ended in a failure.
    """

    prefill_tokens: int = 0
    decoded_tokens: int = 0
    reused_tokens: int = 0
    rebuilt_tokens: int = 0
    turns: int = 0
    failed_turns: int = 0


class EngineStats(msgspec.Struct, frozen=True):
    """Attributes:
    seconds: time in each state since the start: idle, paused, serve, prefill, decode, sync, score; they sum to `wall_s`.
    wall_s: time since the start.
    counters: running totals.
    running: turns in slots.
    waiting: turns without one.
    versions: versions in memory.
    weights_bytes: bytes of one copy of the weights.
    cache_bytes: bytes of the key-value cache.
    """

    seconds: dict[str, float]
    wall_s: float
    counters: Counters
    running: int
    waiting: int
    versions: tuple[int, ...]
    weights_bytes: int
    cache_bytes: int


class Timeline:
    """Seconds per state. The states partition time: leaving one enters another at the same instant."""

    def __init__(self, clock: Callable[[], float], state: str) -> None:
        self._clock = clock
        self._state = state
        self._began_s = self._entered_s = clock()
        self._seconds: dict[str, float] = {}

    def enter(self, state: str) -> str:
        """The state left; the present one is `state` from now on."""
        now_s = self._clock()
        self._seconds[self._state] = self._seconds.get(self._state, 0.0) + now_s - self._entered_s
        left, self._state, self._entered_s = self._state, state, now_s
        return left

    def totals(self) -> tuple[dict[str, float], float]:
        """Seconds per state, and seconds in all."""
        self.enter(self._state)
        return dict(self._seconds), self._entered_s - self._began_s
