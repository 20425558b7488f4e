"""What the experiment leaves on disk: one JSON file with everything, one Parquet table, PNG plots and the page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.planning.experiment import Measured
from headrace.planning.page import render_page
from headrace.planning.plots import draw_plots
from headrace.planning.tables import curve_table, losses, row_of


def write_files(folder: Path, facts: Mapping[str, str], cells: Sequence[Measured]) -> list[str]:
    """One line for each file written, or the reason why it was not."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row_of(cell) for cell in cells]
    record = {"facts": dict(facts), "rows": rows, "curve": curve_table(cells), "loses": losses(cells), "cells": cells}
    (folder / "rollout.json").write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))
    lines = [f"{folder / 'rollout.json'}"]
    lines.append(_write_parquet(folder / "rollout.parquet", rows))
    try:
        plots = draw_plots(cells)
    except ModuleNotFoundError as error:
        plots = {}
        lines.append(f"no plots: {error}; install matplotlib")
    for name, data in plots.items():
        (folder / name).write_bytes(data)
    page = folder / "rollout.html"
    page.write_text(render_page(facts, cells, plots), encoding="utf-8")
    lines.append(f"{page} ({len(plots)} plots inside, and beside it as PNG)")
    return lines


def _write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        return "no Parquet table: pyarrow is not installed; `pip install 'headrace[export]'` brings it"
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    pyarrow.parquet.write_table(table, path)
    return str(path)
