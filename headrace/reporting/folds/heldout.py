"""Held-out success by version, with Wilson's 95% interval. An episode without a verdict is in no rate."""

from collections.abc import Sequence

import msgspec

from headrace.algorithms.intervals import wilson_interval
from headrace.records.evaluation import EvaluationCompleted, StratumScore
from headrace.records.events import Event


class Rate(msgspec.Struct, frozen=True):
    """A success rate.

    Attributes:
        successes: episodes at or above the success bound.
        graded: episodes with a verdict.
        rate: successes over graded; None when nothing was graded.
        low: lower end of the 95% interval; None when nothing was graded.
        high: upper end.
    """

    successes: int
    graded: int
    rate: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(cls, successes: int, graded: int) -> "Rate":
        """The rate with its interval."""
        if graded == 0:
            return cls(0, 0, None, None, None)
        interval = wilson_interval(successes, graded)
        return cls(successes, graded, successes / graded, interval.low, interval.high)


class StratumRate(msgspec.Struct, frozen=True):
    """Held-out success of one stratum.

    Attributes:
        name: family or difficulty.
        rate: its success.
    """

    name: str
    rate: Rate


class Round(msgspec.Struct, frozen=True):
    """One held-out round.

    Attributes:
        version: the pinned version, in updates.
        temperature: sampling temperature.
        t_s: when it was complete, seconds since the start.
        wall_s: how long it took, seconds.
        overall: success over everything.
        unscored: episodes without a verdict.
        families: by task family.
        difficulties: by difficulty.
    """

    version: int
    temperature: float
    t_s: float
    wall_s: float
    overall: Rate
    unscored: int
    families: tuple[StratumRate, ...]
    difficulties: tuple[StratumRate, ...]


class HeldOut(msgspec.Struct, frozen=True):
    """All rounds.

    Attributes:
        rounds: by temperature, then version.
    """

    rounds: tuple[Round, ...]

    @property
    def temperatures(self) -> tuple[float, ...]:
        return tuple(sorted({item.temperature for item in self.rounds}))

    def at(self, temperature: float) -> tuple[Round, ...]:
        """Rounds at a temperature, by version."""
        return tuple(item for item in self.rounds if item.temperature == temperature)


class HeldOutCurve:
    """Collects held-out rounds."""

    def __init__(self) -> None:
        self._rounds: dict[tuple[float, int], Round] = {}

    def observe(self, event: Event) -> None:
        """Takes the next event."""
        done = event.payload
        if isinstance(done, EvaluationCompleted):
            self._rounds[done.temperature, done.policy.version] = Round(
                version=done.policy.version,
                temperature=done.temperature,
                t_s=event.t_ns / 1e9,
                wall_s=done.wall_s,
                overall=Rate.of(done.successes, done.graded),
                unscored=done.unscored,
                families=_by([(stratum.family, stratum) for stratum in done.strata]),
                difficulties=_by([(stratum.difficulty, stratum) for stratum in done.strata]),
            )

    def result(self) -> HeldOut:
        """The rounds so far."""
        return HeldOut(tuple(self._rounds[key] for key in sorted(self._rounds)))


def _by(named: Sequence[tuple[str, StratumScore]]) -> tuple[StratumRate, ...]:
    counts: dict[str, list[int]] = {}
    for name, stratum in named:
        count = counts.setdefault(name, [0, 0])
        count[0] += stratum.successes
        count[1] += stratum.graded
    return tuple(StratumRate(name, Rate.of(*counts[name])) for name in sorted(counts))
