r"""What a family's template places around texts, learnt once from its renderer with holes in their place.

Invariant: every piece comes from the package's renderer or the folder's own chat template, and continues the exact ids
held before it. A family whose later turns depend on more than the texts, or rewrite what was sampled, is refused with the
cause.

Example: Qwen3 places `\n<|im_start|>user\n<tool_response>\n` before a tool's output and
`\n</tool_response><|im_end|>\n<|im_start|>assistant\n` after it.
"""

import itertools
from collections.abc import Sequence
from typing import Literal

import msgspec

from headrace.errors import ConfigError
from headrace.harness.families import HOLES, FamilyTokenizer, Message, Renderer, Spec
from headrace.harness.forks import Fork, RewrittenHistory, common_prefix, describe_fork, find_fork

Role = Literal["tool", "user"]
_PROBED_OUTPUTS = 3
_QUESTION, _ANSWER, _THOUGHT = "Is it so?", "It is so.", "Let me see."


class Frame(msgspec.Struct, frozen=True):
    """What stands around the texts of one or more messages.

    Attributes:
        head: before the first.
        joint: between two.
        tail: after the last, up to and including the opening of the policy's turn.
    """

    head: tuple[int, ...]
    joint: tuple[int, ...]
    tail: tuple[int, ...]


class TurnFrames(msgspec.Struct, frozen=True):
    """Everything that a family's template places.

    Attributes:
        prompt: around the question.
        outputs: around tool outputs.
        objection: around what tells the policy that its turn could not be read.
        is_json: whether outputs stand between the quotes of a JSON string.
        markers: control ids that the policy itself writes: around calls and thinking.
    """

    prompt: Frame
    outputs: Frame
    objection: Frame
    is_json: bool
    markers: frozenset[int]


