"""Turns of the known model families, by the renderers of the `renderers` package or a model's own chat template.

Invariant: the first prompt is rendered once; each later turn is the exact ids already held, then what the family places and
texts encoded as ordinary text. Nothing that was sampled is rendered or encoded again, and only the template and the policy
place control ids. A family or option that would rewrite an earlier turn is refused when the harness is made, or, where it
only drops thoughts, goes on as a fork: the parts that stay are slices of the ids held.

Texts and what stands around them are encoded apart. The ids differ from those of one pass over both only where a text begins
or ends with characters that the tokenizer merges with the template's, such as a second newline.
"""

import functools
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import msgspec

from headrace.errors import ConfigError
from headrace.harness.calls import CallLimits, CallReader
from headrace.harness.checks import check_transcript
from headrace.harness.codec import TextCodec
from headrace.harness.families import HOLES, FamilyTokenizer, Message, Spec, open_renderer
from headrace.harness.observations import ObservationEncoder
from headrace.harness.replies import ReplyGrammar, ReplyReader
from headrace.harness.rewriting import Rewriter, ThoughtDropper
from headrace.harness.turns import Role, TurnProbe
from headrace.ports import ObservedTokens, Rewritten
from headrace.records.arrays import Int32Bytes, IntArray, as_int32, int32_bytes
from headrace.records.harness import ParsedTurn, ToolSchema
from headrace.records.ids import Address
from headrace.records.provenance import content_version
from headrace.records.segment import Origin, TokenSegment
from headrace.records.task import Task
from headrace.records.trajectory import Transcript

_CACHED_BYTES = 512
_CACHE_ENTRIES = 4096
_SOURCES = (
    "calls.py",
    "codec.py",
    "families.py",
    "forks.py",
    "observations.py",
    "rendered.py",
    "replies.py",
    "rewriting.py",
    "turns.py",
)


class RenderersOptions(CallLimits, frozen=True, kw_only=True):
    """Options of the `renderers` harness.

    Attributes:
        family: renderer of the package, such as `qwen3` or `llama-3`; `default` takes the model's own chat template.
        settings: the renderer's own settings, such as `enable_thinking`; with `default` also `tool_parser` and whatever the
            template reads.
        system_prompt: text of the system turn; empty leaves it to the template.
        output_role: role of the message that shows a tool's output.
        objection_role: role of the message that tells the policy that its turn could not be read.
        on_rewrite: `refuse` a family that rewrites earlier turns, or `fork`: where it drops thoughts from them, the episode
            goes on as a path of its own, which shows what is left of them as history.
    """

    family: str
    settings: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    system_prompt: str = ""
    output_role: Role = "tool"
    objection_role: Role = "tool"
    on_rewrite: Literal["refuse", "fork"] = "refuse"


