"""Processes that die at a chosen commit of their journal, and others that go on where the disk says."""

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.checkers import bounds_of, check_log
from headrace.config import Config, decode_config
from headrace.errors import StoreError
from headrace.records.batch import BatchPlan, BatchPlanned
from headrace.records.events import Event
from headrace.records.ids import Address
from headrace.records.update import WeightsCommitted
from headrace.runtime.simulated import SimulatedDisk, Simulation, SimulationResult, simulate
from headrace.store.group_commit import Entry, Storage, Tail
from headrace.store.memory import MemoryStorage

DEAD = "the process is dead"


class MortalStorage:
    """A storage whose writer dies at its n-th commit, counted from 1, which is lost; 0 never dies.

    Attributes:
        ends: the last event of each commit that reached the disk.
    """

    def __init__(self, storage: MemoryStorage, dies_at: int = 0) -> None:
        self.storage = storage
        self.ends: list[int] = []
        self._dies_at = dies_at

    def claim(self) -> Tail:
        return self.storage.claim()

    def commit(self, epoch: int, entries: Sequence[Entry]) -> None:
        if self._dies_at and self.commits + 1 >= self._dies_at:
            raise StoreError(DEAD)
        self.storage.commit(epoch, entries)
        self.ends.append(entries[-1].event.seq)

    @property
    def commits(self) -> int:
        return len(self.ends)

    def read(self, address: Address) -> bytes:
        return self.storage.read(address)

    def events(self, after: int):
        return self.storage.events(after)

    def close(self) -> None:
        self.storage.close()


def run_until(simulation: Simulation, disk: SimulatedDisk, dies_at: int) -> SimulationResult | None:
    """The result, or None when the process died at its commit `dies_at`."""
    assert isinstance(disk.storage, MemoryStorage)
    mortal = SimulatedDisk(MortalStorage(disk.storage, dies_at), disk.shelf)
    try:
        return simulate(simulation, disk=mortal)
    except StoreError as error:
        assert DEAD in str(error)
        return None


def count_commits(simulation: Simulation) -> int:
    """Commits of an undisturbed run."""
    storage = MortalStorage(MemoryStorage())
    simulate(simulation, disk=SimulatedDisk(storage))
    return storage.commits


def all_events(disk: SimulatedDisk) -> list[Event]:
    return list(disk.storage.events(0))


def broken_laws(config: Config, disk: SimulatedDisk) -> list[str]:
    return broken_laws_of(config, disk.storage)


def broken_laws_of(config: Config, storage: Storage) -> list[str]:
    return [str(item) for item in check_log(storage.events(0), bounds_of(config), storage.read)]


def weights(events: Sequence[Event]) -> list[str]:
    """Address of every committed version, from 0."""
    return [event.payload.weights for event in events if isinstance(event.payload, WeightsCommitted)]


def consumed(events: Sequence[Event], read: Any) -> list[str]:
    """Addresses of all transcripts that were trained on, in order."""
    plans = [event.payload.plan for event in events if isinstance(event.payload, BatchPlanned)]
    return [row.transcript for plan in plans for row in msgspec.msgpack.decode(read(plan), type=BatchPlan).rows]


def config(schedule: dict[str, Any], **sections: dict[str, Any]) -> Config:
    """A small run with checkpoints and held-out rounds."""
    tree: dict[str, Any] = {
        "run": {"seed": 7, "updates": 4, "deterministic": True},
        "schedule": {"group_size": 3, "batch_groups": 3, **schedule},
        "evaluation": {"every_updates": 2, "temperatures": [1.0, 0.5]},
        "checkpoint": {"every_updates": 2},
    }
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section}
    return decode_config(tree, "test")
