"""The laws of a token sequence that only its harness can judge; checked at sealing and when a run is verified.

Invariant: what passes holds control tokens only where the template or the policy put them, each policy turn stands where
the template opened one, and what ran is what the sampled ids say.
"""

from collections.abc import Iterator, Sequence

from headrace.errors import IntegrityError
from headrace.harness.chatml import ChatMLHarness
from headrace.records.arrays import IntArray, as_int32, int32_bytes
from headrace.records.harness import ParseStatus
from headrace.records.segment import FinishReason, Origin, TokenSegment
from headrace.records.trajectory import Transcript


def check_sequence(harness: ChatMLHarness, segments: Sequence[TokenSegment]) -> None:
    """Raises IntegrityError, naming the segment, when the sequence was not made by this harness.

    Template segments are the ones that the harness places, byte for byte; observations hold no control id; the template
    opens each turn of the policy; a turn ends with a stop token exactly when the engine says so, and holds none before.
    """
    for index, segment in enumerate(segments):
        segment.check()
        _check_segment(harness, segments, index)


def check_transcript(harness: ChatMLHarness, transcript: Transcript) -> None:
    """Raises IntegrityError when a path breaks `check_sequence`, or texts and ids tell different stories.

    The final text is the decoded last turn, each action is the call that its turn's ids spell, and each observation
    shows the output on record.
    """
    for path in range(len(transcript.paths)):
        check_sequence(harness, transcript.sequence(path))
    turns = list(sampled_turns(transcript.sequence(0)))
    if transcript.final_text:
        last = harness.parse(turns[-1]) if turns else None
        if last is None or last.status is not ParseStatus.FINAL or last.text != transcript.final_text:
            raise IntegrityError(f"{transcript.episode}: the final text is not what the last sampled turn decodes to")
    for outcome in transcript.actions:
        action = outcome.action
        segment = transcript.paths[outcome.path].segments[outcome.segment]
        if not harness.is_shown_by(outcome.output, segment.ids_T):
            raise IntegrityError(f"{action.id}: the observation does not show the output on record")
        if outcome.path:
            continue  # steps count over the whole episode, and only the root path holds every one of them
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
        if segment is not None and segment.origin is Origin.POLICY:
            parts.append(segment)
        elif parts:
            yield as_int32(int32_bytes([i for part in parts for i in part.ids_T.tolist()]))
            parts = []


def _check_segment(harness: ChatMLHarness, segments: Sequence[TokenSegment], index: int) -> None:
    segment = segments[index]
    before = segments[index - 1] if index else None
    match segment.origin:
        case Origin.TEMPLATE:
            if segment.ids not in harness.template_ids:
                raise IntegrityError(f"segment {index}: the harness has no such template")
        case Origin.ENVIRONMENT:
            found = harness.codec.control_ids.intersection(segment.ids_T.tolist())
            if found:
                raise IntegrityError(f"segment {index}: an observation holds control ids {sorted(found)}")
        case Origin.POLICY:
            _check_policy(harness, segment, index)
            if before is None or not (before.origin is Origin.POLICY or before.ids in harness.opening_ids):
                raise IntegrityError(f"segment {index}: a policy turn without an opening before it")
    if before is None or before.origin is not Origin.POLICY:
        return
    is_over = before.finish in {FinishReason.STOP, FinishReason.LENGTH}
    if is_over and (segment.origin is not Origin.TEMPLATE or before.finish is FinishReason.LENGTH):
        raise IntegrityError(
            f"segment {index}: follows a turn that ended by {before.finish} with {segment.origin.value}"
        )
    if not is_over and segment.origin is not Origin.POLICY:
        raise IntegrityError(f"segment {index}: follows a turn that did not end")


def _check_policy(harness: ChatMLHarness, segment: TokenSegment, index: int) -> None:
    ids = segment.ids_T.tolist()
    if not harness.codec.known_ids.issuperset(ids):
        unknown = sorted(set(ids) - harness.codec.known_ids)
        raise IntegrityError(f"segment {index}: ids {unknown[:8]} stand for nothing in this tokenizer")
    stops = [place for place, i in enumerate(ids) if i in harness.stop_ids]
    expected = [len(ids) - 1] if segment.finish is FinishReason.STOP else []
    if stops != expected:
        finish = segment.finish.value if segment.finish else "none"
        raise IntegrityError(
            f"segment {index}: stop tokens at {stops[:8]} of {len(ids)}, the engine's finish is {finish}"
        )
