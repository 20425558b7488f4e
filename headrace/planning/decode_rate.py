"""The decode rate of an engine against the number of running requests, measured from the turns of a log."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

_PER_DOUBLING = 2
"""Levels for each doubling of the number of running requests."""
_LEAST_SHARE = 0.002
"""Of all time: a number that was seen for less is left out."""


def decode_points(turns: Sequence[tuple[float, float, int]], slots: int | None = None) -> list[tuple[int, float]]:
    """(running requests, tokens per second of all together), at least one point, the first numbers rising.

    Each turn is spread evenly over the time from its slot to its last token. The stretches between two changes are then
    collected by the number of running turns, into levels that widen with it.

    Args:
        turns: (begin, end, tokens) of each turn, seconds.
        slots: requests that the engine can run; more are seen when the control plane hears of an end late. None: any.

    Example: two turns of 10 tokens, [0, 1) and [0, 2): 15 tokens per second at 2 running, 5 at 1.
    """
    changes: list[tuple[float, int, float]] = []
    for begin_s, end_s, tokens in turns:
        if end_s > begin_s:
            rate = tokens / (end_s - begin_s)
            changes += [(begin_s, 1, rate), (end_s, -1, -rate)]
    changes.sort()
    seconds: dict[int, float] = {}
    work: dict[int, float] = {}
    active, rate = 0, 0.0
    for (t_s, step, change), (next_s, _, _) in itertools.pairwise([*changes, (changes[-1][0], 0, 0.0)]):
        active += step
        rate += change
        if active > 0:
            level = active if slots is None else min(active, slots)
            seconds[level] = seconds.get(level, 0.0) + next_s - t_s
            work[level] = work.get(level, 0.0) + rate * (next_s - t_s)
    return _levels(seconds, work)


def _levels(seconds: dict[int, float], work: dict[int, float]) -> list[tuple[int, float]]:
    """Neighbouring numbers of requests joined, the few kept apart: they are the end of a batch that others wait for."""
    levels: dict[int, list[int]] = {}
    for active in sorted(seconds):
        levels.setdefault(round(_PER_DOUBLING * math.log2(active)), []).append(active)
    total_s, unique = sum(seconds.values()), dict[int, float]()
    for numbers in levels.values():
        time_s = sum(seconds[number] for number in numbers)
        done = sum(work[number] for number in numbers)
        if done > 0.0 and time_s >= _LEAST_SHARE * total_s:
            mean = float(np.average(numbers, weights=[seconds[number] for number in numbers]))
            unique[max(1, round(mean))] = done / time_s
    return sorted(unique.items())
