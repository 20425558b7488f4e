r"""What a family's template places around texts, learnt once from its renderer with holes in their place.

Invariant: every piece comes from the package's renderer or the folder's own chat template, and continues the exact ids
held before it. A family whose later turns depend on more than the texts, or rewrite what was sampled, is refused with the
cause.

Example: Qwen3 places `\n<|im_start|>user\n<tool_response>\n` before a tool's output and
`\n</tool_response><|im_end|>\n<|im_start|>assistant\n` after it.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from headrace.errors import ConfigError
from headrace.harness.families import HOLES, FamilyTokenizer, Message, Renderer, Spec
from headrace.harness.forks import RewrittenHistory, common_prefix, describe_fork, find_fork
from headrace.harness.rewriting import DROPS, Drops, Rewriter, ThoughtDropper
from headrace.records.arrays import int32_bytes
from headrace.records.segment import Origin, TokenSegment

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
        drops: thoughts that go from earlier turns, by the head of what follows.
    """

    prompt: Frame
    outputs: Frame
    objection: Frame
    is_json: bool
    markers: frozenset[int]
    drops: dict[tuple[int, ...], Drops]


class TurnProbe:
    """Asks a renderer what it places.

    Args:
        renderer: of the family.
        tokenizer: of the family.
        system_prompt: text of the system turn; empty for none of our own.
        tools: schemas that the prompt describes.
        dropper: what a turn reads as later, where a sequence may fork; None where every later turn has to continue it.
    """

    def __init__(
        self,
        renderer: Renderer,
        tokenizer: FamilyTokenizer,
        *,
        system_prompt: str,
        tools: Sequence[Spec],
        dropper: ThoughtDropper | None = None,
    ) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._dropper = dropper
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
        objected = [self._text_turn(), *calling]
        if self._dropper is not None:
            objected.append(self._text_turn(_THOUGHT))
            calling = list(filter(self._can_be_said, calling)) or calling
            objected = list(filter(self._can_be_said, objected)) or objected
        markers = frozenset(token for turn in objected for token in self.completion(turn) if token in self._controls)
        of_outputs, of_objections = self._drops(
            [(calling, output_role, self._outputs_frame), (objected, objection_role, self._one_frame)]
        )
        outputs = self._agreed([self._outputs_frame(turn, output_role, of_outputs) for turn in calling], "tool outputs")
        objection = self._agreed(
            [self._one_frame(turn, objection_role, of_objections) for turn in objected], "objections"
        )
        return TurnFrames(
            prompt=Frame(prompt_head, (), prompt_tail),
            outputs=outputs,
            objection=objection,
            is_json=self._is_json(calling[0], output_role, of_outputs),
            markers=markers - self._stops,
            drops={outputs.head: of_outputs, objection.head: of_objections},
        )

    def verify(self, frames: TurnFrames, rewriter: Rewriter, roles: tuple[Role, Role]) -> None:
        """That sequences of two turns read as the family would have them.

        Args:
            frames: what is placed.
            rewriter: makes the sequences.
            roles: of outputs and objections.

        Raises:
            RewrittenHistory: when it shows the policy anything else.
        """
        kinds: list[tuple[Frame, Role]] = [(frames.outputs, roles[0]), (frames.objection, roles[1])]
        variants = [self._call_turn(""), self._call_turn(_THOUGHT)] if self._tools else []
        turns = [turn for turn in (self._text_turn(), *variants) if self._can_be_said(turn)]
        steps: list[_Step] = [
            (turn, frame, role)
            for turn, (frame, role) in itertools.product(turns, kinds)
            if role == "user" or "tool_calls" in turn
        ]
        for first, second in itertools.product(steps, repeat=2):
            self._verify_pair(rewriter, first, second)

    def _verify_pair(self, rewriter: Rewriter, first: "_Step", second: "_Step") -> None:
        prompt = self._prompt(_QUESTION)
        tail = self._split(self._prompt(HOLES[0]), 1, "the prompt")[1]
        sequence = [_placed(prompt[: len(prompt) - len(tail)]), _placed(tail)]
        messages: list[Message] = [*self._system, {"role": "user", "content": _QUESTION}]
        hole = self._tokenizer.encode(HOLES[0])
        held: list[int] = []
        for turn, frame, role in (first, second):
            held = [token for segment in sequence for token in segment.ids_T.tolist()]
            sequence.append(TokenSegment(Origin.POLICY, int32_bytes(self.completion(turn))))
            changed = rewriter.rewrite(sequence, _placed(frame.head))
            sequence = sequence if changed is None else [*sequence[: changed.kept], *changed.segments]
            sequence += [_placed(frame.head), _placed(hole), _placed(frame.tail)]
            messages += [turn, _message(role, HOLES[0])]
        # What the package goes on with counts; where it does not, the template's render of all messages.
        shown = [token for segment in sequence for token in segment.ids_T.tolist()]
        bridged = self._renderer.bridge_to_next_turn(held, self.completion(second[0]), messages[-1:], tools=self._tools)
        if bridged is None:
            bridged = self._renderer.render(messages, tools=self._tools, add_generation_prompt=True)
        self._refuse_fork(shown, list(bridged.token_ids), second[2], "a sequence of two turns")

    def _drops(
        self, cases: Sequence[tuple[list[Message], Role, Callable[[Message, Role, Drops], Frame]]]
    ) -> list[Drops]:
        """The fewest thoughts that go, for each case; the same for one role. Raises RewrittenHistory."""
        found: list[Drops] = []
        for _, role, _ in cases:
            refusals: list[RewrittenHistory] = []
            for drops in DROPS if self._dropper is not None else DROPS[:1]:
                try:
                    for turns, of_role, frame in cases:
                        if of_role == role:
                            for turn in turns:
                                frame(turn, role, drops)
                except RewrittenHistory as refusal:
                    refusals.append(refusal)
                else:
                    found.append(drops)
                    break
            else:
                raise refusals[0]
        return found

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

    def _can_be_said(self, turn: Message) -> bool:
        """Whether the template's own turn follows what opens it: a thought does not where it closes an empty one itself."""
        conversation = [*self._system, {"role": "user", "content": _QUESTION}, turn]
        prompt, ids = self._prompt(_QUESTION), self._renderer.render(conversation, tools=self._tools).token_ids
        return list(ids[: len(prompt)]) == prompt

    def _text_turn(self, thinking: str = "") -> Message:
        turn: Message = {"role": "assistant", "content": _ANSWER}
        return {**turn, "reasoning_content": thinking} if thinking else turn

    def _call_turn(self, thinking: str) -> Message:
        assert self._tools
        call = {"name": self._tools[0]["function"]["name"], "arguments": {"probe": "1"}}
        turn: Message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_0", "type": "function", "function": call}],
        }
        return {**turn, "reasoning_content": thinking} if thinking else turn

    def _outputs_frame(self, turn: Message, role: Role, drops: Drops) -> Frame:
        """The frame of any number of outputs; one, two and three agree on it."""
        one, two, three = (
            self._pieces(turn, [_message(role, hole) for hole in HOLES[:count]], drops)
            for count in range(1, _PROBED_OUTPUTS + 1)
        )
        frame = Frame(two[0], two[1], two[2])
        if one != (frame.head, frame.tail) or three != (frame.head, frame.joint, frame.joint, frame.tail):
            raise ConfigError("the template places something else around each of several tool outputs")
        return frame

    def _one_frame(self, turn: Message, role: Role, drops: Drops) -> Frame:
        head, tail = self._pieces(turn, [_message(role, HOLES[0])], drops)
        return Frame(head, (), tail)

    def _is_json(self, turn: Message, role: Role, drops: Drops) -> bool:
        """Whether the template quotes an output as JSON; it is shown as it is otherwise."""
        pieces = self._pieces(turn, [_message(role, f'{HOLES[0]}"{HOLES[1]}')], drops, num_holes=2)
        between = self._tokenizer.decode(pieces[1])
        if between not in {'"', '\\"'}:
            raise ConfigError(f"the template shows a tool output of '\"' as {between!r}; it has to leave texts alone")
        return between != '"'

    def _pieces(
        self, turn: Message, new: list[Message], drops: Drops, *, num_holes: int | None = None
    ) -> tuple[tuple[int, ...], ...]:
        """What is placed after the turn, split at the holes."""
        prompt, sampled = self._prompt(_QUESTION), self.completion(turn)
        bridged = self._renderer.bridge_to_next_turn(list(prompt), list(sampled), new, tools=self._tools)
        if bridged is None:
            # The template's own whole render has to start with what is held.
            conversation = [*self._system, {"role": "user", "content": _QUESTION}, turn, *new]
            bridged = self._renderer.render(conversation, tools=self._tools, add_generation_prompt=True)
        held, ids = self._as_past(prompt, sampled, drops), list(bridged.token_ids)
        self._refuse_fork(held, ids, new[0]["role"], "the turn before it")
        return self._split(ids[len(held) :], len(new) if num_holes is None else num_holes, "a later turn")

    def _as_past(self, prompt: list[int], sampled: list[int], drops: Drops) -> list[int]:
        """Prompt and turn as they read later."""
        if self._dropper is None:
            return [*prompt, *sampled]
        tail = self._split(self._prompt(HOLES[0]), 1, "the prompt")[1]
        opening, turn = self._dropper.past(tail, sampled, drops)
        return [*prompt[: len(prompt) - len(tail)], *opening, *turn]

    def _refuse_fork(self, held: list[int], ids: list[int], role: Role, what: str) -> None:
        """Raises RewrittenHistory unless the ids go on from those held."""
        decode = self._tokenizer.decode
        fork = find_fork(held, ids, before_text=decode(held), after_text=decode(ids))
        if fork is None:
            return
        remedy = "choose options under which the family keeps history"
        if self._dropper is None:
            remedy += ", or on_rewrite = 'fork' where it only drops thoughts"
        raise RewrittenHistory(
            f"a message of role {role} rewrites {what}: {describe_fork(fork, held, decode)}; {remedy}", fork.cause
        )

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


_Step = tuple[Message, Frame, Role]
"""A turn, and what is placed around the message that follows it."""


def _message(role: Role, content: str) -> Message:
    if role == "user":
        return {"role": "user", "content": content}
    return {"role": "tool", "tool_call_id": "call_0", "content": content}


def _placed(ids: Sequence[int]) -> TokenSegment:
    return TokenSegment(Origin.TEMPLATE, int32_bytes(list(ids)))
