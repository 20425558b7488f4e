"""A simulated run whose every await on a disk or a network port lies behind one fault plan.

Invariant: once its process is dead, nothing that a run asks for happens, and its journal takes nothing more.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from headrace.control.context import Ports
from headrace.errors import Outcome, StoreError
from headrace.records.events import Event, kind_of
from headrace.records.ids import Address
from headrace.simulation.faults import ENDINGS, Fault, FaultInjector, FaultKind
from headrace.simulation.faulty import FaultyEnvironment, FaultyGrader, FaultyInference, FaultyTasks, FaultyTrainer
from headrace.store.group_commit import Entry, Storage, Tail

JOURNAL = "journal"
"""Name of the journal in fault plans."""


class MortalStorage:
    """The journal's storage behind a fault plan. Its methods there are `commit` and the kinds of events.

    A fault on `commit` acts on the transaction as a whole: `kill` before it, `kill_after` once it is on disk and before
    anybody knows, `reject` as a full disk does, `lose` as a disk that wrote and then reported a failure. `kill` and
    `kill_after` on a kind of event end the process so that the journal stops just before, or just after, that event: any
    such prefix is a state that a crash can leave, since a commit may hold as little as one event.

    Args:
        storage: what is on disk.
        injector: decides.
    """

    def __init__(self, storage: Storage, injector: FaultInjector) -> None:
        self._storage = storage
        self._injector = injector
        self._process = injector.process

    def claim(self) -> Tail:
        return self._storage.claim()

    def commit(self, epoch: int, entries: Sequence[Entry]) -> None:
        if self._process.is_dead:
            raise StoreError("the process that writes is dead", Outcome.REJECTED)
        fault = self._injector.take(JOURNAL, "commit")
        kind = None if fault is None else fault.kind
        if kind is FaultKind.STOP:
            self._process.stop()
        elif kind is FaultKind.KILL:
            self._process.kill()
        elif kind is FaultKind.REJECT:
            raise StoreError(f"events from {entries[0].event.seq} on: no space left on device", Outcome.REJECTED)
        self._cut(epoch, entries)
        self._storage.commit(epoch, entries)
        if kind is FaultKind.KILL_AFTER:
            self._process.kill()
        elif kind is FaultKind.LOSE:
            raise StoreError(f"events from {entries[0].event.seq} on: the disk reported an error after it had written")

    def _cut(self, epoch: int, entries: Sequence[Entry]) -> None:
        """Ends the process at the first event that a fault names, with the journal cut there."""
        for index, entry in enumerate(entries):
            fault = self._injector.take(JOURNAL, kind_of(entry.event.payload), ENDINGS)
            if fault is None:
                continue
            if fault.kind is FaultKind.STOP:
                self._process.stop()
                continue
            kept = entries[: index + (fault.kind is FaultKind.KILL_AFTER)]
            if kept:
                self._storage.commit(epoch, kept)
            self._process.kill()

    def read(self, address: Address) -> bytes:
        return self._storage.read(address)

    def events(self, after: int) -> Iterator[Event]:
        return self._storage.events(after)

    def close(self) -> None:
        """Leaves the storage open: it outlives the process."""


def interpose(ports: Ports, injector: FaultInjector, lose: Callable[[str], None] = lambda worker: None) -> Ports:
    """The ports, each behind the plan.

    Args:
        ports: what the run acts through.
        injector: decides.
        lose: told when the engine crashes, which ends a run as the death of a child process does.
    """
    crash: Callable[[], None] | None = getattr(ports.inference, "crash", None)

    def crash_engine() -> None:
        if crash is not None:
            crash()
        lose("engine")

    return dataclasses.replace(
        ports,
        tasks=FaultyTasks(ports.tasks, injector),
        inference=FaultyInference(ports.inference, injector, crash=crash_engine),
        environment=FaultyEnvironment(ports.environment, injector),
        grader=FaultyGrader(ports.grader, injector),
        trainer=FaultyTrainer(ports.trainer, injector),
    )


def kill_points(calls: dict[tuple[str, str], int]) -> list[tuple[Fault, Fault]]:
    """Every instant at which a run can be killed: (before, after) each call that it makes, from a count of its calls.

    A random choice of one of them is a crash; of two, a crash and another one during or after the recovery.
    """
    return [
        (
            Fault(worker=worker, method=method, kind=FaultKind.KILL, call=call),
            Fault(worker=worker, method=method, kind=FaultKind.KILL_AFTER, call=call),
        )
        for (worker, method), count in sorted(calls.items())
        for call in range(1, count + 1)
    ]
