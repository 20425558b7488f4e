"""A running request and how its tokens become segments.

Invariant: the engine stamps a segment with the version that sampled it; a segment is cut before the version changes.
"""

import dataclasses
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
