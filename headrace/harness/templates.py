"""Is a chat template append-only? Whether what it renders after a turn starts with what it rendered before.

Invariant: the verdict is about the template's own renders of one short conversation, text against text; a template that is
append-only here may still be refused for a tokenizer, and one that is not is never taken for it.
"""

import contextlib
import enum

import msgspec

from headrace.errors import ConfigError
from headrace.harness.families import Message, Spec, render_template
from headrace.harness.forks import find_fork
from headrace.records.trajectory import ForkCause

QUESTION, ANSWER, THOUGHT, OUTPUT, FURTHER = "Is it so?", "It is so.", "Let me see now.", "It rains.", "And tomorrow?"
_TOOL: Spec = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Says how the weather is.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_CALL = {"id": "call00000", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}


class Verdict(enum.Enum):
    """What a template does to a turn once another message follows."""

    APPEND_ONLY = "append-only"
    THINKING_DROPPED = "thinking dropped"
    HISTORY_REWRITTEN = "history rewritten"
    NOT_SHOWN = "not shown"
    REFUSED = "refused"


class TemplateReport(msgspec.Struct, frozen=True):
    """Verdicts by what follows and what the turn was.

    Attributes:
        question: a user's question after a plain answer.
        question_after_thought: the same after an answer with thinking.
        output: a tool's output after a call.
        output_after_thought: the same after a call with thinking.
    """

    question: Verdict
    question_after_thought: Verdict
    output: Verdict
    output_after_thought: Verdict


def report_template(source: str) -> TemplateReport:
    """The verdicts on a Jinja chat template."""
    answer: Message = {"role": "assistant", "content": ANSWER}
    call: Message = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    further: Message = {"role": "user", "content": FURTHER}
    output: Message = {"role": "tool", "name": "weather", "tool_call_id": "call00000", "content": OUTPUT}
    return TemplateReport(
        question=_verdict(source, answer, further, thought=""),
        question_after_thought=_verdict(source, answer, further, thought=THOUGHT),
        output=_verdict(source, call, output, thought=""),
        output_after_thought=_verdict(source, call, output, thought=THOUGHT),
    )


def _verdict(source: str, turn: Message, new: Message, thought: str) -> Verdict:
    try:
        if not thought:
            return _of_turn(source, turn, new, thought)
        # By the fields that templates read, else inside the content, as a model without such a field would say it.
        fields = {**turn, "reasoning_content": thought, "thinking": thought}
        if thought in _rendered(source, [fields], is_open=False):
            return _of_turn(source, fields, new, thought)
        inside = {**turn, "content": f"<think>\n{thought}\n</think>\n\n{turn['content']}"}
        return _of_turn(source, inside, new, thought)
    except ConfigError:
        return Verdict.REFUSED


def _of_turn(source: str, turn: Message, new: Message, thought: str) -> Verdict:
    """Raises ConfigError when the template refuses."""
    is_call = bool(turn.get("tool_calls"))
    prompt = _rendered(source, [], is_open=True, has_tools=is_call)
    # What closes the whole text is not part of the turn.
    before = _rendered(source, [turn], is_open=False).rstrip().removesuffix(_TOKENS["eos_token"]).rstrip()
    after = _rendered(source, [turn, new], is_open=True)
    said = "Rome" if is_call else ANSWER
    if said not in before or new["content"] not in after:
        return Verdict.NOT_SHOWN
    if thought not in before:
        return Verdict.THINKING_DROPPED
    if not before.startswith(prompt):
        return Verdict.HISTORY_REWRITTEN
    fork = find_fork([*map(ord, before)], [*map(ord, after)], before_text=before, after_text=after)
    if fork is None:
        return Verdict.APPEND_ONLY
    is_dropped = fork.cause is ForkCause.THINKING_DROPPED or thought not in after
    return Verdict.THINKING_DROPPED if is_dropped else Verdict.HISTORY_REWRITTEN


def _rendered(source: str, turns: list[Message], *, is_open: bool, has_tools: bool | None = None) -> str:
    """Text of the conversation; templates of models with images want contents as lists. Raises ConfigError."""
    messages: list[Message] = [{"role": "user", "content": QUESTION}, *turns]
    is_calling = any(turn.get("tool_calls") for turn in turns) if has_tools is None else has_tools
    tools = [_TOOL] if is_calling else None
    with contextlib.suppress(ConfigError):
        text = render_template(source, messages, tools=tools, add_generation_prompt=is_open, **_TOKENS)
        if QUESTION in text:
            return text
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]
    return render_template(source, parts, tools=tools, add_generation_prompt=is_open, **_TOKENS)
