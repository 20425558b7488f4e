"""`headrace ls`: the runs of a folder, read from their journals alone."""

import dataclasses
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.records.evaluation import EvaluationCompleted
from headrace.records.run import RunEnded, RunStarted
from headrace.runtime.folders import JOURNAL
from headrace.runtime.models import run_config
from headrace.store.reader import open_reader


@dataclasses.dataclass(frozen=True)
class RunLine:
    """One run.

    Attributes:
        name: of its folder.
        started: ISO 8601 time of the start.
        state: how it ended; `running or cut off` while its journal says nothing.
        updates: updates completed.
        planned: updates that were asked for.
        held_out: newest held-out rounds, at each temperature.
        size_bytes: of everything in the folder.
    """

    name: str
    started: str
    state: str
    updates: int
    planned: int
    held_out: tuple[EvaluationCompleted, ...]
    size_bytes: int


def list_runs(runs: Path) -> list[RunLine]:
    """The runs below the folder, by name."""
    return [_line(path.parent) for path in sorted(runs.glob(f"*/{JOURNAL}"))]


def _line(run: Path) -> RunLine:
    size_bytes = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    try:
        with open_reader(run) as reader:
            starts = [e.payload for e in reader.events_of_kind("run_started") if isinstance(e.payload, RunStarted)]
            ends = [e.payload for e in reader.events_of_kind("run_ended") if isinstance(e.payload, RunEnded)]
            rounds = [
                event.payload
                for event in reader.events_of_kind("evaluation_completed")
                if isinstance(event.payload, EvaluationCompleted)
            ]
            updates = sum(1 for _ in reader.events_of_kind("update_completed"))
            planned = run_config(reader, run).run.updates
    except (HeadraceError, ValueError) as error:
        return RunLine(run.name, "", f"unreadable: {error}", 0, 0, (), size_bytes)
    newest = {item.temperature: item for item in rounds}
    return RunLine(
        name=run.name,
        started=starts[0].wall_clock if starts else "",
        state=ends[-1].reason if ends else "running or cut off",
        updates=updates,
        planned=planned,
        held_out=tuple(newest[temperature] for temperature in sorted(newest, reverse=True)),
        size_bytes=size_bytes,
    )
