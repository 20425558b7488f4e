"""The laws of a token sequence that only its harness can judge; checked at sealing and when a run is verified.

Invariant: what passes holds control tokens only where the template or the policy put them, each policy turn stands where
the template opened one, and what ran is what the sampled ids say.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from headrace.errors import IntegrityError
from headrace.harness.codec import TextCodec
from headrace.ports import Rewritten
from headrace.records.arrays import Int32Bytes, IntArray
from headrace.records.harness import ParsedTurn, ParseStatus
from headrace.records.segment import ENVIRONMENT, POLICY, TEMPLATE, FinishReason, TokenSegment, joined_ids
from headrace.records.trajectory import Transcript

_STOP: Final = FinishReason.STOP
_LENGTH: Final = FinishReason.LENGTH


class SequenceMaker(Protocol):
    """What the laws need to know of the harness that made a sequence."""

    codec: TextCodec

    @property
    def template_ids(self) -> frozenset[Int32Bytes]:
        """Ids of every template segment that it places."""
        ...

    @property
    def opening_ids(self) -> tuple[Int32Bytes, ...]:
        """Ids of the template segments that a policy turn may follow."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a policy turn."""
        ...

    def parse(self, sampled: IntArray) -> ParsedTurn:
        """What the policy said."""
        ...

    def rewrite(self, sequence: Sequence[TokenSegment], following: TokenSegment) -> Rewritten | None:
        """How the sequence reads once more follows; None when it stays as it is."""
        ...

    def is_shown_by(self, output: bytes, ids: IntArray) -> bool:
        """Whether the ids read as this output."""
        ...


def check_sequence(harness: SequenceMaker, segments: Sequence[TokenSegment]) -> None:
    """Raises IntegrityError, naming the segment, when the sequence was not made by this harness.

    Each segment has passed `TokenSegment.check` already.

    Template segments are the ones that the harness places, byte for byte; observations hold no control id; the template
    opens each turn of the policy; a turn ends with a stop token exactly when the engine says so, and holds none before.
    """
    templates, control_ids = harness.template_ids, harness.codec.control_ids
    before: TokenSegment | None = None
    for index, segment in enumerate(segments):
        origin = segment.origin
        if origin is TEMPLATE:
            if segment.ids not in templates:
                raise IntegrityError(f"segment {index}: the harness has no such template")
        elif origin is POLICY:
            _check_policy(harness, segment, before, index)
        elif origin is ENVIRONMENT:
            if not control_ids.isdisjoint(ids := segment.ids_T.tolist()):
                found = sorted(control_ids.intersection(ids))
                raise IntegrityError(f"segment {index}: an observation holds control ids {found}")
        elif before is None or before.origin is not TEMPLATE:
            raise IntegrityError(f"segment {index}: history of a turn without an opening before it")
        if before is not None and before.origin is POLICY:
            _check_follower(before, segment, index)
        before = segment


def check_transcript(harness: SequenceMaker, transcript: Transcript) -> None:
    """Raises IntegrityError when a path breaks `check_sequence`, or texts and ids tell different stories.

    A path forks exactly where this harness rewrites its parent, and shows what that leaves of it. The final text is the
    decoded last turn, each action is the call that its turn's ids spell, and each observation shows the output on record.
    """
    for path in range(len(transcript.paths)):
        check_sequence(harness, transcript.sequence(path))
        _check_fork(harness, transcript, path)
    turns = [turn for path in transcript.paths for turn in sampled_turns(path.segments)]
    if transcript.final_text:
        last = harness.parse(turns[-1]) if turns else None
        if last is None or last.status is not ParseStatus.FINAL or last.text != transcript.final_text:
            raise IntegrityError(f"{transcript.episode}: the final text is not what the last sampled turn decodes to")
    for outcome in transcript.actions:
        action = outcome.action
        segment = transcript.paths[outcome.path].segments[outcome.segment]
        if not harness.is_shown_by(outcome.output, segment.ids_T):
            raise IntegrityError(f"{action.id}: the observation does not show the output on record")
        calls = harness.parse(turns[action.id.step]).calls if action.id.step < len(turns) else ()
        if action.id.ordinal >= len(calls):
            raise IntegrityError(f"{action.id}: the sampled ids of its turn hold no such call")
        call = calls[action.id.ordinal]
        if (call.tool, call.arguments) != (action.tool, action.arguments):
            raise IntegrityError(f"{action.id}: ran {action.tool}, the sampled ids of its turn say {call.tool}")


