"""`headrace train`: a run's folder, live progress, and the report at the end.

Invariant: however a run ends, by a signal or a crash, `--resume` goes on where its journal ends.
"""

import asyncio
import dataclasses
import signal
from pathlib import Path

import msgspec
from rich.console import Console

from headrace.config import Config, override_config
from headrace.control.resuming import check_same_config
from headrace.errors import ConfigError, HeadraceError
from headrace.records.events import Event
from headrace.records.run import RunStarted
from headrace.reporting.progress import HEARTBEAT_NS, Progress
from headrace.runtime.folders import JOURNAL, new_run
from headrace.runtime.local import LocalRun, run_local
from headrace.runtime.policy import WarmStartState
from headrace.runtime.reading import write_report
from headrace.store.reader import JournalReader, open_reader

_WARM_LINES = 10
STOPPED = 128 + signal.SIGTERM
"""Exit status after SIGTERM, as a shell gives it."""


def train(config: Config, runs: Path, name: str | None) -> int:
    """Runs the job; exit status 0 once it is complete and reported.

    Raises:
        HeadraceError: whatever stopped it; what was sealed stays in the run's folder.
    """
    folder = new_run(runs, name)
    console = Console(highlight=False)
    console.print(f"run {folder}: {config.run.updates} updates, seed {config.run.seed}, {config.schedule.mode}")
    progress = Progress(console, updates=config.run.updates)
    try:
        return _run(LocalRun(config, folder, (progress,), _WarmStart(console)), progress, console)
    except HeadraceError:
        _remove_empty(folder)
        raise


def resume(folder: Path, overrides: tuple[str, ...], given: Config | None = None) -> int:
    """Goes on with a run where its journal ends; exit status 0 once it is complete and reported.

    Args:
        folder: of the run.
        overrides: settings that may differ from those it was started with, such as `run.updates=80`.
        given: configuration in place of the recorded one; it has to be the same but for those.

    Raises:
        ConfigError: with every difference, when it would be another run.
        HeadraceError: whatever stopped it.
    """
    with open_reader(folder) as reader:
        recorded = _recorded_config(reader, folder)
        config = override_config(given or recorded, overrides)
        check_same_config(folder.name, recorded, config)  # before anything is trained or started for it
        console = Console(highlight=False)
        progress = Progress(console, updates=config.run.updates)
        progress.catch_up(reader.events())
    console.print(
        f"run {folder}: goes on to {config.run.updates} updates, seed {config.run.seed}, {config.schedule.mode}"
    )
    return _run(LocalRun(config, folder, (progress,), _WarmStart(console)), progress, console)


def _run(run: LocalRun, progress: Progress, console: Console) -> int:
    folder = run.folder
    try:
        is_stopped = asyncio.run(_until_told(run, progress))
    except (HeadraceError, KeyboardInterrupt):
        if (folder / JOURNAL).is_file():
            console.print(_go_on(folder), soft_wrap=True)
        raise
    finally:
        progress.close()
    if is_stopped:
        remedy = _go_on(folder) if (folder / JOURNAL).is_file() else "it had not begun; start it again"
        console.print(f"stopped by SIGTERM; {remedy}", soft_wrap=True)
        return STOPPED
    write_report(folder, folder / "report.html")
    console.print(
        f"\nlook closer:  headrace show train.0.0.0 --run {folder}    headrace verify --run {folder}", soft_wrap=True
    )
    return 0


def _go_on(folder: Path) -> str:
    return f"go on with:  headrace train --resume {folder}"


class Silence:
    """An observer that has the progress say what the run waits for while no event comes.

    Args:
        progress: what speaks.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._last_s: float | None = None

    def __call__(self, event: Event) -> None:
        """Something happened."""
        self._last_s = self._loop.time()

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(HEARTBEAT_NS / 1e9)
            for_s = 0.0 if self._last_s is None else self._loop.time() - self._last_s
            if for_s >= HEARTBEAT_NS / 1e9:
                self._progress.silent(for_s)


async def _until_told(run: LocalRun, progress: Progress) -> bool:
    """Whether SIGTERM ended the run: nothing new was begun, the journal is complete, no child is left."""
    silence = Silence(progress)
    run = dataclasses.replace(run, observers=(*run.observers, silence))
    loop, running = asyncio.get_running_loop(), asyncio.ensure_future(run_local(run))
    watching = asyncio.create_task(silence.watch(), name="progress: silence")
    is_told = False

    def stop() -> None:
        nonlocal is_told
        is_told = True
        loop.remove_signal_handler(signal.SIGTERM)  # the next one kills at once
        running.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        await running
    except asyncio.CancelledError:
        if not is_told:
            raise
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return is_told


def _recorded_config(reader: JournalReader, folder: Path) -> Config:
    """The configuration that the newest process of the run was started with."""
    started = [event.payload for event in reader.events_of_kind("run_started")]
    if not started or not isinstance(started[-1], RunStarted):
        raise ConfigError(f"{folder} holds no run that began; start a new one")
    return msgspec.msgpack.decode(reader.read(started[-1].config), type=Config)


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
