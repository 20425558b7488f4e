"""Stage 3, policy inference: the token segment, the only carrier of ids and behaviour log-probs.

Dimensions: T tokens of a segment. A segment is cut where the origin or the policy version changes. The worker that
sampled stamps the version; nobody else may. Nothing here is a training mask: the mask follows from `origin`.
"""

import enum
from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np

from headrace.errors import IntegrityError
from headrace.records.arrays import Float32Bytes, FloatArray, Int32Bytes, IntArray, as_float32, as_int32, float32_bytes
from headrace.records.ids import Address, EpisodeId, PolicyId, PolicyRef

_MINUS_INFINITY = float32_bytes([-np.inf])
_NEGATIVE = bytes(range(0x80, 0xFF))
"""The last bytes of float32 values from -2^127, exclusive, to -0.0."""


class Origin(enum.Enum):
    """How a token came to be where it stands.

    HISTORY is what a fork shows again of a turn that the policy sampled on another path: context, never trained here.
    """

    POLICY = "policy"
    ENVIRONMENT = "environment"
    TEMPLATE = "template"
    HISTORY = "history"


# Sealing asks for the origin of every segment many times over, and Python 3.11 takes seven times as long for a member of an
# Enum class as for a name.
POLICY: Final = Origin.POLICY
ENVIRONMENT: Final = Origin.ENVIRONMENT
TEMPLATE: Final = Origin.TEMPLATE
HISTORY: Final = Origin.HISTORY


class FinishReason(enum.Enum):
    """Why the engine stopped a turn; the engine's word, never inferred from token ids."""

    STOP = "stop"
    LENGTH = "length"
    INTERRUPTED = "interrupted"


class Sampling(msgspec.Struct, frozen=True, gc=False):
    """The transform between logits and the distribution that was sampled from.

    Attributes:
        temperature: > 0 samples, 0 takes the most likely token (log-probs then are of the unscaled distribution).
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 10.0:
            raise ValueError(f"sampling.temperature is {self.temperature}; it must lie in [0, 10]")


class Attachment(msgspec.Struct, frozen=True, gc=False):
    """A non-text input and the tokens that stand for it.

    Attributes:
        kind: media type.
        blob: address of the bytes.
        start: first token of its span within the segment.
        stop: one past the last token of its span.
        processor_version: content version of the processor that made the tokens.
    """

    kind: str
    blob: Address
    start: int
    stop: int
    processor_version: Address


class TokenSegment(msgspec.Struct, frozen=True, gc=False):
    """Token ids of one origin under one policy version.

    Attributes:
        origin: policy, environment, template or history.
        ids: token ids [T], int32 little-endian.
        behavior_logprobs: natural-log probabilities [T] of the distribution sampled from (after `sampling`), float32;
            present exactly when the origin is POLICY. Absent is absent, never 0.0.
        policy: the version that sampled; present exactly when the origin is POLICY.
        context_version_min: the oldest version whose key-value cache these tokens attended to; equals the policy's
            version when the cache was rebuilt after a swap.
        sampling: the transform sampled under; present exactly when the origin is POLICY.
        finish: set on the last segment of a turn.
        attachments: non-text inputs with their spans.
    """

    origin: Origin
    ids: Int32Bytes
    behavior_logprobs: Float32Bytes | None = None
    policy: PolicyRef | None = None
    context_version_min: int | None = None
    sampling: Sampling | None = None
    finish: FinishReason | None = None
    attachments: tuple[Attachment, ...] = ()

    def __len__(self) -> int:
        return len(self.ids) // 4

    @property
    def ids_T(self) -> IntArray:
        return as_int32(self.ids)

    @property
    def behavior_logprobs_T(self) -> FloatArray | None:
        return None if self.behavior_logprobs is None else as_float32(self.behavior_logprobs)

    def check(self) -> None:
        """Raises IntegrityError unless lengths agree, log-probs are finite and <= 0, and origin fits its fields."""
        size_bytes, logprobs = len(self.ids), self.behavior_logprobs
        policy, oldest = self.policy, self.context_version_min
        if size_bytes % 4:
            raise IntegrityError(f"segment.ids holds {size_bytes} bytes; int32 ids need a multiple of 4")
        if self.origin is not POLICY:
            if not (logprobs is policy is oldest is self.sampling is None):
                raise self._wrong_stamp(is_sampled=False)
        elif logprobs is None or policy is None or oldest is None or self.sampling is None:
            raise self._wrong_stamp(is_sampled=True)
        elif len(logprobs) != size_bytes:
            raise IntegrityError(
                f"segment has {len(self)} ids and {len(logprobs) / 4:g} behavior log-probs; they must be equal"
            )
        elif oldest > policy.version:
            raise IntegrityError(f"segment.context_version_min is {oldest}, newer than its policy {policy}")
        elif not are_logprobs(logprobs):
            raise _wrong_logprob(as_float32(logprobs))
        for item in self.attachments:
            if not 0 <= item.start < item.stop <= len(self):
                raise IntegrityError(
                    f"attachment span [{item.start}, {item.stop}) leaves the segment of {len(self)} tokens"
                )

    def _wrong_stamp(self, is_sampled: bool) -> IntegrityError:
        """Names the first field that an origin must have and lacks, or must not have and has."""
        fields = ("behavior_logprobs", "policy", "context_version_min", "sampling")
        name = next(name for name in fields if (getattr(self, name) is not None) is not is_sampled)
        state = "absent" if is_sampled else "present"
        return IntegrityError(f"segment.{name} is {state} on a segment of origin {self.origin.value}")


def num_tokens(segments: Iterable[TokenSegment]) -> int:
    """Tokens of all segments."""
    return sum([len(segment.ids) for segment in segments]) // 4


def joined_ids(segments: tuple[TokenSegment, ...]) -> IntArray:
    """Token ids of the segments end to end, [T]."""
    if len(segments) == 1:
        return segments[0].ids_T
    return as_int32(type(segments[0].ids)(b"".join(segment.ids for segment in segments)))


def are_logprobs(data: Float32Bytes) -> bool:
    """Whether every value is finite and <= 0; data are whole values."""
    # The last byte holds the sign and most of the exponent. It tells of nearly every turn, in a sixth of what numpy takes;
    # what it leaves are zeros, huge values, and those that are no log-probs.
    if not data[3::4].translate(None, _NEGATIVE):
        return True
    logprobs_T = as_float32(data)
    # A maximum carries a NaN on, and no comparison with one holds. The bytes of -inf may also stand across two values.
    is_bounded = np.maximum.reduce(logprobs_T) <= 0.0
    return bool(is_bounded) and (_MINUS_INFINITY not in data or bool(np.isfinite(logprobs_T).all()))


def _wrong_logprob(logprobs_T: FloatArray) -> IntegrityError:
    bad = int(np.flatnonzero(~(np.isfinite(logprobs_T) & (logprobs_T <= 0.0)))[0])
    return IntegrityError(f"behavior log-prob {logprobs_T[bad]} at token {bad}: it must be finite and <= 0")


class GenerateRequest(msgspec.Struct, frozen=True, gc=False):
    """One turn to generate; the message that crosses the inference port.

    Attributes:
        request_id: unique per turn and lease: `episode/step`, the idempotency key.
        prefix: the sequence so far, in order.
        max_tokens: bound on sampled tokens of this turn.
        sampling: how to sample.
        stop_ids: token ids that end the turn; the stop token is part of the turn.
        policy_id: which policy.
        min_version: version of the trajectory's last sampled segment; an older one never serves the request.
        pin_version: serve with exactly this version and let no swap touch it; None follows the current one.
        affinity: group name, so that members share a prefix cache.
        seed_key: Philox key; the draw of token t of the turn is a function of (seed_key, t) alone.
    """

    request_id: str
    prefix: tuple[TokenSegment, ...]
    max_tokens: int
    sampling: Sampling
    stop_ids: tuple[int, ...]
    policy_id: PolicyId
    min_version: int
    pin_version: int | None
    affinity: str
    seed_key: bytes

    @property
    def trajectory(self) -> str:
        """Names the sequence that the turn goes on with: the part of the request's id before the step."""
        return self.request_id.partition("/")[0]