def sampled_turns(segments: Sequence[TokenSegment]) -> Iterator[IntArray]:
    """Ids of each policy turn; segments of one turn are cut at version changes and stand side by side."""
    parts: list[TokenSegment] = []
    for segment in [*segments, None]:
        if segment is not None and segment.origin is POLICY:
            parts.append(segment)
        elif parts:
            yield joined_ids(tuple(parts))
            parts = []


def _check_fork(harness: SequenceMaker, transcript: Transcript, index: int) -> None:
    node, where = transcript.paths[index], f"{transcript.episode}: path {index}"
    sequence, start = transcript.sequence(index), transcript.own_start(index)
    if node.parent is not None:
        start += node.num_carried
        following = sequence[start : start + 1]
        rewritten = harness.rewrite(transcript.sequence(node.parent.path), following[0]) if following else None
        if rewritten is None:
            raise IntegrityError(f"{where} forks where the harness goes on")
        if (node.parent.segment, node.parent.cause) != (rewritten.kept, rewritten.cause):
            raise IntegrityError(
                f"{where} forks at segment {node.parent.segment} by {node.parent.cause.value}, the harness at "
                f"{rewritten.kept} by {rewritten.cause.value}"
            )
        if node.segments[: node.num_carried] != rewritten.segments:
            raise IntegrityError(f"{where} shows another history than the harness makes of its parent")
    for place in range(start + 1, len(sequence)):
        is_answer = sequence[place - 1].origin is POLICY and sequence[place].origin is TEMPLATE
        if is_answer and harness.rewrite(sequence[:place], sequence[place]) is not None:
            raise IntegrityError(f"{where} goes on at segment {place}, where the harness forks")


def _check_follower(before: TokenSegment, segment: TokenSegment, index: int) -> None:
    """What may stand after a segment of the policy."""
    is_over = before.finish is _STOP or before.finish is _LENGTH
    if is_over and (segment.origin is not TEMPLATE or before.finish is _LENGTH):
        raise IntegrityError(
            f"segment {index}: follows a turn that ended by {before.finish} with {segment.origin.value}"
        )
    if not is_over and segment.origin is not POLICY:
        raise IntegrityError(f"segment {index}: follows a turn that did not end")


def _check_policy(harness: SequenceMaker, segment: TokenSegment, before: TokenSegment | None, index: int) -> None:
    ids, stop_ids = segment.ids_T.tolist(), harness.stop_ids
    if not harness.codec.known_ids.issuperset(ids):
        unknown = sorted(set(ids) - harness.codec.known_ids)
        raise IntegrityError(f"segment {index}: ids {unknown[:8]} stand for nothing in this tokenizer")
    num_stops = sum(map(ids.count, stop_ids))
    is_stopped = segment.finish is _STOP
    if num_stops != is_stopped or (is_stopped and ids[-1] not in stop_ids):
        stops = [place for place, i in enumerate(ids) if i in stop_ids]
        finish = segment.finish.value if segment.finish else "none"
        raise IntegrityError(
            f"segment {index}: stop tokens at {stops[:8]} of {len(ids)}, the engine's finish is {finish}"
        )
    if before is None or not (before.origin is POLICY or before.ids in harness.opening_ids):
        raise IntegrityError(f"segment {index}: a policy turn without an opening before it")
