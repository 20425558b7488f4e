"""The port between records and tokens: pure and synchronous, and sampled text is never encoded again."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from headrace.records.arrays import IntArray
from headrace.records.harness import ParsedTurn
from headrace.records.ids import Address
from headrace.records.segment import TokenSegment
from headrace.records.task import Task
from headrace.records.trajectory import ForkCause, Transcript


class ObservedTokens(msgspec.Struct, frozen=True):
    """Observations of one step, rendered.

    Attributes:
        segments: template and environment segments in order, up to and including the opening of the next policy turn.
        observation_indices: for each receipt, the index in `segments` of its environment segment.
        is_cut: for each receipt, whether it was longer than the observation budget.
        neutralized: for each receipt, control literals that were encoded as ordinary text.
    """

    segments: tuple[TokenSegment, ...]
    observation_indices: tuple[int, ...]
    is_cut: tuple[bool, ...]
    neutralized: tuple[int, ...]


class Rewritten(msgspec.Struct, frozen=True):
    """A sequence as it reads once more follows, where the template does not leave it as it is.

    Attributes:
        kept: leading segments that stay, and are shared with the sequence before.
        segments: what takes the place of the others: turns of the policy as HISTORY, the rest as it was.
        cause: what rewrites it.
    """

    kept: int
    segments: tuple[TokenSegment, ...]
    cause: ForkCause


class Harness(Protocol):
    """Renders records to tokens and parses tokens to calls. Pure and synchronous; never re-encodes sampled text."""

    @property
    def version(self) -> Address:
        """Content version of prompts, tool schemas, template, tokenizer and harness code."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a policy turn."""
        ...

    def open(self, task: Task) -> tuple[TokenSegment, ...]:
        """The prompt, up to and including the opening of the first policy turn."""
        ...

    def parse(self, sampled: IntArray) -> ParsedTurn:
        """What the policy said. `sampled` is the whole turn, stop token included if it was sampled."""
        ...

    def observe(self, outputs: Sequence[bytes], budget_tokens: int) -> ObservedTokens:
        """Tokens that show tool outputs to the policy, each cut to the budget with a visible marker."""
        ...

    def object_to(self, problem: str, budget_tokens: int) -> ObservedTokens:
        """Tokens that tell the policy that its turn could not be read; one observation."""
        ...

    def rewrite(self, sequence: Sequence[TokenSegment], following: TokenSegment) -> Rewritten | None:
        """How the sequence reads once `following` begins what the policy is shown next; None when it stays as it is."""
        ...

    def check(self, transcript: Transcript) -> None:
        """Raises IntegrityError when ids and texts tell different stories, or the sequence was not made by this harness.

        What `Transcript.check` looks at is not looked at again.
        """
        ...

    def decode(self, ids: IntArray) -> str:
        """Text of the ids, control tokens written out; for people."""
        ...
