"""What the rest of the house asks of a harness beyond its port: to write a policy's turn as the policy would."""

from collections.abc import Sequence
from typing import Protocol

from headrace.harness.codec import TextCodec
from headrace.ports import Harness
from headrace.records.arrays import IntArray


class WritingHarness(Harness, Protocol):
    """A harness whose tokens are those of one tokenizer.

    Attributes:
        codec: the tokenizer.
    """

    codec: TextCodec

    def turn_ids(self, text: str, calls: Sequence[str]) -> IntArray:
        """Ids of a policy turn: text, then calls by the JSON of name and arguments, then the stop token.

        Raises:
            ValueError: when the template has no form for a call.
        """
        ...
