"""Tool output to the tokens that show it: bounded, cut with a visible marker, and never a control token.

Invariant: the segment of an output holds at most the budget's tokens and no control id, and reads as the output as far as it
goes. Characters that steer a terminal or reorder text are shown as escapes.
"""

import functools
import json
import re

import msgspec

from headrace.harness.codec import TextCodec
from headrace.records.arrays import IntArray, int32_bytes
from headrace.records.segment import Origin, TokenSegment

CUT_MARKER = "\n[cut]"
_CACHED_BYTES = 512
_CACHE_ENTRIES = 4096
# C0 without tab and newline, DEL, C1, line separators, and the marks that reorder or hide text on a screen.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


class EncodedOutput(msgspec.Struct, frozen=True):
    """One observation in tokens.

    Attributes:
        segment: of origin ENVIRONMENT.
        is_cut: whether it was longer than the budget.
        neutralized: control literals in it that were encoded as ordinary text.
    """

    segment: TokenSegment
    is_cut: bool
    neutralized: int


class ObservationEncoder:
    """Encodes outputs; pure but for a bounded cache.

    Args:
        codec: the tokenizer.
        is_json: whether the template shows outputs between the quotes of a JSON string.
    """

    def __init__(self, codec: TextCodec, *, is_json: bool = False) -> None:
        self._codec = codec
        self._is_json = is_json
        self._cut_marker = codec.encode_markup(self._quoted(CUT_MARKER))
        self._encode_short = functools.lru_cache(_CACHE_ENTRIES)(self._encode)

    def encode(self, output: bytes, budget_tokens: int) -> EncodedOutput:
        """The output in at most `budget_tokens` tokens."""
        encode = self._encode_short if len(output) <= _CACHED_BYTES else self._encode
        return encode(output, budget_tokens)

    def is_shown_by(self, output: bytes, ids: IntArray) -> bool:
        """Whether the ids read as this output, whole, or as far as the cut marker."""
        shown = ids.tolist()
        text = self._visible_text(output, len(shown) + 1)
        size = len(self._cut_marker)
        if shown[-size:] == self._cut_marker and text.startswith(self._codec.decode(shown[:-size])):
            return True
        return self._codec.decode(shown) == text or shown == self._cut_marker[: max(1, len(shown))]

    def _encode(self, output: bytes, budget_tokens: int) -> EncodedOutput:
        ids, neutralized = self._codec.encode_text(self._visible_text(output, budget_tokens + 1))
        is_cut = len(ids) > budget_tokens
        if is_cut:
            ids = self._cut(ids, budget_tokens)
        return EncodedOutput(TokenSegment(Origin.ENVIRONMENT, int32_bytes(ids)), is_cut, neutralized)

    def _visible_text(self, output: bytes, num_tokens: int) -> str:
        """The output as shown, or so much of it that it needs `num_tokens` tokens or more."""
        most_chars = num_tokens * self._codec.max_token_chars
        text = output[: 4 * most_chars].decode("utf-8", "replace")[:most_chars]
        return self._codec.normalized(self._quoted(_CONTROL.sub(_visible, text)))

    def _quoted(self, text: str) -> str:
        return json.dumps(text, ensure_ascii=False)[1:-1] if self._is_json else text

    def _cut(self, ids: list[int], budget_tokens: int) -> list[int]:
        """At most `budget_tokens` ids that end with the marker, as far as it fits, and in no half character."""
        kept = ids[: max(0, budget_tokens - len(self._cut_marker))]
        # A character is up to 4 tokens here; a replacement character that was there before stays whole or goes.
        for _ in range(3):
            if kept and self._codec.decode(kept[-4:]).endswith("\ufffd"):
                kept.pop()
        return (kept + self._cut_marker)[:budget_tokens]


def _visible(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
