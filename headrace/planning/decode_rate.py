"""Rates of an engine, measured from the turns of a log: of prefill, and of decoding by the number of running requests."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headrace.records.segment import TurnCompute

_PER_DOUBLING = 2
"""Levels for each doubling of the number of running requests."""
_LEAST_DECODING = 0.05
"""Share of the time that decoding has at least; less is an error of the measurement."""
_LEAST_SHARE = 0.002
"""Of all time: a number that was seen for less is left out."""


class TurnSample(NamedTuple):
    """One turn.

    Attributes:
        begin_s: when it got its slot, in seconds in which the engine ran.
        end_s: its last token, likewise.
        tokens: sampled.
        compute: what it took of the engine; None where the engine does not tell.
    """

    begin_s: float
    end_s: float
    tokens: int
    compute: TurnCompute | None


class EngineRates(NamedTuple):
    """What a log tells of an engine.

    Attributes:
        decode: points as of `decode_points`.
        prefill_tokens_per_s: speed of prefill; None where the engine does not tell.
        turn_start_s: seconds of prefill that a turn takes whatever its tokens.
    """

    decode: list[tuple[int, float]]
    prefill_tokens_per_s: float | None = None
    turn_start_s: float = 0.0


def engine_rates(turns: Sequence[TurnSample], slots: int | None = None) -> EngineRates:
    """The rates of an engine; without what each turn took of it, prefill is a part of the decode rate.

    Args:
        turns: of the log.
        slots: requests that the engine can run; more are seen when the control plane hears of an end late. None: any.
    """
    known = [turn.compute for turn in turns if turn.compute is not None]
    prefill = _prefill_rate(known) if len(known) == len(turns) else None
    if prefill is None:
        return EngineRates(decode_points([turn._replace(compute=None) for turn in turns], slots))
    return EngineRates(decode_points(turns, slots), *prefill)


def _prefill_rate(turns: Sequence[TurnCompute]) -> tuple[float, float] | None:
    """Tokens per second, and seconds at zero tokens: the straight line through all turns with the least squares."""
    tokens = np.array([turn.prefill_tokens for turn in turns], dtype=float)
    seconds = np.array([turn.prefill_s for turn in turns], dtype=float)
    if not seconds.sum() > 0.0 or not tokens.sum() > 0.0:
        return None
    spread = float(tokens.var())
    slope_s = float(((tokens - tokens.mean()) * seconds).mean()) / spread if spread > 0.0 else 0.0
    start_s = float(seconds.mean()) - slope_s * float(tokens.mean())
    if slope_s > 0.0 and start_s >= 0.0:
        return 1.0 / slope_s, start_s
    return float(tokens.sum() / seconds.sum()), 0.0


def decode_points(turns: Sequence[TurnSample], slots: int | None = None) -> list[tuple[int, float]]:
    """(running requests, tokens per second of all together), at least one point, the first numbers rising.

    Tokens and prefill of each turn are spread evenly over the time from its slot to its last token. The stretches between
    two changes are then collected by the number of running turns, into levels that widen with it; seconds of prefill are
    no time of decoding.

    Example: two turns of 10 tokens, [0, 1) and [0, 2): 15 tokens per second at 2 running, 5 at 1.
    """
    changes: list[tuple[float, int, float, float]] = []
    for begin_s, end_s, tokens, compute in turns:
        if end_s > begin_s:
            rate = tokens / (end_s - begin_s)
            prefill = compute.prefill_s / (end_s - begin_s) if compute is not None else 0.0
            changes += [(begin_s, 1, rate, prefill), (end_s, -1, -rate, -prefill)]
    changes.sort()
    stretches: dict[int, _Stretch] = {}
    active, rate, prefill = 0, 0.0, 0.0
    for (t_s, step, tokens_change, prefill_change), following in itertools.pairwise([*changes, changes[-1]]):
        active += step
        rate += tokens_change
        prefill += prefill_change
        if active > 0:
            level = active if slots is None else min(active, slots)
            stretches.setdefault(level, _Stretch()).add(following[0] - t_s, rate, prefill)
    return _levels(stretches)


@dataclasses.dataclass
class _Stretch:
    """All time at one number of running turns.

    Attributes:
        seconds: in all.
        tokens: sampled in it.
        prefill_s: seconds of the engine's prefill in it.
    """

    seconds: float = 0.0
    tokens: float = 0.0
    prefill_s: float = 0.0

    def add(self, seconds: float, rate: float, prefill: float) -> None:
        self.seconds += seconds
        self.tokens += rate * seconds
        self.prefill_s += prefill * seconds


def _levels(stretches: dict[int, _Stretch]) -> list[tuple[int, float]]:
    """Neighbouring numbers of requests joined, the few kept apart: they are the end of a batch that others wait for."""
    levels: dict[int, list[int]] = {}
    for active in sorted(stretches):
        levels.setdefault(round(_PER_DOUBLING * math.log2(active)), []).append(active)
    total_s = sum(stretch.seconds for stretch in stretches.values())
    unique: dict[int, float] = {}
    for numbers in levels.values():
        found = [stretches[number] for number in numbers]
        time_s, tokens = sum(s.seconds for s in found), sum(s.tokens for s in found)
        if tokens > 0.0 and time_s >= _LEAST_SHARE * total_s:
            decode_s = max(_LEAST_DECODING * time_s, time_s - sum(s.prefill_s for s in found))
            mean = float(np.average(numbers, weights=[s.seconds for s in found]))
            unique[max(1, round(mean))] = tokens / decode_s
    return sorted(unique.items())
