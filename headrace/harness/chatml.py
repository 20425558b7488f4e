r"""ChatML turns with Hermes-style tool calls, placed token by token.

Invariant: the sequence after a turn is a strict prefix of the sequence after the next one. Earlier tokens are never
rendered again, sampled text is never encoded, and only template segments hold control ids. A turn that the policy ended
is followed by a template segment that begins with the newline after ``<|im_end|>``, so no boundary loses it.

    <|im_start|>system\n SYSTEM <|im_end|>\n                              template
    <|im_start|>user\n   QUESTION   <|im_end|>\n<|im_start|>assistant\n     template, environment, template
    <tool_call>\n{"name": …, "arguments": {…}}\n</tool_call><|im_end|>     policy
    \n<|im_start|>user\n<tool_response>\n                                 template
    OUTPUT                                                               environment, one segment for each call
    \n</tool_response><|im_end|>\n<|im_start|>assistant\n                 template
    ANSWER<|im_end|>                                                     policy
"""

import functools
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from headrace.config import decode_options
from headrace.errors import ConfigError
from headrace.harness.calls import CallLimits, CallReader, MalformedCall
from headrace.harness.checks import check_transcript
from headrace.harness.codec import TextCodec
from headrace.harness.observations import ObservationEncoder
from headrace.ports import ObservedTokens, Rewritten
from headrace.records.arrays import Int32Bytes, IntArray, as_int32, int32_bytes
from headrace.records.harness import ParsedTurn, ParseStatus, ToolSchema
from headrace.records.ids import Address
from headrace.records.provenance import content_version
from headrace.records.segment import Origin, TokenSegment
from headrace.records.task import Task
from headrace.records.trajectory import Transcript

ASSETS = Path(__file__).parent / "assets"
TOOLS_INTRODUCTION = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_FORMAT = (
    '\n</tools>\n\nFor each function call, return a JSON object with function name and arguments within a "tool_call" '
    'block:\n{"name": <function-name>, "arguments": <args-json-object>}'
)
_SOURCES = ("calls.py", "chatml.py", "codec.py", "observations.py")
_CACHED_BYTES = 512
_CACHE_ENTRIES = 4096


class ChatMLOptions(CallLimits, frozen=True):
    """Options of the `chatml` harness.

    Attributes:
        system_prompt: text of the system turn.
        show_tools: whether the system turn also describes the tools.
    """

    system_prompt: str = "Use the calculator."
    show_tools: bool = False


