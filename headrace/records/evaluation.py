"""Held-out evaluation: its own purpose, pinned to a committed version, outside credit and ordinals."""

import msgspec

from headrace.records.ids import PolicyRef


class StratumScore(msgspec.Struct, frozen=True):
    """Success of one stratum.

    Attributes:
        family: task family.
        difficulty: stratum.
        graded: episodes with a verdict.
        successes: episodes whose reward reached the success bound.
    """

    family: str
    difficulty: str
    graded: int
    successes: int


class EvaluationStarted(msgspec.Struct, frozen=True, tag="evaluation_started"):
    """A held-out round begins.

    Attributes:
        policy: the pinned version.
        temperature: sampling temperature of the round.
        episodes: number of episodes.
    """

    policy: PolicyRef
    temperature: float
    episodes: int


class EvaluationCompleted(msgspec.Struct, frozen=True, tag="evaluation_completed"):
    """A held-out round is over. Episodes without a verdict are counted apart and are in no mean.

    Attributes:
        policy: the pinned version.
        temperature: sampling temperature of the round.
        graded: episodes with a verdict.
        successes: episodes whose reward reached the success bound.
        unscored: episodes without a verdict.
        strata: the same by family and difficulty.
        wall_s: seconds of the round.
    """

    policy: PolicyRef
    temperature: float
    graded: int
    successes: int
    unscored: int
    strata: tuple[StratumScore, ...]
    wall_s: float
