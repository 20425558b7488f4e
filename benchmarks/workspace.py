"""Revisions of a workspace: what a call with its snapshot costs, and a restore, by overlay and by copy.

Run: `python -m benchmarks.workspace [--repeats N]`. The real environment with real sandboxes, on base folders of two sizes.
A call starts its sandbox, changes one file and stores the revision; a call that changes nothing stores none; a restore goes
back to the revision of the beginning. Overlay and copy take turns in one sitting; medians in milliseconds of wall time.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from headrace.environments.workspace.environment import WorkspaceEnvironment
from headrace.environments.workspace.options import WorkspaceOptions
from headrace.ports import Handle
from headrace.records.action import Action
from headrace.records.execution import ExecutionStatus, Lease
from headrace.records.ids import ActionId, EpisodeId, GroupId, LeaseToken, Purpose
from headrace.records.task import Budget, Task

T = TypeVar("T")
SIZES = ((100, 10_000), (5_000, 10_000))
"""Files, and bytes of each: 1 MB and 50 MB."""
WAYS: tuple[Literal["overlay", "copy"], ...] = ("overlay", "copy")
TIMEOUT_S = 120.0
EPISODE = EpisodeId(GroupId.of(Purpose.CHECK, 0), 0, 0)
LEASE = Lease(LeaseToken(1), 1e9)
TASK = Task("files", "any", 1, 0, "Write.", Budget(), "workspace")


class Subject:
    """One environment, and what was measured on it in seconds."""

    def __init__(self, environment: WorkspaceEnvironment) -> None:
        self.environment = environment
        self.times_s: dict[str, list[float]] = {"change": [], "no change": [], "restore": []}
        self._steps = 0

    async def round(self, handle: Handle) -> Handle:
        """A call that writes, one that does not, and back to where it began."""
        start = await self.environment.snapshot(handle, TIMEOUT_S)
        assert start is not None
        await self._timed("change", self._call(handle, f"echo {self._steps} > changed"))
        assert await self.environment.snapshot(handle, TIMEOUT_S) != start
        await self._timed("no change", self._call(handle, "cat changed"))
        back = await self._timed("restore", self.environment.restore(handle, start, TIMEOUT_S))
        assert await self.environment.snapshot(back, TIMEOUT_S) == start
        return back

    async def _call(self, handle: Handle, code: str) -> None:
        action = Action(ActionId(EPISODE, self._steps, 0), "shell", json.dumps({"code": code}))
        self._steps += 1
        receipt = await self.environment.execute(handle, action, LEASE, TIMEOUT_S)
        assert receipt.status is ExecutionStatus.OK, receipt.output

    async def _timed(self, name: str, work: Awaitable[T]) -> T:
        start_s = time.perf_counter()
        result = await work
        self.times_s[name].append(time.perf_counter() - start_s)
        return result


def make_base(folder: Path, num_files: int, size_bytes: int) -> None:
    """Files of random bytes, a hundred to a folder."""
    data = np.random.default_rng(7)
    for number in range(num_files):
        place = folder / f"{number // 100:03d}" / f"{number % 100:02d}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data.bytes(size_bytes))


async def measure(num_files: int, size_bytes: int, repeats: int) -> dict[str, dict[str, float]]:
    """Medians in seconds by way and operation."""
    with tempfile.TemporaryDirectory() as base:
        make_base(Path(base), num_files, size_bytes)
        subjects: dict[str, Subject] = {}
        handles: dict[str, Handle] = {}
        try:
            for way in WAYS:
                options = WorkspaceOptions(tools=("shell",), programs=("sh", "cat"), base=base, by=way, wall_s=60.0)
                subjects[way] = Subject(WorkspaceEnvironment(options))
                await subjects[way].environment.start()
                handles[way] = await subjects[way].environment.open(TASK, EPISODE, LEASE, TIMEOUT_S)
            for _ in range(repeats):
                for way, subject in subjects.items():
                    handles[way] = await subject.round(handles[way])
        finally:
            for subject in subjects.values():
                await subject.environment.stop()
        return {
            way: {name: statistics.median(times_s) for name, times_s in subject.times_s.items()}
            for way, subject in subjects.items()
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    repeats: int = parser.parse_args().repeats
    print("| base | way | call, one file changed | call, nothing changed | restore |\n|---|---|---|---|---|")
    for num_files, size_bytes in SIZES:
        found = asyncio.run(measure(num_files, size_bytes, repeats))
        for way, medians_s in found.items():
            cells = " | ".join(f"{1e3 * median_s:.1f} ms" for median_s in medians_s.values())
            print(f"| {num_files * size_bytes / 1e6:.0f} MB, {num_files:,} files | {way} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
