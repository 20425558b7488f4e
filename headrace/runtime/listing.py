"""`headrace ls`: the runs of a folder, read from their journals alone."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import ConfigError, HeadraceError
from headrace.records.evaluation import EvaluationCompleted
from headrace.records.events import Event
from headrace.records.run import RunEnded, RunStarted
from headrace.runtime.folders import JOURNAL
from headrace.runtime.models import run_config
from headrace.store.reader import JournalReader, open_reader
from headrace.store.sqlite import has_writer


@dataclasses.dataclass(frozen=True)
class RunLine:
    """One run.

    Attributes:
        name: of its folder.
        started: ISO 8601 time of the start.
        state: `running`, `cut off`, `never began`, `unreadable`, or the first word of how it ended.
        note: what to know or do about the state; empty when there is nothing.
        updates: updates completed.
        planned: updates that were asked for.
        held_out: newest held-out rounds, at each temperature.
        size_bytes: of everything in the folder.
    """

    name: str
    started: str
    state: str
    note: str
    updates: int
    planned: int
    held_out: tuple[EvaluationCompleted, ...]
    size_bytes: int


def list_runs(runs: Path) -> list[RunLine]:
    """The runs below the folder, by name.

    Raises:
        ConfigError: when there is no such folder.
    """
    if not runs.is_dir():
        raise ConfigError(
            f"there is no folder {runs}; runs are made by `headrace train CONFIG`, or name their folder with --runs"
        )
    return [_line(path.parent) for path in sorted(runs.glob(f"*/{JOURNAL}"))]


def _line(run: Path) -> RunLine:
    size_bytes = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    try:
        with open_reader(run) as reader:
            starts = list(reader.events_of_kind("run_started"))
            state, note = _state(run, reader, starts)
            rounds = [
                event.payload
                for event in reader.events_of_kind("evaluation_completed")
                if isinstance(event.payload, EvaluationCompleted)
            ]
            updates = sum(1 for _ in reader.events_of_kind("update_completed"))
            planned = run_config(reader, run).run.updates if starts else 0
    except (HeadraceError, ValueError) as error:
        return RunLine(run.name, "", "unreadable", str(error), 0, 0, (), size_bytes)
    newest = {item.temperature: item for item in rounds}
    return RunLine(
        name=run.name,
        started=next((e.payload.wall_clock for e in starts if isinstance(e.payload, RunStarted)), ""),
        state=state,
        note=note,
        updates=updates,
        planned=planned,
        held_out=tuple(newest[temperature] for temperature in sorted(newest, reverse=True)),
        size_bytes=size_bytes,
    )


def _state(run: Path, reader: JournalReader, starts: Sequence[Event]) -> tuple[str, str]:
    """(state in a word, what to know or do about it). A run without an end runs only while a living process writes it."""
    last = reader.last_seq()
    if has_writer(run):
        return "running", ""
    if not starts:
        return "never began", f"its journal ends at event {last}, before the run began; start it again"
    ends = [event for event in reader.events_of_kind("run_ended") if event.seq > starts[-1].seq]
    go_on = f"go on with:  headrace train --resume {run}"
    if not ends:
        return "cut off", f"its process is gone, the journal ends at event {last}; {go_on}"
    ended = ends[-1].payload
    reason = ended.reason if isinstance(ended, RunEnded) else ""
    word, _, detail = reason.partition(":")
    match word:
        case "stopped":
            return word, go_on
        case "failed":
            return word, f"{detail.strip()}; once the cause is gone {go_on}"
        case _ if word.startswith("paused"):
            return "paused", f"{reason}; it does not go on by itself, start a new run with other settings"
        case _:
            return word, detail.strip()
