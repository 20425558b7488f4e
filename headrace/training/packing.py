"""Sealed transcripts to one packed batch: all rows end to end, arrays by numpy slices.

Invariant: the packed arrays say of every token exactly what its segment says. Token ids are copied, never made; the action
mask comes from the segment's origin; a forked path trains only its own segments, so a shared prefix is trained once; rows
stand in the order of the plan. Whatever does not fit is refused: nothing is padded, cut or filled in.

Dimensions: B rows, N tokens of all rows end to end, S segments, T tokens of the longest row.
"""

import dataclasses
import functools
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import IntegrityError
from headrace.records.arrays import FloatArray, IntArray
from headrace.records.batch import BatchRow
from headrace.records.ids import Address, EpisodeId, GroupId, Purpose
from headrace.records.provenance import check_address
from headrace.records.segment import Origin, TokenSegment
from headrace.records.trajectory import Transcript

BoolArray = npt.NDArray[np.bool_]

_NAN_BYTES = memoryview(np.full(1 << 16, np.nan, dtype="<f4").tobytes())
_TRANSCRIPT = msgspec.msgpack.Decoder(Transcript)


@dataclasses.dataclass(frozen=True)
class PackedTokens:
    """Sequences end to end; row b is the slice cu_seqlens[b]:cu_seqlens[b + 1] of every array.

    Attributes:
        ids_N: token ids, int32.
        action_mask_N: True where the policy sampled the token and this row trains it.
        position_ids_N: position within the row, int32.
        behavior_logprobs_N: log-probs of the distribution sampled from; NaN where nothing was sampled, float32.
        temperature_N: sampling temperature; 1 where nothing was sampled, float32.
        versions_N: policy version that sampled the token; -1 elsewhere, int32.
        is_fresh_context_N: True where the token's whole context was computed under its own version.
        cu_seqlens: row boundaries [B + 1], int32.
    """

    ids_N: IntArray
    action_mask_N: BoolArray
    position_ids_N: IntArray
    behavior_logprobs_N: FloatArray
    temperature_N: FloatArray
    versions_N: IntArray
    is_fresh_context_N: BoolArray
    cu_seqlens: IntArray

    @property
    def lengths_B(self) -> IntArray:
        """Tokens of each row."""
        return np.diff(self.cu_seqlens)

    @functools.cached_property
    def rows_N(self) -> npt.NDArray[np.int64]:
        """Row of each token."""
        return np.repeat(np.arange(len(self.cu_seqlens) - 1), self.lengths_B)

    @property
    def action_tokens_B(self) -> npt.NDArray[np.int64]:
        """Trained tokens of each row."""
        total = np.concatenate(([0], np.cumsum(self.action_mask_N, dtype=np.int64)))
        return np.diff(total[self.cu_seqlens])

    def check(self) -> None:
        """Raises IntegrityError when lengths disagree, or a trained token lacks a context, a version or a log-prob."""
        count = int(self.cu_seqlens[-1])
        for field in dataclasses.fields(PackedTokens):
            value = getattr(self, field.name)
            if field.name.endswith("_N") and value.shape != (count,):
                raise IntegrityError(f"packed.{field.name} has shape {value.shape}; the rows hold {count} tokens")
        starts = self.cu_seqlens[:-1][self.lengths_B > 0]
        if self.action_mask_N[starts].any():
            raise IntegrityError("a trained token is the first of its row; without a context it has no probability")
        if not count:
            return
        logprobs_N = self.behavior_logprobs_N
        is_absent_N = np.isnan(logprobs_N)
        if (is_absent_N & self.action_mask_N).any():
            raise IntegrityError("a trained token has no behavior log-prob")
        highest, lowest = float(np.fmax.reduce(logprobs_N)), float(np.fmin.reduce(logprobs_N))
        if highest > 0.0 or lowest == -np.inf:
            raise IntegrityError(f"behavior log-probs reach from {lowest} to {highest}; they must be finite and <= 0")
        if ((self.versions_N < 0) & self.action_mask_N).any():
            raise IntegrityError("a trained token has no policy version")


@dataclasses.dataclass(frozen=True)
class PackedBatch(PackedTokens):
    """Packed rows of a plan.

    Attributes:
        advantages_B: float32.
        weights_B: loss weight of each row, float32.
        rewards_B: float32.
        transcripts: address of each row's transcript.
        paths: path of each row.
        episodes: episode of each row.
        groups: group of each row.
    """

    advantages_B: FloatArray
    weights_B: FloatArray
    rewards_B: FloatArray
    transcripts: tuple[Address, ...]
    paths: tuple[int, ...]
    episodes: tuple[EpisodeId, ...]
    groups: tuple[GroupId, ...]