class RenderedHarness:
    """Implements `ports.Harness`. Pure: the same arguments give the same tokens in every process; caches are bounded."""

    def __init__(self, options: RenderersOptions, tools: Sequence[ToolSchema], folder: Path) -> None:
        """Raises ConfigError; a family that rewrites history is a `RewrittenHistory` with its cause."""
        self.codec = TextCodec.from_folder(folder)
        self._specs = [_spec(tool) for tool in tools]
        tokenizer = FamilyTokenizer.from_folder(self.codec, folder)
        renderer = open_renderer(options.family, options.settings, tokenizer)
        dropper = ThoughtDropper(self.codec)
        self._probe = TurnProbe(
            renderer,
            tokenizer,
            system_prompt=options.system_prompt,
            tools=self._specs,
            dropper=dropper if options.on_rewrite == "fork" else None,
        )
        self._hole = tokenizer.holes[HOLES[0]]
        frames = self._probe.frames(options.output_role, options.objection_role)
        self._stops = tuple(renderer.get_stop_token_ids())
        self._prompt_head, self._prompt_tail = _template(frames.prompt.head), _template(frames.prompt.tail)
        self._output_head, self._output_joint, self._output_tail = map(
            _template, (frames.outputs.head, frames.outputs.joint, frames.outputs.tail)
        )
        self._objection_head, self._objection_tail = map(_template, (frames.objection.head, frames.objection.tail))
        self._rewriter = Rewriter(dropper, {int32_bytes(list(head)): drops for head, drops in frames.drops.items()})
        self._past_openings = frozenset[Int32Bytes]()
        if options.on_rewrite == "fork":
            self._probe.verify(frames, self._rewriter, (options.output_role, options.objection_role))
            tails = (frames.prompt.tail, frames.outputs.tail, frames.objection.tail)
            self._past_openings = frozenset(int32_bytes(dropper.bare(tail)) for tail in tails)
        self._outputs = ObservationEncoder(self.codec, is_json=frames.is_json)
        objection_is_json = frames.is_json and options.objection_role == options.output_role
        self._objections = ObservationEncoder(self.codec, is_json=objection_is_json)
        self._reader = ReplyReader(
            renderer,
            self.codec,
            CallReader(tools, options.max_call_chars),
            ReplyGrammar(frames.prompt.tail, frames.markers, self._specs, options.max_calls),
        )
        self._read_short = functools.lru_cache(_CACHE_ENTRIES)(self._read)
        self._open_question = functools.lru_cache(_CACHE_ENTRIES)(self._open)
        self._version = content_version(
            self.codec.source,
            tokenizer.chat_template,
            msgspec.json.encode(options, order="deterministic"),
            msgspec.json.encode(tuple(tools)),
            *((Path(__file__).parent / name).read_bytes() for name in _SOURCES),
            "python {}.{}".format(*sys.version_info),  # its JSON scanner says where a text stops being JSON
            *(f"{name}=={metadata.version(name)}" for name in ("fastjsonschema", "renderers", "tokenizers")),
            *([f"transformers=={metadata.version('transformers')}"] if options.family == "default" else []),
        )

    @property
    def version(self) -> Address:
        return self._version

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._stops

    @property
    def template_ids(self) -> frozenset[Int32Bytes]:
        """Ids of every template segment that this harness places."""
        return self._past_openings | frozenset(
            part.ids
            for part in (
                self._prompt_head,
                self._prompt_tail,
                self._output_head,
                self._output_joint,
                self._output_tail,
                self._objection_head,
                self._objection_tail,
            )
        )

    @property
    def opening_ids(self) -> tuple[Int32Bytes, ...]:
        """Ids of the template segments that a policy turn may follow."""
        return (self._prompt_tail.ids, self._output_tail.ids, self._objection_tail.ids)

    def open(self, task: Task) -> tuple[TokenSegment, ...]:
        if task.attachments:
            raise ConfigError(f"task {task.family}[{task.index}] has attachments; this harness renders text only")
        return self._open_question(task.question)

    def parse(self, sampled: IntArray) -> ParsedTurn:
        data = sampled.tobytes()
        return self._read_short(data) if len(data) <= _CACHED_BYTES else self._read(data)

    def observe(self, outputs: Sequence[bytes], budget_tokens: int) -> ObservedTokens:
        if not outputs:
            raise ValueError("observe needs at least one output; a turn without calls is final or malformed")
        return _observed(
            self._outputs, outputs, budget_tokens, (self._output_head, self._output_joint, self._output_tail)
        )

    def object_to(self, problem: str, budget_tokens: int) -> ObservedTokens:
        outputs = (f"error: {problem}".encode("utf-8", "replace"),)
        frame = (self._objection_head, self._objection_head, self._objection_tail)
        return _observed(self._objections, outputs, budget_tokens, frame)

    def rewrite(self, sequence: Sequence[TokenSegment], following: TokenSegment) -> Rewritten | None:
        return self._rewriter.rewrite(sequence, following)

    def check(self, transcript: Transcript) -> None:
        check_transcript(self, transcript)

    def decode(self, ids: IntArray) -> str:
        return self.codec.decode(ids.tolist())

    def is_shown_by(self, output: bytes, ids: IntArray) -> bool:
        """Whether the ids read as this output, whole, or as far as the cut marker."""
        return self._outputs.is_shown_by(output, ids)

    def turn_ids(self, text: str, calls: Sequence[str]) -> IntArray:
        """Ids of a policy turn as the family's template writes it: text, then calls by their JSON, then the stop token.

        Raises:
            ValueError: when a call is no JSON object with name and arguments; the template has no form for it.
        """
        turn: Message = {"role": "assistant", "content": HOLES[0] if text else ""}
        if calls:
            turn["tool_calls"] = [
                {"id": f"call_{place}", "type": "function", "function": _function(call)}
                for place, call in enumerate(calls)
            ]
        ids: list[int] = []
        for token in self._probe.completion(turn):
            ids.extend(self.codec.encode_text(text)[0] if token == self._hole else [token])
        return as_int32(int32_bytes(ids))

    def _open(self, question: str) -> tuple[TokenSegment, ...]:
        ids, _ = self.codec.encode_text(question)
        return (self._prompt_head, TokenSegment(Origin.ENVIRONMENT, int32_bytes(ids)), self._prompt_tail)

    def _read(self, data: bytes) -> ParsedTurn:
        return self._reader.read(as_int32(Int32Bytes(data)).tolist())


def _observed(
    encoder: ObservationEncoder,
    outputs: Sequence[bytes],
    budget_tokens: int,
    frame: tuple[TokenSegment, TokenSegment, TokenSegment],
) -> ObservedTokens:
    head, joint, tail = frame
    shown = [encoder.encode(output, budget_tokens) for output in outputs]
    segments = [head, shown[0].segment]
    for one in shown[1:]:
        segments += (joint, one.segment)
    return ObservedTokens(
        segments=(*segments, tail),
        observation_indices=tuple(range(1, 2 * len(shown), 2)),
        is_cut=tuple(one.is_cut for one in shown),
        neutralized=tuple(one.neutralized for one in shown),
    )


def _function(call: str) -> Spec:
    try:
        function = msgspec.json.decode(call, type=dict[str, Any])
        return {"name": str(function["name"]), "arguments": dict(function["arguments"])}
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise ValueError(f"call {call[:64]!r} cannot be written by the template: {error}") from error


def _spec(tool: ToolSchema) -> Spec:
    parameters = msgspec.json.decode(tool.parameters, type=dict[str, Any])
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


def _template(ids: Sequence[int]) -> TokenSegment:
    return TokenSegment(Origin.TEMPLATE, int32_bytes(list(ids)))