class TurnSpan(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How many tokens one version sampled in a row.

    Attributes:
        policy: the version; None where a segment names none.
        num_tokens: how many.
    """

    policy: PolicyRef | None
    num_tokens: int


class TurnCompute(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a turn took of its engine; over all turns the seconds add up to those of the engine's passes.

    Attributes:
        prefill_tokens: tokens before its first own one that were computed, not found in a cache; rebuilding included.
        prefill_s: engine seconds of that: its share, by tokens, of the passes that it was in.
        decode_s: engine seconds of decoding: its share, by sequences, of the passes that it was in.
    """

    prefill_tokens: int
    prefill_s: float
    decode_s: float


class TurnGenerated(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="turn_generated"):
    """The policy's turn is complete: what was sampled, and by which versions.

    Attributes:
        episode: who.
        step: the policy turn, from 0.
        segments: sampled segments in order; more than one when weights changed in mid-turn.
        wait_s: seconds the request waited for a slot.
        generate_s: seconds from slot to last token.
        preemptions: how often its cache was rebuilt or its slot taken.
        compute: what it took of the engine; None where the engine does not tell.
        shortened: what stands in the place of `segments` once a compaction has dropped them.
    """

    episode: EpisodeId
    step: int
    segments: tuple[TokenSegment, ...]
    wait_s: float
    generate_s: float
    preemptions: int
    compute: TurnCompute | None = None
    shortened: tuple[TurnSpan, ...] = ()

    @property
    def spans(self) -> tuple[TurnSpan, ...]:
        """Which version sampled how many tokens, in order; the same before and after a compaction."""
        return self.shortened or tuple([TurnSpan(segment.policy, len(segment)) for segment in self.segments])

    @property
    def num_tokens(self) -> int:
        """Tokens sampled in the turn."""
        return sum([span.num_tokens for span in self.spans])

    def shorten(self) -> "TurnGenerated":
        """The turn without its tokens and log-probs; the counts stay."""
        return msgspec.structs.replace(self, segments=(), shortened=self.spans)