def read_transcripts(addresses: Iterable[Address], read_row: Callable[[Address], bytes]) -> dict[Address, Transcript]:
    """The transcripts, each read once, checked against its address and decoded.

    Raises:
        IntegrityError: when bytes do not hash to their address or are no transcript.
        KeyError: when there is no such row.
    """
    found: dict[Address, Transcript] = {}
    for address in addresses:
        if address in found:
            continue
        data = read_row(address)
        check_address(address, data, "transcript")
        try:
            found[address] = _TRANSCRIPT.decode(data)
        except (msgspec.DecodeError, ValueError) as error:
            raise IntegrityError(f"row {address} is no transcript: {error}") from error
    return found


def pack(rows: Sequence[BatchRow], transcripts: Mapping[Address, Transcript]) -> PackedBatch:
    """The rows end to end, in their order.

    Raises:
        IntegrityError: naming the row, when its transcript is missing, is another group's or member's, or is not for
            training; when a use is consumed twice; when lengths disagree; when a number is not finite.
    """
    segments = _Segments()
    used: set[tuple[Address, int, int]] = set()
    lengths_B: list[int] = []
    episodes: list[EpisodeId] = []
    for row in rows:
        transcript = _checked_transcript(row, transcripts)
        use = (row.transcript, row.path, row.use)
        if use in used:
            raise IntegrityError(f"{transcript.episode}: path {row.path} is in the batch twice as use {row.use}")
        used.add(use)
        episodes.append(transcript.episode)
        lengths_B.append(segments.add(transcript, row.path))
    batch = PackedBatch(
        **segments.arrays(lengths_B),
        advantages_B=np.array([row.advantage for row in rows], dtype=np.float32),
        weights_B=np.array([row.weight for row in rows], dtype=np.float32),
        rewards_B=np.array([row.reward for row in rows], dtype=np.float32),
        transcripts=tuple(row.transcript for row in rows),
        paths=tuple(row.path for row in rows),
        episodes=tuple(episodes),
        groups=tuple(row.group for row in rows),
    )
    batch.check()
    _check_row_numbers(batch)
    return batch


def pack_lists(
    ids: Sequence[Sequence[int]],
    action_mask: Sequence[Sequence[bool]],
    behavior_logprobs: Sequence[Sequence[float]],
    *,
    version: int,
    temperature: float = 1.0,
) -> PackedTokens:
    """Packed tokens of data that comes as Python lists from outside, all sampled by one version.

    Log-probs are read where the mask is set and become NaN elsewhere.

    Raises:
        IntegrityError: when the lists of a row differ in length, or an id does not fit into 32 bits.
    """
    for index, row in enumerate(zip(ids, action_mask, behavior_logprobs, strict=True)):
        sizes = tuple(len(part) for part in row)
        if len(set(sizes)) != 1:
            raise IntegrityError(f"row {index} has {sizes[0]} ids, {sizes[1]} mask values and {sizes[2]} log-probs")
    try:
        ids_N = np.frombuffer(b"".join(struct.pack(f"<{len(row)}i", *row) for row in ids), dtype="<i4")
    except struct.error as error:
        raise IntegrityError(f"a token id is no 32-bit integer: {error}") from error
    mask_N = np.frombuffer(b"".join(map(bytes, action_mask)), dtype=np.bool_)
    given_N = np.frombuffer(b"".join(struct.pack(f"<{len(row)}f", *row) for row in behavior_logprobs), dtype="<f4")
    lengths_B = [len(row) for row in ids]
    tokens = PackedTokens(
        ids_N=ids_N,
        action_mask_N=mask_N,
        behavior_logprobs_N=np.where(mask_N, given_N, np.float32(np.nan)),
        temperature_N=np.where(mask_N, np.float32(temperature), np.float32(1.0)),
        versions_N=np.where(mask_N, np.int32(version), np.int32(-1)),
        is_fresh_context_N=mask_N,
        **boundaries(lengths_B),
    )
    tokens.check()
    return tokens