class TurnProbe:
    """Asks a renderer what it places.

    Args:
        renderer: of the family.
        tokenizer: of the family.
        system_prompt: text of the system turn; empty for none of our own.
        tools: schemas that the prompt describes.
    """

    def __init__(
        self, renderer: Renderer, tokenizer: FamilyTokenizer, *, system_prompt: str, tools: Sequence[Spec]
    ) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._system: list[Message] = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self._tools = list(tools) or None
        self._controls = frozenset(tokenizer.encode("".join(tokenizer.all_special_tokens)))
        self._stops = frozenset(renderer.get_stop_token_ids())
        if not self._stops:
            raise ConfigError("the family has no stop token; name eos_token in tokenizer_config.json")

    def frames(self, output_role: Role, objection_role: Role) -> TurnFrames:
        """All frames.

        Raises:
            RewrittenHistory: when a later turn does not continue the ids before it.
            ConfigError: when what is placed depends on more than the texts.
        """
        prompt_head, prompt_tail = self._split(self._prompt(HOLES[0]), 1, "the prompt")
        calling = [self._call_turn(""), self._call_turn(_THOUGHT)] if self._tools else [self._text_turn()]
        markers = frozenset(
            token
            for turn in [*calling, self._text_turn()]
            for token in self.completion(turn)
            if token in self._controls
        )
        outputs = self._agreed([self._outputs_frame(turn, output_role) for turn in calling], "tool outputs")
        objected = [self._text_turn(), *calling]
        objection = self._agreed([self._one_frame(turn, objection_role) for turn in objected], "objections")
        return TurnFrames(
            prompt=Frame(prompt_head, (), prompt_tail),
            outputs=outputs,
            objection=objection,
            is_json=self._is_json(calling[0], output_role),
            markers=markers - self._stops,
        )

    def completion(self, turn: Message) -> list[int]:
        """Ids of a policy turn as the template would have it sampled, up to and including the first stop token.

        Raises:
            ConfigError: when the template shows no turn of the policy, or no end of it.
        """
        conversation = [*self._system, {"role": "user", "content": _QUESTION}, turn]
        rendered = self._renderer.render(conversation, tools=self._tools)
        ids, prompt = list(rendered.token_ids), self._prompt(_QUESTION)
        start = common_prefix(prompt, ids)
        mask = list(rendered.sampled_mask) if start < len(prompt) else []
        if any(mask):
            start = max(start, mask.index(True))
        for place in range(start, len(ids)):
            if ids[place] in self._stops:
                return ids[start : place + 1]
        stops = ", ".join(self._tokenizer.decode([token]) for token in sorted(self._stops))
        raise ConfigError(
            f"the template does not end the policy's turn by itself with one of {stops}; a family whose turns end with the "
            "next message's first token is not supported"
        )

    def _prompt(self, question: str) -> list[int]:
        messages = [*self._system, {"role": "user", "content": question}]
        return list(self._renderer.render(messages, tools=self._tools, add_generation_prompt=True).token_ids)

    def _text_turn(self) -> Message:
        return {"role": "assistant", "content": _ANSWER}

    def _call_turn(self, thinking: str) -> Message:
        assert self._tools
        call = {"name": self._tools[0]["function"]["name"], "arguments": {"probe": "1"}}
        turn: Message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_0", "type": "function", "function": call}],
        }
        return {**turn, "reasoning_content": thinking} if thinking else turn

    def _outputs_frame(self, turn: Message, role: Role) -> Frame:
        """The frame of any number of outputs; one, two and three agree on it."""
        one, two, three = (
            self._pieces(turn, [_message(role, hole) for hole in HOLES[:count]])
            for count in range(1, _PROBED_OUTPUTS + 1)
        )
        frame = Frame(two[0], two[1], two[2])
        if one != (frame.head, frame.tail) or three != (frame.head, frame.joint, frame.joint, frame.tail):
            raise ConfigError("the template places something else around each of several tool outputs")
        return frame

    def _one_frame(self, turn: Message, role: Role) -> Frame:
        head, tail = self._pieces(turn, [_message(role, HOLES[0])])
        return Frame(head, (), tail)

    def _is_json(self, turn: Message, role: Role) -> bool:
        """Whether the template quotes an output as JSON; it is shown as it is otherwise."""
        pieces = self._pieces(turn, [_message(role, f'{HOLES[0]}"{HOLES[1]}')], num_holes=2)
        between = self._tokenizer.decode(pieces[1])
        if between not in {'"', '\\"'}:
            raise ConfigError(f"the template shows a tool output of '\"' as {between!r}; it has to leave texts alone")
        return between != '"'

    def _pieces(self, turn: Message, new: list[Message], num_holes: int | None = None) -> tuple[tuple[int, ...], ...]:
        """What is placed after the turn, split at the holes."""
        prompt, sampled = self._prompt(_QUESTION), self.completion(turn)
        bridged = self._renderer.bridge_to_next_turn(list(prompt), list(sampled), new, tools=self._tools)
        held = [*prompt, *sampled]
        if bridged is None:
            # The template's own whole render has to start with what is held.
            conversation = [*self._system, {"role": "user", "content": _QUESTION}, turn, *new]
            bridged = self._renderer.render(conversation, tools=self._tools, add_generation_prompt=True)
        ids = list(bridged.token_ids)
        fork = self._fork(held, ids)
        if fork is not None:
            roles = ", ".join(sorted({message["role"] for message in new}))
            raise RewrittenHistory(
                f"a message of role {roles} rewrites the turn before it: "
                f"{describe_fork(fork, held, self._tokenizer.decode)}; choose options under which the family keeps history",
                fork.cause,
            )
        return self._split(ids[len(held) :], len(new) if num_holes is None else num_holes, "a later turn")

    def _fork(self, held: list[int], ids: list[int]) -> Fork | None:
        decode = self._tokenizer.decode
        return find_fork(held, ids, before_text=decode(held), after_text=decode(ids))

    def _agreed(self, frames: list[Frame], what: str) -> Frame:
        if any(frame != frames[0] for frame in frames):
            raise ConfigError(f"what the template places around {what} depends on the turn before them")
        return frames[0]

    def _split(self, ids: list[int], count: int, what: str) -> tuple[tuple[int, ...], ...]:
        holes = [self._tokenizer.holes[hole] for hole in HOLES[:count]]
        places = [place for place, token in enumerate(ids) if token in self._tokenizer.holes.values()]
        if [ids[place] for place in places] != holes:
            raise ConfigError(f"{what} holds {len(places)} of {count} texts, or in another order")
        edges = [-1, *places, len(ids)]
        return tuple(tuple(ids[start + 1 : stop]) for start, stop in itertools.pairwise(edges))


def _message(role: Role, content: str) -> Message:
    if role == "user":
        return {"role": "user", "content": content}
    return {"role": "tool", "tool_call_id": "call_0", "content": content}
