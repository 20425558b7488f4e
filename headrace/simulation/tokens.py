"""The token language between the simulated harness and the simulated engine.

A prompt begins with the index of its task, so that an engine knows of a request what a real one would: its tokens. A turn
is filler up to its last token, which says what the turn was: a call, the final answer, or garbled.
"""

import struct

from headrace.records.arrays import Float32Bytes, Int32Bytes, IntArray
from headrace.simulation.workload import HELD_OUT

CALL_END = 1
FINAL_END = 2
GARBLED_END = 3
FILLER = 4
CUT_MARKER = 5
TURN_OPEN = 6
OBSERVED = 7
_FIRST_INDEX = 16

STOP_IDS = (CALL_END, FINAL_END, GARBLED_END)
LOGPROB = -1.0
"""Behaviour log-prob of every simulated token."""


def repeated(token: int, count: int) -> Int32Bytes:
    """The token `count` times; empty for a count below one."""
    return Int32Bytes(struct.pack("<i", token) * count)


def logprobs(count: int) -> Float32Bytes:
    """Log-probs of `count` sampled tokens."""
    return Float32Bytes(struct.pack("<f", LOGPROB) * count)


def turn(count: int, end: int | None) -> Int32Bytes:
    """A turn, or a piece of one, of `count` tokens; `end` is its last token, None when it goes on."""
    if end is None or count == 0:
        return repeated(FILLER, count)
    return Int32Bytes(repeated(FILLER, count - 1) + struct.pack("<i", end))


def prompt(index: int, count: int) -> Int32Bytes:
    """A prompt of `count` >= 2 tokens for the task at an index: index, filler, the opening of the first turn."""
    return Int32Bytes(
        struct.pack("<i", index + _FIRST_INDEX) + repeated(FILLER, count - 2) + struct.pack("<i", TURN_OPEN)
    )


def task_index(ids: Int32Bytes) -> int:
    """Index of the task that a prompt is about. Raises ValueError when the prompt is not a simulated one."""
    if len(ids) < 4:
        raise ValueError("an empty prompt")
    index = struct.unpack_from("<i", ids)[0] - _FIRST_INDEX
    if not 0 <= index < 2 * HELD_OUT - 2 * _FIRST_INDEX:
        raise ValueError(f"a prompt that begins with token {index + _FIRST_INDEX}")
    return index


def last_token(ids: IntArray) -> int | None:
    """The last token, None when there is none."""
    return int(ids[-1]) if len(ids) else None