class _Segments:
    """Collects the segments of all rows, and makes each array with one join or one repeat."""

    def __init__(self) -> None:
        self._ids: list[bytes] = []
        self._logprobs: list[bytes | memoryview] = []
        self._lengths_S: list[int] = []
        self._is_trained_S: list[bool] = []
        self._temperature_S: list[float] = []
        self._versions_S: list[int] = []
        self._is_fresh_S: list[bool] = []

    def add(self, transcript: Transcript, path: int) -> int:
        """Number of tokens of the path, which is now the next row."""
        own_start = transcript.own_start(path)
        total = 0
        for index, segment in enumerate(transcript.sequence(path)):
            total += self._add(segment, index >= own_start, transcript)
        return total

    def _add(self, segment: TokenSegment, is_own: bool, transcript: Transcript) -> int:
        size_bytes = len(segment.ids)
        logprobs = segment.behavior_logprobs
        is_sampled = segment.origin is Origin.POLICY
        if size_bytes % 4 or (logprobs is not None and len(logprobs) != size_bytes):
            raise IntegrityError(
                f"{transcript.episode}: a segment has {size_bytes} bytes of ids and "
                f"{len(logprobs or b'')} of log-probs; int32 and float32 must agree"
            )
        if (logprobs is not None) is not is_sampled:
            raise IntegrityError(
                f"{transcript.episode}: log-probs and origin {segment.origin.value} contradict each other"
            )
        if segment.attachments:
            raise IntegrityError(f"{transcript.episode}: a segment has attachments, which this batch cannot carry")
        self._ids.append(segment.ids)
        self._logprobs.append(_nan_bytes(size_bytes) if logprobs is None else logprobs)
        self._lengths_S.append(size_bytes // 4)
        self._is_trained_S.append(is_sampled and is_own)
        if not is_sampled:
            self._temperature_S.append(1.0)
            self._versions_S.append(-1)
            self._is_fresh_S.append(False)
            return size_bytes // 4
        if segment.policy is None or segment.sampling is None:
            raise IntegrityError(f"{transcript.episode}: a sampled segment names no policy version or no sampling")
        if is_own and size_bytes and segment.sampling.temperature <= 0.0:
            raise IntegrityError(
                f"{transcript.episode}: tokens taken at temperature 0 were not sampled; they cannot be trained on"
            )
        self._temperature_S.append(segment.sampling.temperature)
        self._versions_S.append(segment.policy.version)
        self._is_fresh_S.append(segment.context_version_min == segment.policy.version)
        return size_bytes // 4

    def arrays(self, lengths_B: Sequence[int]) -> dict[str, npt.NDArray[Any]]:
        """The arrays of `PackedTokens` by name."""
        lengths_S = np.array(self._lengths_S, dtype=np.int64)
        return {
            "ids_N": np.frombuffer(b"".join(self._ids), dtype="<i4"),
            "action_mask_N": np.repeat(np.array(self._is_trained_S, dtype=np.bool_), lengths_S),
            "behavior_logprobs_N": np.frombuffer(b"".join(self._logprobs), dtype="<f4"),
            "temperature_N": np.repeat(np.array(self._temperature_S, dtype=np.float32), lengths_S),
            "versions_N": np.repeat(np.array(self._versions_S, dtype=np.int32), lengths_S),
            "is_fresh_context_N": np.repeat(np.array(self._is_fresh_S, dtype=np.bool_), lengths_S),
            **boundaries(lengths_B),
        }


def _checked_transcript(row: BatchRow, transcripts: Mapping[Address, Transcript]) -> Transcript:
    transcript = transcripts.get(row.transcript)
    where = f"row {row.group} member {row.member}"
    if transcript is None:
        raise IntegrityError(f"{where}: transcript {row.transcript} was not read")
    episode = transcript.episode
    if episode.group != row.group or episode.member != row.member:
        raise IntegrityError(f"{where}: transcript {row.transcript} is of {episode}")
    if episode.purpose is not Purpose.TRAIN:
        raise IntegrityError(f"{where}: episode {episode} is for {episode.group.purpose}; it never enters training")
    if not 0 <= row.path < len(transcript.paths):
        raise IntegrityError(f"{where}: path {row.path} does not exist; there are {len(transcript.paths)}")
    return transcript


def _check_row_numbers(batch: PackedBatch) -> None:
    for name in ("advantages_B", "weights_B", "rewards_B"):
        values_B = getattr(batch, name)
        if not np.isfinite(values_B).all():
            row = int(np.flatnonzero(~np.isfinite(values_B))[0])
            raise IntegrityError(f"{batch.episodes[row]}: {name} holds {values_B[row]}; absent rows do not belong here")
    if (batch.weights_B < 0).any():
        raise IntegrityError(f"a row has weight {batch.weights_B.min()}; weights are >= 0")


def boundaries(lengths_B: Sequence[int]) -> dict[str, IntArray]:
    """`cu_seqlens` and `position_ids_N` of rows of these lengths, by name."""
    cu_seqlens = np.concatenate(([0], np.cumsum(lengths_B, dtype=np.int64))).astype(np.int32)
    starts_N = np.repeat(cu_seqlens[:-1], np.asarray(lengths_B, dtype=np.int64))
    return {"cu_seqlens": cu_seqlens, "position_ids_N": np.arange(cu_seqlens[-1], dtype=np.int32) - starts_N}


def _nan_bytes(size: int) -> bytes | memoryview:
    if size <= len(_NAN_BYTES):
        return _NAN_BYTES[:size]
    return np.full(size // 4, np.nan, dtype="<f4").tobytes()


def step_rows(packed: PackedBatch, steps: int) -> list[BoolArray]:
    """Rows of each step: whole groups in order, in as equal shares as they allow; steps without a trained token are none."""
    names = list(dict.fromkeys(packed.groups))
    share_of = {name: index * min(steps, len(names)) // len(names) for index, name in enumerate(names)}
    shares_B = np.array([share_of[group] for group in packed.groups])
    parts = [shares_B == share for share in range(min(steps, len(names)))]
    return [part_B for part_B in parts if packed.action_tokens_B[part_B].any()]
