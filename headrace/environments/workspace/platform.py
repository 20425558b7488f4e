"""What works on this machine: which walls, and whether a workspace comes in as an overlay or as a copy.

Invariant: what was chosen was tried, on the folder that the workspaces of this run start from, and the choice is told with
what was measured.
"""

import asyncio
import dataclasses
import os
import statistics
import time
from pathlib import Path

from headrace.environments.sandbox.launch import possible_levels, workspace_owner
from headrace.environments.sandbox.meters import MeterFactory
from headrace.environments.sandbox.options import Isolation, Level
from headrace.environments.sandbox.pool import missing_behind
from headrace.environments.sandbox.process import SandboxProcess
from headrace.environments.sandbox.python_root import find_python_root
from headrace.environments.workspace.calls import Caller
from headrace.environments.workspace.options import WorkspaceOptions
from headrace.environments.workspace.programs import Programs, find_programs
from headrace.environments.workspace.store import RevisionStore
from headrace.errors import ConfigError, Outcome, ProcessError
from headrace.records.ids import EpisodeId, GroupId, Purpose

TRIES = 3
_PROBE = EpisodeId(GroupId.of(Purpose.CHECK, 0), 0, 0)
_WAYS = {True: "overlay", False: "copy"}


@dataclasses.dataclass(frozen=True)
class Found:
    """What works here.

    Attributes:
        caller: runs calls.
        store: keeps revisions.
        programs: what is shown.
        is_overlay: whether a workspace comes in as an overlay.
        isolation: what a reader has to know.
    """

    caller: Caller
    store: RevisionStore
    programs: Programs
    is_overlay: bool
    isolation: Isolation


async def find_platform(options: WorkspaceOptions, folder: Path, meters: MeterFactory) -> Found:
    """What works here, found by trying.

    Raises:
        ConfigError: when the base folder cannot be used.
        ProcessError: REJECTED when no sandbox works, with what was tried and the remedy.
    """
    is_root = os.geteuid() == 0
    failures: list[str] = []
    levels = possible_levels(options.sandbox)
    if not levels:
        failures.append("bubblewrap is not installed")
    try:
        root = await asyncio.to_thread(find_python_root)
        programs = await asyncio.to_thread(find_programs, options.programs, root)
    except (OSError, ValueError) as error:
        raise ProcessError(f"workspace: {error}", Outcome.REJECTED) from error
    for level in levels:
        # Inside a user name space root is who owns the files outside.
        owner = workspace_owner() if is_root and level == "bubblewrap_root" else None
        store = await asyncio.to_thread(_make_store, options, folder, owner)
        caller = Caller(options, meters, level, root=root, programs=programs)
        found = {is_overlay: await _try(caller, store, is_overlay, failures) for is_overlay in _wanted(options)}
        times = {is_overlay: probe for is_overlay, probe in found.items() if probe is not None}
        if times:
            is_overlay = min(times, key=lambda way: times[way].median_s)
            return Found(
                caller,
                store,
                programs,
                is_overlay,
                _isolation(level, times, is_overlay, store=store, programs=programs),
            )
        store.stop()
    raise ProcessError(
        f"no workspace works here ({'; '.join(failures)}). Install bubblewrap, and allow user name spaces to ordinary "
        "users or start as root",
        Outcome.REJECTED,
    )


def _wanted(options: WorkspaceOptions) -> tuple[bool, ...]:
    return (True, False) if options.by == "measure" else (options.by == "overlay",)


def _make_store(options: WorkspaceOptions, folder: Path, owner: int | None) -> RevisionStore:
    store = RevisionStore(folder, owner)
    if options.base:
        try:
            store.take_base(Path(options.base))
        except (OSError, ValueError) as error:
            store.stop()
            raise ConfigError(f"environment.options.base is {options.base!r}, which cannot be used: {error}") from error
    return store


@dataclasses.dataclass(frozen=True)
class _Probe:
    """How long it took to show the base to a sandbox, and what the sandbox lacks."""

    median_s: float
    missing: tuple[str, ...]
    metering: str


async def _try(caller: Caller, store: RevisionStore, is_overlay: bool, failures: list[str]) -> _Probe | None:
    """The probe; None when it does not work, with the reason added."""
    layers = store.layers(_PROBE, store.base, is_overlay)
    size_bytes = sum(entry.size_bytes for entry in store.base.values())
    times_s: list[float] = []
    process: SandboxProcess | None = None
    try:
        for _ in range(TRIES):
            start_s = time.perf_counter()
            process = await caller.start(layers, is_overlay, size_bytes)
            times_s.append(time.perf_counter() - start_s)
            await process.close()
    except ProcessError as error:
        failures.append(f"{caller.level} with {_WAYS[is_overlay]}: {error}")
        return None
    finally:
        store.drop(layers)
    assert process is not None
    return _Probe(statistics.median(times_s), missing_behind(caller.level, process), process.meter.kind)


def _isolation(
    level: Level, times: dict[bool, _Probe], is_overlay: bool, *, store: RevisionStore, programs: Programs
) -> Isolation:
    probe = times[is_overlay]
    size_bytes = sum(entry.size_bytes for entry in store.base.values())
    shown = f"workspaces by {_WAYS[is_overlay]}: {1e3 * probe.median_s:.0f} ms to a sandbox"
    others = [f"{1e3 * times[way].median_s:.0f} ms by {_WAYS[way]}" for way in times if way != is_overlay]
    against = f", against {others[0]}" if others else ""
    note = f"{shown}{against}, at {len(store.base)} files and {size_bytes / 1e6:.1f} MB"
    if programs.missing:
        note += f"; no program here for {', '.join(programs.missing)}"
    return Isolation(level, probe.metering, probe.missing, note)
