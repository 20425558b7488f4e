"""Renders demonstrations by the code of rollouts: the same prompt, the same parsing, the same observations.

Invariant: the ids of a demonstration are those of an episode in which a policy sampled exactly its turns, and the mask is
true on exactly the tokens that the policy would have sampled.

Dimensions: T tokens of the sequence.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.harness.writing import WritingHarness
from headrace.ports import ObservedTokens
from headrace.records.arrays import IntArray, int32_bytes
from headrace.records.harness import ParseStatus
from headrace.records.segment import Origin, TokenSegment
from headrace.records.task import Task

BoolArray = npt.NDArray[np.bool_]


class DemonstratedTurn(Protocol):
    """One policy turn of a demonstration, independent of any tokenizer."""

    @property
    def text(self) -> str:
        """What the policy says before its calls, or the final answer."""
        ...

    @property
    def calls(self) -> Sequence[str]:
        """Raw text of each call, well-formed or not."""
        ...

    @property
    def outputs(self) -> Sequence[bytes]:
        """Output of each call; empty when the turn is final or malformed."""
        ...


def render_demonstration(
    harness: WritingHarness, task: Task, turns: Sequence[DemonstratedTurn]
) -> tuple[IntArray, BoolArray]:
    """(ids_T, mask_T): the whole sequence, and which tokens are the policy's own.

    Raises:
        ValueError: when there is no turn, a turn has another number of outputs than calls, a turn without calls is
            not the last one, the last one is not final, or the harness would fork: a demonstration is one sequence.
    """
    if not turns:
        raise ValueError("a demonstration without turns shows nothing")
    segments = list(harness.open(task))
    masks = [False] * len(segments)
    for index, turn in enumerate(turns):
        ids_T = harness.turn_ids(turn.text, turn.calls)
        own = TokenSegment(Origin.POLICY, int32_bytes(ids_T))
        after = _answer(harness, task, turn, ids_T)
        if (after is None) is not (index == len(turns) - 1):
            raise ValueError(f"turn {index} of {len(turns)}: exactly the last turn of a demonstration is final")
        shown = after.segments if after else ()
        if shown and harness.rewrite([*segments, own], shown[0]) is not None:
            raise ValueError(f"turn {index} of {len(turns)} is rewritten by what follows; a demonstration cannot fork")
        segments += (own, *shown)
        masks += [True, *[False] * len(shown)]
    ids_T = np.concatenate([segment.ids_T for segment in segments])
    return ids_T, np.repeat(np.array(masks), [len(segment) for segment in segments])


def _answer(harness: WritingHarness, task: Task, turn: DemonstratedTurn, ids_T: IntArray) -> ObservedTokens | None:
    """What a live episode would show after the turn; None when the turn is final."""
    parsed = harness.parse(ids_T)
    if len(turn.outputs) != len(parsed.calls):
        raise ValueError(
            f"{len(turn.outputs)} outputs for {len(parsed.calls)} calls in {parsed.text!r} ({parsed.problem})"
        )
    match parsed.status:
        case ParseStatus.FINAL:
            return None
        case ParseStatus.MALFORMED:
            return harness.object_to(parsed.problem, task.budget.observation_tokens)
        case ParseStatus.CALLS:
            return harness.observe(turn.outputs, task.budget.observation_tokens)
