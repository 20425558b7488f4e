"""Every line of the fault model: inject, recover from the journal, and every law holds besides the line's own."""

from pathlib import Path

import pytest
from simulation.fault_rows import ROWS
from simulation.trials import Row, try_row

ELSEWHERE = {"F28"}
"""Shown with the real engine: `test_seeded_bugs.py` re-scores what was sampled across swaps, with and without the salt."""


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_after_the_fault_every_law_holds_and_so_does(row: Row, tmp_path: Path) -> None:
    assert len(try_row(row, tmp_path)) == len(row.plans) > 0


def test_every_line_of_the_fault_model_has_a_row() -> None:
    assert {row.id for row in ROWS} | ELSEWHERE == {f"F{number:02}" for number in range(1, 57)}
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.must or row.sometimes, f"{row.name} asserts nothing of its own"
        assert any(row.plans) or row.run is not None or row.world.options or row.world.workload or row.world.sections
