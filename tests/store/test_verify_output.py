"""What `headrace verify` prints can be read on a terminal and counted by a script."""

from pathlib import Path

import pytest
from lawful_run import lawful_steps
from store.test_verify import execute, store

from headrace.cli import main
from headrace.records.provenance import address_of
from headrace.runtime.reading import shortened


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sound run under a short relative name."""
    store(tmp_path / "run-001")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run-001"


def test_a_sound_run_fits_the_terminal_and_ends_with_one_word(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--run", run.name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "run run-001"
    assert lines[-1].startswith(f"sound: {len(lawful_steps())} events, ")
    assert [line for line in lines if line.startswith("rows ")]


def test_each_finding_is_one_line_and_the_last_line_counts_them(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    execute(run, "DELETE FROM rows WHERE rowid = (SELECT max(rowid) FROM rows WHERE kind = 'receipt')")
    execute(run, "UPDATE events SET epoch = 2 WHERE seq = 26")
    assert main(["verify", "--run", run.name]) == 1
    lines = capsys.readouterr().out.splitlines()
    found = [line for line in lines if line.startswith("PROBLEM  ")]
    assert len(found) == 2
    assert any(", receipt: names " in line for line in found)
    assert lines[-1].startswith("NOT SOUND: 2 problems")


def test_addresses_are_cut_and_line_breaks_leave() -> None:
    address = address_of(b"a row")
    assert shortened(f"row {address}\nof {address[:40]}") == f"row {address[:12]}… of {address[:40]}"
