"""`headrace train`: a run's folder, live progress, and the report at the end."""

import asyncio
from pathlib import Path

from rich.console import Console

from headrace.config import Config
from headrace.errors import HeadraceError
from headrace.reporting.progress import Progress
from headrace.runtime.folders import new_run
from headrace.runtime.local import LocalRun, run_local
from headrace.runtime.policy import WarmStartState
from headrace.runtime.reading import write_report

_WARM_LINES = 10


def train(config: Config, runs: Path, name: str | None) -> int:
    """Runs the job; exit status 0 once it is complete and reported.

    Raises:
        HeadraceError: whatever stopped it; what was sealed stays in the run's folder.
    """
    folder = new_run(runs, name)
    console = Console(highlight=False)
    console.print(f"run {folder}: {config.run.updates} updates, seed {config.run.seed}, {config.schedule.mode}")
    progress = Progress(console, updates=config.run.updates)
    run = LocalRun(config, folder, observers=(progress,), warm_start=_WarmStart(console))
    try:
        asyncio.run(run_local(run))
    except HeadraceError:
        _remove_empty(folder)
        raise
    finally:
        progress.close()
    write_report(folder, folder / "report.html")
    console.print(
        f"\nlook closer:  headrace show train.0.0.0 --run {folder}    headrace verify --run {folder}", soft_wrap=True
    )
    return 0


class _WarmStart:
    """Reports a warm start in a few lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._reported = 0

    def __call__(self, state: WarmStartState) -> None:
        if state.steps == 0:
            self._console.print("warm start: taken from the cache")
            return
        part = _WARM_LINES * state.step // state.steps
        if part > self._reported or state.step == 1:
            self._reported = part
            self._console.print(
                f"warm start: step {state.step}/{state.steps}, {state.tokens} tokens, loss {state.loss:.3f}"
            )


def _remove_empty(folder: Path) -> None:
    """A run that never began leaves no folder behind."""
    if not any(folder.iterdir()):
        folder.rmdir()
