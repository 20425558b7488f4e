"""How much longer trajectories took because their turns waited for a slot of the engine, by length.

Invariant: every sealed trajectory is in exactly one row. Lengths are cut at powers of two.
"""

import msgspec

from headrace.reporting.folds.index import RunIndex
from headrace.reporting.folds.lives import TranscriptLife
from headrace.reporting.folds.strata import octave
from headrace.reporting.quantities import mean, quantile


class LengthSlowdown(msgspec.Struct, frozen=True):
    """Trajectories of one length. A slowdown is wall time over wall time without the wait for a slot, so at least 1.

    Attributes:
        length: name of the interval of lengths, tokens.
        trajectories: how many.
        mean_turns: turns of one.
        mean_wait_s: seconds in which one waited for a slot, all turns together.
        mean_slowdown: mean of the slowdowns; None when no trajectory took any time.
        p95_slowdown: their 95% quantile.
        max_slowdown: the largest.
    """

    length: str
    trajectories: int
    mean_turns: float | None
    mean_wait_s: float | None
    mean_slowdown: float | None
    p95_slowdown: float | None
    max_slowdown: float | None


def slowdowns(index: RunIndex) -> tuple[LengthSlowdown, ...]:
    """A row per length, shortest first."""
    table: dict[tuple[float, str], list[TranscriptLife]] = {}
    for life in index.transcripts.values():
        table.setdefault(octave(life.sealed.total_tokens, "tokens"), []).append(life)
    return tuple(_row(name, lives) for (_, name), lives in sorted(table.items(), key=lambda item: item[0]))


def _row(name: str, lives: list[TranscriptLife]) -> LengthSlowdown:
    ratios = [
        side.wall_s / (side.wall_s - side.wait_s) for side in (life.side for life in lives) if side.wall_s > side.wait_s
    ]
    return LengthSlowdown(
        length=name,
        trajectories=len(lives),
        mean_turns=mean([life.side.turns for life in lives]),
        mean_wait_s=mean([life.side.wait_s for life in lives]),
        mean_slowdown=mean(ratios),
        p95_slowdown=quantile(ratios, 0.95),
        max_slowdown=max(ratios, default=None),
    )
