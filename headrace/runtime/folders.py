"""Where runs and caches lie, and how a run is found by name."""

import os
from pathlib import Path

from headrace.errors import ConfigError

JOURNAL = "journal.db"
BLOBS = "blobs"
WORKSPACES = "workspaces"


def cache_folder() -> Path:
    """Folder of things that can be made again: `$XDG_CACHE_HOME/headrace`, else `~/.cache/headrace`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "headrace"


def new_run(runs: Path, name: str | None) -> Path:
    """A fresh folder for a run: the name given, or the next free `run-001`, `run-002`, …

    Raises:
        ConfigError: when a run of that name exists.
    """
    if name is not None:
        if Path(name).name != name:
            raise ConfigError(f"--run {name!r} is no plain name; choose the folder of all runs with --runs")
        folder = runs / name
        if folder.exists():
            raise ConfigError(f"{folder} exists; choose another --run name or remove it")
    else:
        taken = {path.name for path in runs.glob("run-*")}
        folder = next(runs / f"run-{n:03d}" for n in range(1, 100_000) if f"run-{n:03d}" not in taken)
    folder.mkdir(parents=True)
    return folder


def find_run(runs: Path, name: str | None) -> Path:
    """Folder of a run: by path, by name below `runs`, or the newest one.

    Raises:
        ConfigError: when there is none, naming those that exist.
    """
    if name is not None:
        for folder in (Path(name), runs / name):
            if (folder / JOURNAL).is_file():
                return folder
        known = ", ".join(sorted(path.parent.name for path in runs.glob(f"*/{JOURNAL}"))) or "none"
        raise ConfigError(
            f"no run {name!r}: neither {name}/{JOURNAL} nor {runs / name}/{JOURNAL} exists; known: {known}"
        )
    found = sorted(runs.glob(f"*/{JOURNAL}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ConfigError(f"no run below {runs}/; start one with `headrace train CONFIG`, or name its folder")
    return found[-1].parent
