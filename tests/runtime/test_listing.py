"""`headrace ls` says what a run's journal and lock say: nothing is called running that nobody writes."""

import asyncio
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.config import load_config
from headrace.errors import ConfigError
from headrace.ports import Row
from headrace.records.provenance import address_of, canonical_bytes
from headrace.records.run import RunEnded, RunStarted
from headrace.runtime.listing import RunLine, list_runs
from headrace.store.sqlite import SqliteJournal

EXAMPLE = Path(__file__).parents[2] / "examples" / "arithmetic" / "train.toml"


def write(runs: Path, *ends: str, is_started: bool = True) -> list[RunLine]:
    """The list while the journal is open, after one process for each end and one without an end."""
    seen: list[RunLine] = []

    async def process(number: int, reason: str | None) -> None:
        journal = SqliteJournal(runs / "run-001", incarnation=f"hand-{number}")
        try:
            if is_started:
                data = canonical_bytes(load_config(EXAMPLE))
                config = address_of(data)
                started = RunStarted("run-001", 7, config, "local", "2031-01-02T03:04:05+00:00", {})
                await journal.durable(journal.append(started, key=f"RUN#{number}", rows=(Row("config", data),)))
            if reason is not None:
                await journal.durable(journal.append(RunEnded(reason, 3), key=f"RUN#{number}"))
            seen.extend(list_runs(runs))
        finally:
            await journal.close()

    for number, reason in enumerate([*ends, None], start=1):
        asyncio.run(process(number, reason))
    return seen


def test_a_run_whose_process_is_gone_is_cut_off_and_says_how_to_go_on(tmp_path: Path) -> None:
    write(tmp_path)
    (line,) = list_runs(tmp_path)
    assert line.state == "cut off"
    assert "ends at event 1" in line.note
    assert f"headrace train --resume {tmp_path}/run-001" in line.note
    assert (line.updates, line.planned) == (0, 30)


def test_a_run_that_a_living_process_writes_is_running(tmp_path: Path) -> None:
    assert [line.state for line in write(tmp_path)] == ["running"]


def test_a_resumed_run_is_not_what_its_first_process_ended_as(tmp_path: Path) -> None:
    assert [line.state for line in write(tmp_path, "stopped")] == ["running", "running"]
    assert list_runs(tmp_path)[0].state == "cut off"


@pytest.mark.parametrize(
    ("reason", "state", "told"),
    [
        ("completed", "completed", ""),
        ("stopped", "stopped", "--resume"),
        ("failed: no space left", "failed", "no space left"),
        ("paused: the guard", "paused", "start a new run"),
    ],
)
def test_the_end_of_a_run_is_a_word_and_a_remedy(tmp_path: Path, reason: str, state: str, told: str) -> None:
    async def once() -> None:
        journal = SqliteJournal(tmp_path / "run-001", incarnation="hand")
        data = canonical_bytes(load_config(EXAMPLE))
        started = RunStarted("run-001", 7, address_of(data), "local", "", {})
        journal.append(started, key="RUN#1", rows=(Row("config", data),))
        await journal.durable(journal.append(RunEnded(reason, 3), key="RUN#1"))
        await journal.close()

    asyncio.run(once())
    (line,) = list_runs(tmp_path)
    assert line.state == state
    assert told in line.note


def test_a_journal_without_a_start_never_began(tmp_path: Path) -> None:
    write(tmp_path, is_started=False)
    assert list_runs(tmp_path)[0].state == "never began"


def test_the_list_fits_eighty_columns_and_cuts_no_heading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    assert main(["ls", "--runs", str(tmp_path)]) == 0
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "started", "updates", "held-out", "success", "size", "state"]
    assert max(len(head), len(row)) <= 80


def test_a_missing_folder_is_an_error_with_its_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="headrace train CONFIG"):
        list_runs(tmp_path / "none")
    assert main(["ls", "--runs", str(tmp_path / "none")]) == 1
    assert "--runs" in capsys.readouterr().err


def test_the_remedy_refuses_another_configuration_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    assert main(["train", "--resume", "run-001", "--runs", str(tmp_path), "run.seed=9"]) == 1
    told = capsys.readouterr()
    assert "run.seed: 7 when it started, 9 now" in told.err
    assert "warm start" not in told.out
