"""Tells a continuation of a token sequence from a rewritten one, and names what rewrote it.

Invariant: a sequence either starts with everything that came before it, or it is a fork with a cause; nothing in between.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.errors import ConfigError
from headrace.records.trajectory import ForkCause

_THINKING = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_CONTEXT_CHARS = 24


class Fork(NamedTuple):
    """Where a sequence leaves the one before.

    Attributes:
        kept: number of leading tokens that both share.
        cause: what rewrote the rest.
    """

    kept: int
    cause: ForkCause


class RewrittenHistory(ConfigError):
    """A template that does not continue the sequence it is given.

    Attributes:
        cause: what it does to it.
    """

    def __init__(self, message: str, cause: ForkCause) -> None:
        super().__init__(message)
        self.cause = cause


def find_fork(before: Sequence[int], after: Sequence[int], *, before_text: str, after_text: str) -> Fork | None:
    r"""The fork between two token sequences with their texts; None when `after` starts with `before`.

    The cause is `THINKING_DROPPED` when the text continues once the thinking in `before` is taken out, `COMPACTION` when
    `after` is the shorter text, otherwise `HISTORY_REWRITTEN` (which includes the same text in other tokens).

    Example: before "<think>a</think>\nb", after "b\nc" forks at 0 by THINKING_DROPPED.
    """
    kept = common_prefix(before, after)
    if kept == len(before):
        return None
    thought = _THINKING.sub("", before_text)
    if thought != before_text and after_text.startswith(thought.rstrip()):
        return Fork(kept, ForkCause.THINKING_DROPPED)
    if len(after_text) < len(before_text) and not after_text.startswith(before_text):
        return Fork(kept, ForkCause.COMPACTION)
    return Fork(kept, ForkCause.HISTORY_REWRITTEN)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Number of leading tokens that both share."""
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return place
    return min(len(left), len(right))


def describe_fork(fork: Fork, before: Sequence[int], decode: Callable[[Sequence[int]], str]) -> str:
    """The fork in words: how far the sequences agree, and what stood there."""
    shown = decode(before[fork.kept : fork.kept + 8])[:_CONTEXT_CHARS]
    return f"{fork.cause.value} after {fork.kept} of {len(before)} tokens, at {shown!r}"
