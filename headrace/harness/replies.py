"""Reads a policy turn by its family's parser, with nothing repaired and nothing lost.

Invariant: a turn is final, or holds calls that each have a known tool and fitting arguments, or is malformed with a problem
in words. What the parser would pass over (an unfinished thought, text after a call, a stray control token, a call that is no
JSON) is malformed.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.harness.calls import CallReader, MalformedCall, strict_json
from headrace.harness.codec import TextCodec
from headrace.harness.families import Renderer, Spec
from headrace.records.harness import ParsedCall, ParsedTurn, ParseStatus

_PROBLEMS = {
    "invalid_json": "a call is not valid JSON",
    "unclosed_block": "a call is not closed",
    "missing_name": "a call has no name",
    "malformed_structure": "a call has not the form of one",
    "unknown_tool": "unknown tool",
}


class ReplyGrammar(NamedTuple):
    """What a policy turn may look like.

    Attributes:
        opening: ids that open the policy's turn; they say whether it begins inside a thought.
        markers: control ids that a policy may write.
        tools: schemas, for families whose arguments have no types of their own.
        max_calls: calls in one turn.
    """

    opening: Sequence[int]
    markers: frozenset[int]
    tools: Sequence[Spec]
    max_calls: int


class ReplyReader:
    """Reads turns of one family.

    Args:
        renderer: whose parser reads.
        codec: the tokenizer.
        calls: checks names and arguments.
        grammar: what a turn may look like.
    """

    def __init__(self, renderer: Renderer, codec: TextCodec, calls: CallReader, grammar: ReplyGrammar) -> None:
        self._renderer = renderer
        self._codec = codec
        self._calls = calls
        self._tools = list(grammar.tools) or None
        self._opening = list(grammar.opening)
        self._markers = grammar.markers
        self._max_calls = grammar.max_calls
        self._stops = frozenset(renderer.get_stop_token_ids())
        self._marker_texts = tuple(codec.decode([token]) for token in sorted(grammar.markers))
        self._is_call_marked = any("think" not in text for text in self._marker_texts)

    def read(self, ids: list[int]) -> ParsedTurn:
        """The turn; `ids` is all of it, the stop token included if it was sampled."""
        has_stop = bool(ids) and ids[-1] in self._stops
        body = ids[:-1] if has_stop else ids
        unknown = [token for token in ids if token not in self._codec.known_ids]
        if unknown:
            known = [token for token in body if token in self._codec.known_ids]
            return _malformed(self._codec.decode(known), f"unknown token {unknown[0]}")
        text = self._codec.decode(body)
        if not has_stop:
            return _malformed(text, "the turn did not end")
        stray = [token for token in body if token in self._codec.control_ids and token not in self._markers]
        if stray:
            return _malformed(text, f"unexpected {self._codec.decode(stray[:1])}")
        parsed = self._renderer.parse_response(list(ids), tools=self._tools, prompt_ids=self._opening)
        try:
            return self._as_turn(parsed, body, text)
        except MalformedCall as error:
            return _malformed(text, str(error))

    def _as_turn(self, parsed: Any, body: list[int], text: str) -> ParsedTurn:
        """Raises MalformedCall."""
        if parsed.reasoning_complete is False:
            raise MalformedCall("the thought is not closed")
        if not parsed.tool_calls:
            self._check_final(parsed.content, body)
            return ParsedTurn(ParseStatus.FINAL, parsed.content)
        if len(parsed.tool_calls) > self._max_calls:
            raise MalformedCall(f"{len(parsed.tool_calls)} calls in one turn; at most {self._max_calls}")
        calls = tuple(map(self._call, parsed.tool_calls))
        self._check_between(parsed.tool_calls, body)
        return ParsedTurn(ParseStatus.CALLS, text, calls=calls)

    def _call(self, call: Any) -> ParsedCall:
        """Raises MalformedCall."""
        status = str(call.status.value)
        if status != "ok":
            # The parser's word for arguments of an untyped format that are no JSON; the schema says whether they fit.
            is_text_argument = status == "invalid_json" and call.name and isinstance(call.arguments, dict)
            if not is_text_argument:
                raise MalformedCall(f"{_PROBLEMS.get(status, status)}: {call.raw.strip()[:64]}")
        raw = call.raw.strip()
        if raw.startswith("{"):
            whole = strict_json(raw)
            if not isinstance(whole, dict) or set(whole) not in ({"name", "arguments"}, {"name", "parameters"}):
                raise MalformedCall("a call has name and arguments")
        try:
            written = msgspec.json.encode({"name": call.name, "arguments": call.arguments}).decode()
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise MalformedCall(f"arguments cannot be read: {error}") from error
        return self._calls.read(written)

    def _check_final(self, content: str, body: list[int]) -> None:
        """A turn that the parser found no call in must not have tried to make one. Raises MalformedCall."""
        shown = [text for text in self._marker_texts if text in content]
        if shown and not self._markers.isdisjoint(body):
            raise MalformedCall(f"unexpected {shown[0]}")
        if self._tools and not self._is_call_marked and content.lstrip().startswith("{"):
            raise MalformedCall("a call is not valid JSON, or has no name")

    def _check_between(self, calls: Sequence[Any], body: list[int]) -> None:
        """Text behind a call would be lost. Raises MalformedCall."""
        spans = [call.token_span for call in calls if call.token_span is not None]
        edges = [*(start for start, _ in spans[1:]), len(body)]
        for (_, stop), start in zip(spans, edges, strict=False):
            rest = [token for token in body[stop:start] if token not in self._codec.control_ids]
            if self._codec.decode(rest).strip():
                raise MalformedCall("text after a call")


def _malformed(text: str, problem: str) -> ParsedTurn:
    return ParsedTurn(ParseStatus.MALFORMED, text, problem=problem)
