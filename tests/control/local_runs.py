"""Runs on real child processes whose journals are read back."""

import asyncio
from pathlib import Path

from headrace.checkers import LawChecker, bounds_of
from headrace.config import Config
from headrace.records.events import Event
from headrace.runtime.local import LocalRun, run_local
from headrace.runtime.simulated import law_observer
from headrace.store.reader import open_reader
from headrace.store.verify import verify_run


def verified_run(config: Config, folder: Path) -> tuple[Event, ...]:
    """Events of a run that kept every law while it ran, and whose stored journal verifies."""
    folder.mkdir()
    laws = law_observer(LawChecker(bounds_of(config)))
    asyncio.run(run_local(LocalRun(config, folder, observers=(laws,))))
    report = verify_run(folder)
    assert report.is_sound, report.problems
    with open_reader(folder) as reader:
        return tuple(reader.events())
