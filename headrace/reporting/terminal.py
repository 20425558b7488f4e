"""The report as tables for a terminal of 100 columns."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.reporting.grids import Grid
from headrace.reporting.plaintext import one_line
from headrace.reporting.report import RunReport
from headrace.reporting.sections import headline, sections


def print_report(report: RunReport, console: Console, *, is_full: bool = False) -> None:
    """Writes the tables; without `is_full` long ones are thinned out."""
    console.print(Text(f"Run {one_line(report.facts.run_id)}", style="bold"))
    console.print(Text("\n".join(headline(report))))
    for section in sections(report, is_full=is_full):
        console.print(Text(f"\n{section.title}", style="bold"))
        for item in section.items:
            console.print(_table(item) if isinstance(item, Grid) else Text(item))


def _table(grid: Grid) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for position, name in enumerate(grid.columns):
        table.add_column(Text(name), justify="left" if position < grid.left else "right")
    for row in grid.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
