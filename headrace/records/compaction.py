"""Compaction: what of settled work was dropped to give space back, and what stays of it.

Invariant: an address goes only once a durable list names it, so what was dropped is never taken for what is missing. Of a
dropped transcript its outline stays, and so do its event, side record, verdict and reward: whatever counts or measures
finds the same figures as before.
"""

from collections import Counter

import msgspec

from headrace.errors import HeadraceError
from headrace.records.execution import ExecutionStatus
from headrace.records.ids import Address
from headrace.records.provenance import Read, read_record
from headrace.records.segment import Origin, TokenSegment
from headrace.records.terminal import Limit
from headrace.records.trajectory import ForkCause, Transcript


class Outline(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What counts and measures read of a transcript: all but its tokens, log-probs, texts and outputs.

    Attributes:
        limits_hit: every limit that cut or ended something, in order.
        statuses: how actions ended, with counts, by name.
        malformed_turns: policy turns that could not be read.
        forks: why each path but the first forked.
        sampled_paths: paths with sampled segments of their own.
        prompt_tokens: tokens before the first sampled one.
        turn_tokens: sampled tokens of each policy turn.
        observation_tokens: tokens of each later segment that the environment wrote.
    """

    limits_hit: tuple[Limit, ...]
    statuses: tuple[tuple[ExecutionStatus, int], ...]
    malformed_turns: int
    forks: tuple[ForkCause, ...]
    sampled_paths: tuple[int, ...]
    prompt_tokens: int
    turn_tokens: tuple[int, ...]
    observation_tokens: tuple[int, ...]


class DroppedRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One address whose bytes are gone.

    Attributes:
        address: of the bytes.
        kind: kind of row that they were.
        size_bytes: how many.
        outline: of a transcript.
    """

    address: Address
    kind: str
    size_bytes: int
    outline: Outline | None = None


class DropList(msgspec.Struct, frozen=True):
    """Addresses that one compaction dropped, or some of them.

    Attributes:
        records: in order of address.
    """

    records: tuple[DroppedRecord, ...]


class RunCompacted(msgspec.Struct, frozen=True, tag="run_compacted"):
    """Settled work was dropped; it went in the transaction in which this event and the lists that name it became durable.

    The hash chain was made again over the shortened turns, in the same transaction and after it had been checked.

    Attributes:
        wall_clock: ISO 8601 time, for people.
        update: groups that trained in this update or before, or were rejected before its version, were dropped.
        keep_updates: newest updates that were to stay whole.
        lists: addresses of the `DropList` rows.
        records: how many of each kind they name.
        record_bytes: bytes of all of them.
        turns: turns that lost tokens and log-probs.
        turn_bytes: bytes that their events lost.
        head: hash chain over the events before this one, as it was before they were shortened.
    """

    wall_clock: str
    update: int
    keep_updates: int
    lists: tuple[Address, ...]
    records: dict[str, int]
    record_bytes: int
    turns: int
    turn_bytes: int
    head: str


class RecordDropped(HeadraceError, KeyError):
    """The bytes of an address were dropped by a compaction; what counts and measures goes by the outline.

    Args:
        dropped: what is gone.
        event: number of the event that says so.
        compacted: that event.
    """

    def __init__(self, dropped: DroppedRecord, event: int, compacted: RunCompacted) -> None:
        super().__init__(
            f"{dropped.kind} {dropped.address} was dropped by `headrace compact` at {compacted.wall_clock} (event {event}), "
            f"which kept the newest {compacted.keep_updates} updates whole; only a copy of the run from before has its "
            f"{dropped.size_bytes} bytes; raise --keep-updates to keep more of later ones"
        )
        self.outline = dropped.outline

    def __str__(self) -> str:
        return str(self.args[0])


def outline_of(transcript: Transcript) -> Outline:
    """What stays of a transcript when it is dropped."""
    statuses = Counter(outcome.status for outcome in transcript.actions)
    segments = tuple(transcript.first_shown())
    first = next((place for place, item in enumerate(segments) if item.origin is Origin.POLICY), len(segments))
    return Outline(
        limits_hit=transcript.limits_hit,
        statuses=tuple(sorted(statuses.items(), key=lambda item: item[0].value)),
        malformed_turns=_malformed_turns(transcript),
        forks=tuple(path.parent.cause for path in transcript.paths if path.parent is not None),
        sampled_paths=transcript.sampled_paths,
        prompt_tokens=sum(len(item) for item in segments[:first]),
        turn_tokens=_turn_tokens(segments),
        observation_tokens=tuple(len(item) for item in segments[first:] if item.origin is Origin.ENVIRONMENT),
    )


def read_outline(read: Read, address: Address) -> Outline:
    """The outline of a sealed transcript, also of one that was dropped.

    Raises:
        KeyError: when there is no such row, and no compaction dropped it.
        IntegrityError: when the bytes are no transcript.
    """
    try:
        return outline_of(read_record(read, address, Transcript))
    except RecordDropped as gone:
        if gone.outline is None:
            raise
        return gone.outline


def _malformed_turns(transcript: Transcript) -> int:
    """Policy turns that could not be read: observations after the first turn that answer no action."""
    answered = {(outcome.path, outcome.segment) for outcome in transcript.actions}
    count = 0
    for index, path in enumerate(transcript.paths):
        has_sampled = path.parent is not None
        for position, segment in enumerate(path.segments):
            has_sampled = has_sampled or segment.origin is Origin.POLICY
            is_observation = has_sampled and segment.origin is Origin.ENVIRONMENT
            count += is_observation and position >= path.num_carried and (index, position) not in answered
    return count


def _turn_tokens(segments: tuple[TokenSegment, ...]) -> tuple[int, ...]:
    """Sampled tokens of each turn; a turn is cut into segments where weights changed, and ends with a finish."""
    turns, running = list[int](), 0
    for segment in segments:
        if segment.origin is Origin.POLICY:
            running += len(segment)
            if segment.finish is not None:
                turns.append(running)
                running = 0
    return tuple(turns)
