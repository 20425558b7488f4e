"""Lines and grids of text, the shape in which the report reaches a terminal or a page; and cells in the report's manner."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from headrace.reporting.folds.heldout import Rate
from headrace.reporting.plaintext import one_line
from headrace.reporting.quantities import ABSENT, number, percent

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Grid:
    """Cells of text under headings.

    Attributes:
        columns: headings.
        rows: cells, one for each heading.
        left: so many leading columns are names and stand to the left; the rest are figures.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


@dataclasses.dataclass(frozen=True)
class Section:
    """A titled part of the report.

    Attributes:
        name: short, for links.
        title: for people.
        items: lines of text and grids, in order.
    """

    name: str
    title: str
    items: tuple[str | Grid, ...]


def interval(rate: Rate) -> str:
    """The 95% interval of a rate."""
    return ABSENT if rate.low is None or rate.high is None else f"{percent(rate.low)} to {percent(rate.high)}"


def per_resource(name: str) -> str:
    """Unit of a resource-hour: `cores` gives `core-hour`."""
    return f"{one_line(name).removesuffix('s')}-hour"


def thinned(items: Sequence[T], most: int | None) -> list[T]:
    """First, last, and evenly spaced ones between, at most so many."""
    if most is None or len(items) <= most:
        return list(items)
    return [items[(len(items) - 1) * i // (most - 1)] for i in range(most)]


def signed(value: float | None) -> str:
    """The value with its sign."""
    return ABSENT if value is None else f"{value:+.3g}"


def with_unit(value: float | None, unit: str) -> str:
    """The value followed by its unit."""
    return ABSENT if value is None else f"{number(value)} {unit}"
