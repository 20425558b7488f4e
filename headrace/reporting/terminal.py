"""The report as tables for a terminal; what is too wide for it goes on in a second table under the same names."""

import textwrap
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.reporting.contents import headline, sections
from headrace.reporting.grids import Grid
from headrace.reporting.plaintext import one_line
from headrace.reporting.report import RunReport

_GAP = 2
"""Blank columns between two columns."""


def print_report(report: RunReport, console: Console, *, is_full: bool = False) -> None:
    """Writes the tables; without `is_full` long ones are thinned out."""
    console.print(Text(f"Run {one_line(report.facts.run_id)}", style="bold"))
    console.print(Text("\n".join(headline(report))))
    for section in sections(report, is_full=is_full):
        console.print(Text(f"\n{section.title}", style="bold"))
        for item in section.items:
            if isinstance(item, Grid):
                for part in _parts(item, console.width):
                    console.print(_table(part))
            else:
                console.print(Text(item))


def _parts(grid: Grid, width: int) -> Iterator[Grid]:
    """The grid, or several with the same names at the left, each as wide as the terminal at most."""
    widths = [_width(grid, place) + _GAP for place in range(len(grid.columns))]
    names, figures = list(range(grid.left)), list(range(grid.left, len(grid.columns)))
    room = width + _GAP - sum(widths[: grid.left])
    while figures:
        taken = [figures.pop(0)]
        while figures and sum(widths[place] for place in (*taken, figures[0])) <= room:
            taken.append(figures.pop(0))
        places = [*names, *taken]
        yield Grid(
            tuple(grid.columns[place] for place in places),
            tuple(tuple(row[place] for place in places) for row in grid.rows),
            grid.left,
        )
    if len(names) == len(grid.columns):
        yield grid


def _width(grid: Grid, place: int) -> int:
    """Columns that the cells need; a heading may break between words."""
    words = max((len(word) for word in grid.columns[place].split()), default=0)
    return max(words, *(len(row[place]) for row in grid.rows), 0)


def _table(grid: Grid) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for position, name in enumerate(grid.columns):
        justify, is_text = "left" if position < grid.left else "right", grid.left == len(grid.columns)
        width = _width(grid, position)
        heading = name if is_text else textwrap.fill(name, max(1, width))
        table.add_column(Text(heading), justify=justify, min_width=None if is_text else width)
    for row in grid.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
