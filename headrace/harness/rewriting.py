r"""How a sequence reads once a template has dropped thoughts from its earlier turns.

Invariant: nothing is rendered or encoded again. What a turn reads as later is a slice of the very ids that were sampled: it
holds no id that was not there, and is context only; it stands as HISTORY, without log-probs.

Example: `<|im_start|>assistant\n` and `<think>\n\n</think>\n\n42<|im_end|>` read later as `<|im_start|>assistant\n` and
`42<|im_end|>`, whether the policy sampled the empty thought or the template placed it in the opening.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from headrace.harness.codec import TextCodec
from headrace.ports import Rewritten
from headrace.records.arrays import Int32Bytes, int32_bytes
from headrace.records.segment import Origin, TokenSegment
from headrace.records.trajectory import ForkCause

Drops = Literal["nothing", "blank", "all"]
"""Which thoughts of earlier turns go: none, those that hold nothing but newlines, or every one."""
DROPS: tuple[Drops, ...] = ("nothing", "blank", "all")


class ThoughtDropper:
    """What a turn reads as later.

    Args:
        codec: the tokenizer; without control tokens around thoughts it drops none.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._open, self._close = codec.controls.get("<think>"), codec.controls.get("</think>")

    def bare(self, opening: Sequence[int]) -> list[int]:
        """What opens a turn, without the thought that it begins."""
        return list(opening[: self._thought_start(opening)])

    def past(self, opening: Sequence[int], turn: Sequence[int], drops: Drops) -> tuple[list[int], list[int]]:
        """(opening, turn) as they read later.

        A thought begins with its control token, in the opening or before any text of the turn, and ends with the first
        that closes it; newlines behind it go with it.
        """
        kept = self._thought_start(opening)
        whole, place = [*opening[kept:], *turn], len(opening) - kept
        end = self._thought_end(whole, drops)
        if end == 0:
            return list(opening), list(turn)
        return list(opening[:kept]), whole[max(end, place) :]

    def _thought_start(self, opening: Sequence[int]) -> int:
        return opening.index(self._open) if self._open in opening else len(opening)

    def _thought_end(self, ids: Sequence[int], drops: Drops) -> int:
        """Number of leading ids that go."""
        if drops == "nothing" or self._open not in ids or self._close not in ids:
            return 0
        start, close = ids.index(self._open), ids.index(self._close)
        decode = self._codec.decode
        if start > close or decode(ids[:start]).strip():
            return 0
        if drops == "blank" and decode(ids[start + 1 : close]).strip("\n"):
            return 0
        end = close + 1
        while end < len(ids) and not decode(ids[end : end + 1]).strip("\n"):
            end += 1
        return end


class Rewriter:
    """Rewrites whole sequences.

    Args:
        dropper: what a turn reads as later.
        drops: which thoughts go, by the first template segment of what follows.
    """

    def __init__(self, dropper: ThoughtDropper, drops: Mapping[Int32Bytes, Drops]) -> None:
        self._dropper = dropper
        self._drops = drops

    def rewrite(self, sequence: Sequence[TokenSegment], following: TokenSegment) -> Rewritten | None:
        """See `ports.Harness.rewrite`."""
        drops = self._drops.get(following.ids, "nothing")
        if drops == "nothing":
            return None
        parts = list(_parts(sequence))
        now = [_joined(part) for part in parts]
        later = list(now)
        for place, part in enumerate(parts):
            if _is_said(part[0]):
                later[place - 1], later[place] = self._dropper.past(now[place - 1], now[place], drops)
        kept = next((place for place, ids in enumerate(later) if ids != now[place]), None)
        if kept is None:
            return None
        carried = [_carried(part[0], ids) for part, ids in zip(parts[kept:], later[kept:], strict=True)]
        return Rewritten(sum(map(len, parts[:kept])), tuple(carried), ForkCause.THINKING_DROPPED)


def _parts(sequence: Sequence[TokenSegment]) -> Iterator[list[TokenSegment]]:
    """Segments of one turn together, every other one by itself."""
    for is_said, group in itertools.groupby(sequence, _is_said):
        segments = list(group)
        yield from [segments] if is_said else ([segment] for segment in segments)


def _carried(segment: TokenSegment, ids: list[int]) -> TokenSegment:
    """A part as it stands on another path: without what its sampler said of it."""
    origin = Origin.HISTORY if segment.origin is Origin.POLICY else segment.origin
    return TokenSegment(origin, int32_bytes(ids), attachments=segment.attachments)


def _joined(part: Sequence[TokenSegment]) -> list[int]:
    return [token for segment in part for token in segment.ids_T.tolist()]


def _is_said(segment: TokenSegment) -> bool:
    return segment.origin is Origin.POLICY or segment.origin is Origin.HISTORY