class ChatMLHarness:
    """Implements `ports.Harness`. Pure: the same arguments give the same tokens in every process; caches are bounded."""

    def __init__(self, options: ChatMLOptions, tools: Sequence[ToolSchema], codec: TextCodec) -> None:
        self.codec = codec
        self._options = options
        self._reader = CallReader(tools, options.max_call_chars)
        start, self._end, self._call, self._call_end, response, response_end = (
            codec.control(literal)
            for literal in (
                "<|im_start|>",
                "<|im_end|>",
                "<tool_call>",
                "</tool_call>",
                "<tool_response>",
                "</tool_response>",
            )
        )
        markup = codec.encode_markup
        opening = (start, "assistant\n")
        self._prompt_head = _template(
            markup(start, "system\n", _system_text(options, tools), self._end, "\n", start, "user\n")
        )
        self._prompt_tail = _template(markup(self._end, "\n", *opening))
        self._response_head = _template(markup("\n", start, "user\n", response, "\n"))
        self._response_joint = _template(markup("\n", response_end, "\n", response, "\n"))
        self._response_tail = _template(markup("\n", response_end, self._end, "\n", *opening))
        self._turn_ends = (self._prompt_tail.ids, self._response_tail.ids)
        self._templates = frozenset(
            part.ids
            for part in (
                self._prompt_head,
                self._prompt_tail,
                self._response_head,
                self._response_joint,
                self._response_tail,
            )
        )
        self._observations = ObservationEncoder(codec)
        self._parse_short = functools.lru_cache(_CACHE_ENTRIES)(self._parse_bytes)
        self._open_question = functools.lru_cache(_CACHE_ENTRIES)(self._open)
        self._version = content_version(
            codec.source,
            msgspec.json.encode(options),
            msgspec.json.encode(tuple(tools)),
            *((Path(__file__).parent / name).read_bytes() for name in _SOURCES),
            "python {}.{}".format(*sys.version_info),  # its JSON scanner says where a text stops being JSON
            *(f"{name}=={metadata.version(name)}" for name in ("fastjsonschema", "tokenizers")),
        )

    @property
    def version(self) -> Address:
        return self._version

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (self._end,)

    @property
    def template_ids(self) -> frozenset[Int32Bytes]:
        """Ids of every template segment that this harness places."""
        return self._templates

    @property
    def opening_ids(self) -> tuple[Int32Bytes, ...]:
        """Ids of the template segments that a policy turn may follow."""
        return self._turn_ends

    def open(self, task: Task) -> tuple[TokenSegment, ...]:
        if task.attachments:
            raise ConfigError(f"task {task.family}[{task.index}] has attachments; the chatml harness renders text only")
        return self._open_question(task.question)

    def parse(self, sampled: IntArray) -> ParsedTurn:
        data = sampled.tobytes()
        return self._parse_short(data) if len(data) <= _CACHED_BYTES else self._parse_bytes(data)

    def observe(self, outputs: Sequence[bytes], budget_tokens: int) -> ObservedTokens:
        if not outputs:
            raise ValueError("observe needs at least one output; a turn without calls is final or malformed")
        shown = [self._observations.encode(output, budget_tokens) for output in outputs]
        segments = [self._response_head, shown[0].segment]
        for one in shown[1:]:
            segments += (self._response_joint, one.segment)
        segments.append(self._response_tail)
        return ObservedTokens(
            segments=tuple(segments),
            observation_indices=tuple(range(1, 2 * len(shown), 2)),
            is_cut=tuple(one.is_cut for one in shown),
            neutralized=tuple(one.neutralized for one in shown),
        )

    def object_to(self, problem: str, budget_tokens: int) -> ObservedTokens:
        return self.observe((f"error: {problem}".encode("utf-8", "replace"),), budget_tokens)

    def rewrite(self, sequence: Sequence[TokenSegment], following: TokenSegment) -> Rewritten | None:
        return None

    def check(self, transcript: Transcript) -> None:
        check_transcript(self, transcript)

    def decode(self, ids: IntArray) -> str:
        return self.codec.decode(ids.tolist())

    def is_shown_by(self, output: bytes, ids: IntArray) -> bool:
        """Whether the ids read as this output, whole, or as far as the cut marker."""
        return self._observations.is_shown_by(output, ids)

    def turn_ids(self, text: str, calls: Sequence[str]) -> IntArray:
        """Ids of a policy turn as a policy would sample it: text, then calls by their raw JSON, then the stop token."""
        parts: list[str | int] = [text]
        for index, call in enumerate(calls):
            parts += ["\n"] if index else []
            parts += [self._call, "\n", call, "\n", self._call_end]
        return as_int32(int32_bytes(self.codec.encode_markup(*parts, self._end)))

    def _open(self, question: str) -> tuple[TokenSegment, ...]:
        ids, _ = self.codec.encode_text(question)
        return (self._prompt_head, TokenSegment(Origin.ENVIRONMENT, int32_bytes(ids)), self._prompt_tail)

    def _parse_bytes(self, data: bytes) -> ParsedTurn:
        ids: list[int] = as_int32(Int32Bytes(data)).tolist()
        has_stop = bool(ids) and ids[-1] == self._end
        body = ids[:-1] if has_stop else ids
        if not self.codec.known_ids.issuperset(ids):
            unknown = next(i for i in ids if i not in self.codec.known_ids)
            body = [i for i in body if i in self.codec.known_ids]
            return ParsedTurn(ParseStatus.MALFORMED, self.codec.decode(body), problem=f"unknown token {unknown}")
        text = self.codec.decode(body)
        if not has_stop:
            return ParsedTurn(ParseStatus.MALFORMED, text, problem="the turn did not end")
        if self.codec.control_ids.isdisjoint(body):
            return ParsedTurn(ParseStatus.FINAL, text)
        try:
            calls = tuple(map(self._reader.read, self._call_bodies(body)))
        except MalformedCall as error:
            return ParsedTurn(ParseStatus.MALFORMED, text, problem=str(error))
        return ParsedTurn(ParseStatus.CALLS, text, calls=calls)

    def _call_bodies(self, body: list[int]) -> list[str]:
        """Text of each call. Markup is what the ids say; the same characters spelled in ordinary tokens are text."""
        control_ids = self.codec.control_ids
        marks = [place for place, token in enumerate(body) if token in control_ids]
        for index, place in enumerate(marks):
            if body[place] != (self._call_end if index % 2 else self._call):
                raise MalformedCall(f"unexpected {self.codec.decode([body[place]])}")
        if len(marks) % 2:
            raise MalformedCall("<tool_call> is not closed")
        if len(marks) // 2 > self._options.max_calls:
            raise MalformedCall(f"{len(marks) // 2} calls in one turn; at most {self._options.max_calls}")
        for stop, start in zip(marks[1::2], [*marks[2::2], len(body)], strict=True):
            if self.codec.decode(body[stop + 1 : start]).strip():
                raise MalformedCall("text after a call")
        return [self.codec.decode(body[start + 1 : stop]) for start, stop in zip(marks[::2], marks[1::2], strict=True)]


def open_harness(
    kind: str, options: dict[str, Any], tools: Sequence[ToolSchema], folder: Path | None = None
) -> ChatMLHarness:
    """The harness of a configuration; `folder` holds the policy's tokenizer.json, None takes the bundled one.

    Raises:
        ConfigError: naming the kind, option, tool or file.
    """
    if kind != "chatml":
        raise ConfigError(f"harness.kind is {kind!r}; known: chatml")
    own = decode_options(options, ChatMLOptions, "harness.options")
    return ChatMLHarness(own, tools, TextCodec.from_folder(folder or ASSETS))


def _template(ids: list[int]) -> TokenSegment:
    return TokenSegment(Origin.TEMPLATE, int32_bytes(ids))


def _system_text(options: ChatMLOptions, tools: Sequence[ToolSchema]) -> str:
    if not options.show_tools:
        return options.system_prompt
    lines = [
        msgspec.json.encode(
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": msgspec.Raw(tool.parameters.encode()),
                },
            }
        ).decode()
        for tool in tools
    ]
    return "\n".join([options.system_prompt + TOOLS_INTRODUCTION, *lines]) + TOOLS_FORMAT
