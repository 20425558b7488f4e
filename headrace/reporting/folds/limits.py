"""What was cut or ended by a limit or a deadline, by kind and over time.

Invariant: a limit of the budget is the policy's doing and a boundary's failure is not; they are never in one count.
"""

from collections import Counter

import msgspec

from headrace.records.execution import ExecutionStatus
from headrace.records.verdict import UnscoredCause
from headrace.reporting.folds.index import RunIndex
from headrace.reporting.folds.lives import TranscriptLife
from headrace.reporting.folds.spans import Bins
from headrace.reporting.folds.stages import Series


class LimitCount(msgspec.Struct, frozen=True):
    """One kind of limit.

    Attributes:
        kind: `budget`, `tool`, `grader` or `boundary`.
        name: which one.
        unit: what is counted.
        count: how often.
    """

    kind: str
    name: str
    unit: str
    count: int


class Limits(msgspec.Struct, frozen=True):
    """The distribution.

    Attributes:
        counts: by kind, most frequent first.
        episodes: episodes sealed.
        bins_s: middles of the bins, seconds since the start.
        over_time: counts by bin, one line for each kind and name.
    """

    counts: tuple[LimitCount, ...]
    episodes: int
    bins_s: tuple[float, ...]
    over_time: tuple[Series, ...]


_UNITS = {"budget": "episodes", "tool": "calls", "grader": "transcripts", "boundary": "episodes"}


def limits(index: RunIndex) -> Limits:
    """The distribution so far."""
    counts: Counter[tuple[str, str]] = Counter()
    points: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for life in index.transcripts.values():
        for name, count in _of(life).items():
            counts[name] += count
            points.setdefault(name, []).append((life.sealed_ns, count))
    bins = Bins(index.start_ns or 0, index.now_ns)
    ordered = sorted(counts, key=lambda name: (-counts[name], name))
    return Limits(
        counts=tuple(LimitCount(kind, name, _UNITS[kind], counts[kind, name]) for kind, name in ordered),
        episodes=len(index.transcripts),
        bins_s=bins.middles_s,
        over_time=tuple(Series(f"{kind}: {name}", tuple(bins.sums(points[kind, name]))) for kind, name in ordered),
    )


def _of(life: TranscriptLife) -> Counter[tuple[str, str]]:
    """What one episode ran into; a budget limit that cut several times counts once."""
    found: Counter[tuple[str, str]] = Counter()
    for limit in set(life.limits_hit):
        found["budget", limit.value] = 1
    for status, count in life.statuses:
        if status in (ExecutionStatus.TIMEOUT, ExecutionStatus.OUT_OF_MEMORY, ExecutionStatus.KILLED):
            found["tool", status.value] += count
    if life.cause is UnscoredCause.GRADER_TIMEOUT:
        found["grader", life.cause.value] += 1
    if life.sealed.terminal.startswith("infra_error:"):
        found["boundary", life.sealed.terminal.removeprefix("infra_error:")] += 1
    return found
