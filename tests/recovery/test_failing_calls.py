"""A whole run on a disk of which any one call fails, or all from one on: it stops, and the next process ends it lawfully.

Orchestrator and SQLite are the real ones, the workers are simulated. `HEADRACE_CALL_STEP=1` fails every call in turn.
"""

import dataclasses
import os
import random
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from recovery.crashes import MortalStorage, broken_laws
from recovery.test_simulated_crashes import check, small

from headrace.errors import ConfigError, StoreError
from headrace.records.events import Event
from headrace.runtime.simulated import SimulatedDisk, Simulation, simulate
from headrace.simulation.weights import WeightShelf
from headrace.store.faulty import Act, DiskLog, FaultyDisk, FaultyVFS, Leaves, write_image
from headrace.store.sqlite import SqliteStorage

STEP = int(os.environ.get("HEADRACE_CALL_STEP", "0"))
SIMULATION = small("sync", run={"updates": 1}, checkpoint={"every_updates": 1})


@dataclasses.dataclass
class Machine:
    """A folder on a disk with faults, and what lives elsewhere.

    Attributes:
        folder: of the run.
        log: says which call fails.
        acknowledged: the last event that anybody was told of.
    """

    folder: Path
    log: DiskLog
    shelf: WeightShelf = dataclasses.field(default_factory=WeightShelf)
    acknowledged: int = 0

    def storage(self) -> SqliteStorage:
        return SqliteStorage(self.folder, "failing", FaultyDisk(self.log))

    def live(self, simulation: Simulation = SIMULATION) -> str:
        """How a process ended: `completed`, or what the disk did to it."""
        storage = counting = None
        try:
            storage = self.storage()
            counting = MortalStorage(storage)
            return simulate(simulation, disk=SimulatedDisk(counting, self.shelf)).summary.reason
        except (StoreError, ConfigError) as error:
            return str(error)
        finally:
            if counting is not None and counting.ends:
                self.acknowledged = max(self.acknowledged, counting.ends[-1])
            if storage is not None:
                storage.close()

    def events(self) -> list[Event]:
        storage = self.storage()
        found = list(storage.events(0))
        storage.close()
        return found


@pytest.fixture
def vfs() -> Iterator[FaultyVFS]:
    found = FaultyVFS("failing", DiskLog())
    yield found
    found.unregister()


def machine_of(folder: Path, vfs: FaultyVFS) -> Machine:
    vfs.log = DiskLog()
    return Machine(folder / "run", vfs.log)


def count_calls(folder: Path, vfs: FaultyVFS) -> int:
    """Calls of an undisturbed run."""
    whole = machine_of(folder, vfs)
    assert (reason := whole.live()) == "completed", reason
    return whole.log.calls


def end_lawfully(machine: Machine, what: str) -> None:
    """A process on the mended disk completes the run, and nothing that was acknowledged is gone."""
    before = machine.acknowledged
    reason = machine.live()
    found = machine.events()
    assert [event.seq for event in found] == list(range(1, len(found) + 1)), what
    assert len(found) >= before, what
    storage = machine.storage()
    disk = SimulatedDisk(storage, machine.shelf)
    if reason == "completed":
        check(SIMULATION.config, disk, what)
    else:
        assert "has finished 1 updates" in reason, what
        assert broken_laws(SIMULATION.config, disk) == []
    storage.close()


def points(calls: int, step: int) -> range:
    return range(1, calls + 1, STEP or step)


def test_any_one_failing_call_stops_the_run_or_passes_and_the_next_process_ends_it(
    tmp_path: Path, vfs: FaultyVFS
) -> None:
    stopped = 0
    for call in points(count_calls(tmp_path / "whole", vfs), 19):
        machine = machine_of(tmp_path / str(call), vfs)
        machine.log.fail(call)
        stopped += machine.live() != "completed"
        machine.log.mend()
        end_lawfully(machine, f"call {call} failed")
    assert stopped > 5


@pytest.mark.parametrize("act", [Act.WRITE, Act.SYNC])
def test_on_a_disk_that_is_full_or_syncs_no_more_nothing_unsynced_is_acknowledged(
    tmp_path: Path, vfs: FaultyVFS, act: Act
) -> None:
    """After space is back the laws hold. Whatever the disk forgot, nobody had been told of."""
    vfs.error = (lambda: apsw.FullError("disk is full")) if act is Act.WRITE else vfs.error
    whole = machine_of(tmp_path / "whole", vfs)
    whole.live()
    calls = sum(item.act is act for item in whole.log.operations)
    stopped = 0
    for call in points(calls, 7 if act is Act.SYNC else 23):
        machine = machine_of(tmp_path / str(call), vfs)
        machine.log.fail(call, act, is_broken=True)
        reason = machine.live()
        stopped += reason != "completed"
        machine.log.mend()
        cut = machine.log.crashed(len(machine.log.operations), Leaves.NOTHING, random.Random(call))
        write_image(cut, machine.folder, tmp_path / f"cut-{call}")
        survivor = Machine(tmp_path / f"cut-{call}", vfs.log)
        assert len(survivor.events()) >= machine.acknowledged, f"{act} {call} failed: {reason}"
        end_lawfully(machine, f"{act} {call} and all after it failed")
    assert stopped > 5


def test_a_full_disk_says_what_is_not_on_it_and_takes_no_event_more(tmp_path: Path, vfs: FaultyVFS) -> None:
    vfs.error = lambda: apsw.FullError("disk is full")
    machine = machine_of(tmp_path, vfs)
    machine.log.fail(150, Act.WRITE, is_broken=True)
    reason = machine.live()
    assert "may not be on disk: FullError" in reason
    assert "refused" in reason, "the event that says why the run ended is refused like any other"
