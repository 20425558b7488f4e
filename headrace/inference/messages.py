"""What the parent and an engine child say to each other over the child protocol, one struct per method.

Methods: `generate` (stream of `TurnPart`), `interrupt`, `abandon`, `stage`, `activate`, `score`, `pause`, `resume`, `stats`.
"""

from typing import TypeVar

import msgspec

from headrace.ports import TurnTiming
from headrace.records.arrays import Float32Bytes, Int32Bytes
from headrace.records.ids import Address, PolicyRef
from headrace.records.segment import GenerateRequest, TokenSegment

T = TypeVar("T")


class TurnPart(msgspec.Struct, frozen=True, array_like=True):
    """What one step of the engine gave one request.

    Attributes:
        segments: in order.
        timing: present in the last part of a turn.
    """

    segments: tuple[TokenSegment, ...]
    timing: TurnTiming | None = None


class GenerateCall(msgspec.Struct, frozen=True, array_like=True):
    """Attributes:
    request: what to generate.
    ticket: names this call, where the request id may be one that already runs for somebody else.
    """

    request: GenerateRequest
    ticket: int


class AbandonCall(msgspec.Struct, frozen=True, array_like=True):
    """Attributes:
    ticket: of the call that nobody waits for any more.
    """

    ticket: int


class RequestIds(msgspec.Struct, frozen=True, array_like=True):
    """Attributes:
    ids: request ids.
    """

    ids: tuple[str, ...]


class StageCall(msgspec.Struct, frozen=True, array_like=True):
    """Attributes:
    policy: the version to be.
    weights: address of its file.
    """

    policy: PolicyRef
    weights: Address


class ActivateCall(msgspec.Struct, frozen=True, array_like=True):
    """Attributes:
    policy: the staged version.
    keep: versions that stay loaded, rising.
    """

    policy: PolicyRef
    keep: tuple[int, ...]


class ScoreCall(msgspec.Struct, frozen=True, array_like=True):
    """Attributes:
    ids: sequences.
    version: which weights.
    """

    ids: tuple[Int32Bytes, ...]
    version: int


class Scores(msgspec.Struct, frozen=True, array_like=True):
    """Attributes:
    logprobs: [T - 1] of each sequence.
    """

    logprobs: tuple[Float32Bytes, ...]


def encode(message: object) -> bytes:
    """The bytes of a message."""
    return msgspec.msgpack.encode(message)


def decode(payload: bytes, kind: type[T]) -> T:
    """The message. Raises msgspec.MsgspecError on anything else."""
    return msgspec.msgpack.decode(payload, type=kind)
