"""The order in which tasks trained against the order in which they were drawn, and the mix offered against the mix trained.

A group's *drift* is its place among trained groups in training order minus its place among them in drawing order: positive
when it trained later than its turn. Over all strata drifts sum to 0, so a stratum that is pushed back shows up at once.
"""

import math
from collections.abc import Iterator

import msgspec

from headrace.reporting.folds.index import RunIndex
from headrace.reporting.folds.lives import GroupLife
from headrace.reporting.quantities import mean, ratio

_LEAST_DEPARTURE = 0.02
_DEVIATIONS = 3.0
"""An alarm wants two points of the mix, and more than three standard deviations of as many independent draws."""


class StratumOrder(msgspec.Struct, frozen=True):
    """One difficulty. Drift is in groups.

    Attributes:
        difficulty: stratum.
        drawn: groups drawn.
        drawn_share: of all drawn.
        trained: groups trained.
        trained_share: of all trained; None when nothing trained.
        mean_drift: None when none trained.
        max_drift: furthest behind its turn.
        min_drift: furthest ahead of its turn.
    """

    difficulty: str
    drawn: int
    drawn_share: float | None
    trained: int
    trained_share: float | None
    mean_drift: float | None
    max_drift: int | None
    min_drift: int | None


class UpdateOrder(msgspec.Struct, frozen=True):
    """Mean drift of one difficulty in one update.

    Attributes:
        update: its number.
        mean_drift: by difficulty, groups; a difficulty that the update did not train is missing.
        mix: share of each difficulty among the update's groups.
    """

    update: int
    mean_drift: dict[str, float]
    mix: dict[str, float]


class Order(msgspec.Struct, frozen=True):
    """Order and mix.

    Attributes:
        strata: by difficulty.
        by_update: over time.
        alarms: where the mix or the order that trained departs from the one offered, in words.
    """

    strata: tuple[StratumOrder, ...]
    by_update: tuple[UpdateOrder, ...]
    alarms: tuple[str, ...] = ()


def order(index: RunIndex) -> Order:
    """The figures so far."""
    drawn = [group for group in index.groups.values() if group.drawn_ns is not None]
    trained = index.trained_groups()
    rank = {group.id: place for place, group in enumerate(sorted(trained, key=lambda group: group.id.ordinal))}
    drift = {group.id: place - rank[group.id] for place, group in enumerate(trained)}
    names = sorted({group.difficulty for group in drawn})
    by_update: dict[int, list[GroupLife]] = {}
    for group in trained:
        by_update.setdefault(group.update or 0, []).append(group)
    strata: list[StratumOrder] = []
    for name in names:
        num_drawn = sum(group.difficulty == name for group in drawn)
        drifts = [drift[group.id] for group in trained if group.difficulty == name]
        strata.append(
            StratumOrder(
                difficulty=name,
                drawn=num_drawn,
                drawn_share=ratio(num_drawn, len(drawn)),
                trained=len(drifts),
                trained_share=ratio(len(drifts), len(trained)),
                mean_drift=mean(drifts),
                max_drift=max(drifts, default=None),
                min_drift=min(drifts, default=None),
            )
        )
    return Order(
        strata=tuple(strata),
        by_update=tuple(
            UpdateOrder(
                update,
                {
                    name: sum(found) / len(found)
                    for name in names
                    if (found := [drift[group.id] for group in groups if group.difficulty == name])
                },
                {name: sum(group.difficulty == name for group in groups) / len(groups) for name in names},
            )
            for update, groups in by_update.items()
        ),
        alarms=tuple(alarm for row in strata for alarm in _alarms(row, len(trained), len(by_update))),
    )


def _alarms(row: StratumOrder, num_trained: int, num_updates: int) -> Iterator[str]:
    if row.drawn_share is None or row.trained_share is None:
        return
    departure = row.trained_share - row.drawn_share
    deviation = math.sqrt(row.drawn_share * (1.0 - row.drawn_share) / num_trained)
    if abs(departure) > max(_LEAST_DEPARTURE, _DEVIATIONS * deviation):
        yield (
            f"{row.difficulty}: {row.trained_share:.1%} of what trained, {row.drawn_share:.1%} of what was drawn; chance "
            f"explains {_DEVIATIONS * deviation:.1%}"
        )
    per_update = num_trained / num_updates
    if row.mean_drift is not None and abs(row.mean_drift) > per_update:
        side = "later" if row.mean_drift > 0 else "earlier"
        yield f"{row.difficulty}: trained {abs(row.mean_drift) / per_update:.1f} updates {side} than its turn on average"
