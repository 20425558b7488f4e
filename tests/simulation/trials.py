"""One fault row as data, and its trial: inject, let the next process recover, hand the whole log to whoever asserts."""

import contextlib
import dataclasses
import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from control.simulated_runs import scenario

from headrace.checkers import (
    Violation,
    bounds_of,
    check_effects,
    check_liveness,
    check_log,
    check_resumed,
    state_hashes,
)
from headrace.config import decode_config
from headrace.control.context import Ports
from headrace.errors import StoreError
from headrace.planning.explorer.judging import manifests_of
from headrace.ports import Environment
from headrace.records.action import EffectClass
from headrace.records.batch import BatchPlan, BatchPlanned
from headrace.records.events import Event
from headrace.records.trajectory import Transcript
from headrace.runtime.lives import Endured, endure
from headrace.runtime.simulated import SimulatedDisk, Simulation, simulate
from headrace.simulation.faults import Fault, FaultKind, FaultPlan
from headrace.simulation.laws import Constant
from headrace.store.faulty import DiskLog, FaultyDisk, FaultyVFS, Leaves, write_image
from headrace.store.sqlite import SqliteStorage

BOUND_S = 600.0
"""Virtual seconds in which every task of these runs ends once the last process began."""
FAILURES = ("malformed", "tool_error", "open_failure", "tool_failure", "grade_failure", "grade_invalid")
SCHEDULES: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync"},
    "async": {"mode": "separate_async", "credit_batches": 1, "order": "ordinal"},
    "two ahead": {"mode": "separate_async", "credit_batches": 2, "order": "ordinal"},
}
P = TypeVar("P")


@dataclasses.dataclass(frozen=True)
class World:
    """The run of a row.

    Attributes:
        schedule: name of its mode.
        effect: what its actions do to the world.
        updates: policy updates.
        workload: changes of the faultless workload.
        sections: changes of the configuration, by section.
        adapt: replaces ports.
        options: further fields of `Simulation`.
    """

    schedule: str = "sync"
    effect: EffectClass = EffectClass.PURE
    updates: int = 2
    workload: dict[str, Any] = dataclasses.field(default_factory=dict)
    sections: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    adapt: Callable[[Ports], Ports] = lambda ports: ports
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def simulation(self) -> Simulation:
        tree: dict[str, Any] = {
            "run": {"seed": 7, "updates": self.updates, "deterministic": True},
            "schedule": {"group_size": 2, "batch_groups": 2, **SCHEDULES[self.schedule]},
            "evaluation": {"every_updates": 0},
            "checkpoint": {"every_updates": 1},
        }
        for name, section in self.sections.items():
            tree[name] = {**tree.get(name, {}), **section}
        base = scenario(**{**dict.fromkeys(FAILURES, 0.0), **self.workload})
        trainer = msgspec.structs.replace(base.trainer, save_s=0.5)
        return Simulation(
            decode_config(tree, "fault row"),
            msgspec.structs.replace(base, trainer=trainer),
            effect=self.effect,
            adapt=self.adapt,
            **self.options,
        )


LONG_TURNS = World(schedule="async", updates=3, workload={"tokens": Constant(value=300.0)})
"""Turns in the middle of which new weights land."""


@dataclasses.dataclass
class Trial:
    """What a trial gave.

    Attributes:
        row: which.
        endured: the run with all its processes.
        events: the durable log.
        environments: the executor of each process, in order.
        notes: what the row's own hooks saw.
        violations: laws that do not hold.
    """

    row: "Row"
    endured: Endured
    events: list[Event]
    environments: list[Environment]
    notes: dict[str, Any]
    violations: list[Violation]

    def of(self, kind: type[P], epoch: int | None = None) -> list[P]:
        """Payloads of a kind, of one process or of all."""
        return [event.payload for event in self.at(kind, epoch)]  # type: ignore[misc]

    def at(self, kind: type, epoch: int | None = None) -> list[Event]:
        """Events of a kind."""
        return [e for e in self.events if isinstance(e.payload, kind) and epoch in (None, e.epoch)]

    def keys(self, kind: type, epoch: int | None = None) -> list[str]:
        return [event.key for event in self.at(kind, epoch)]

    def undisturbed(self, kind: type) -> list[Event]:
        """Events of a kind in the same run without its faults."""
        return [event for event in self.whole.events if isinstance(event.payload, kind)]

    def times(self, kind: type) -> Counter[str]:
        """How often each key has an event of the kind."""
        return Counter(self.keys(kind))

    def assert_once(self, *kinds: type) -> None:
        """Every key that has an event of such a kind has exactly one, and there are some."""
        for kind in kinds:
            assert set(self.times(kind).values()) == {1}, f"{kind.__name__}: {self.times(kind)}"

    def read(self, address: Any, kind: type[P]) -> P:
        return msgspec.msgpack.decode(self.endured.disk.storage.read(address), type=kind)

    def plans(self) -> list[BatchPlan]:
        return [self.read(planned.plan, BatchPlan) for planned in self.of(BatchPlanned)]

    def transcripts(self) -> Iterator[Transcript]:
        from headrace.records.trajectory import TranscriptSealed

        for sealed in self.of(TranscriptSealed):
            yield self.read(sealed.transcript, Transcript)

    @functools.cached_property
    def whole(self) -> Endured:
        """The same run without its faults."""
        return endure(dataclasses.replace(self.row.world.simulation(), shuffle_seed=None), FaultPlan())


Must = Callable[[Trial], None]


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the fault model, or one form of it.

    Attributes:
        id: which line.
        fault: what is injected, and where.
        holds: what has to hold besides every law.
        plans: faults; each is a trial of its own.
        must: assertions on each trial.
        world: the run.
        sometimes: assertions of which each has to pass on at least one of the trials.
        is_same: whether every version has the state that it has in the undisturbed run (C11).
        lives: how each process ends; the last one reaches the end.
        between: what happens to the disk before process n >= 2.
        later: what process n >= 2 runs.
        run: another way to run a trial.
        unharm: mends what `between` damaged, so that the log can be judged whole.
    """

    id: str
    fault: str
    holds: str
    plans: Sequence[tuple[Fault, ...]]
    must: Sequence[Must] = ()
    world: World = World()
    sometimes: Sequence[Must] = ()
    is_same: bool = False
    lives: tuple[str, ...] = ()
    between: Callable[[int, SimulatedDisk, dict[str, Any]], SimulatedDisk] = lambda number, disk, notes: disk
    later: Callable[[int, Simulation], Simulation] = lambda number, simulation: simulation
    run: "Callable[[Row, tuple[Fault, ...], Path], Trial] | None" = None
    unharm: Callable[[SimulatedDisk, dict[str, Any]], None] = lambda disk, notes: None

    @property
    def name(self) -> str:
        return f"{self.id} {self.fault}"


killed = functools.partial(Row, lives=("killed", "completed"))
"""A row whose process dies, and whose next one completes."""
replayed = functools.partial(killed, is_same=True)
"""The same, and the next one comes to the states of the undisturbed run."""
survived = functools.partial(Row, lives=("completed",))
"""A row whose process lives through it, and completes."""


def try_row(row: Row, folder: Path) -> list[Trial]:
    """Runs every trial of the row and asserts everything that it has to keep."""
    trials: list[Trial] = []
    for number, plan in enumerate(row.plans):
        trial = (row.run or run_lives)(row, plan, folder / str(number))
        what = f"{row.name}\nplan {plan}\nlives {trial.endured.lives}"
        assert trial.violations == [], f"{what}\n" + "\n".join(map(str, trial.violations))
        struck = Counter(firing.fault for firing in trial.endured.injector.fired)
        assert all(struck[fault] >= 1 for fault in plan), f"{what}\nsome fault never struck"
        if row.lives:
            ended = [life.ended for life in trial.endured.lives]
            fits = len(ended) == len(row.lives) and all(e.startswith(w) for e, w in zip(ended, row.lives, strict=True))
            assert fits, f"{what}\nexpected {row.lives}"
        for must in row.must:
            must(trial)
        trials.append(trial)
    for must in row.sometimes:
        assert any(_passes(must, trial) for trial in trials), f"{row.name}: {must.__name__} never held"
    return trials


def _passes(must: Must, trial: Trial) -> bool:
    try:
        must(trial)
    except AssertionError:
        return False
    return True


def run_lives(row: Row, plan: tuple[Fault, ...], folder: Path, disk: SimulatedDisk | None = None) -> Trial:
    """Process after process on a simulated disk."""
    del folder
    disk, broken, notes = SimulatedDisk() if disk is None else disk, list[Violation](), dict[str, Any]()
    environments: list[Environment] = []
    manifests, simulation = manifests_of(disk), row.world.simulation()

    def adapt(ports: Ports) -> Ports:
        adapted = row.world.adapt(ports)
        environments.append(adapted.environment)
        return adapted

    def between(number: int, found: SimulatedDisk) -> SimulatedDisk:
        notes[f"effects before {number}"] = Counter(found.effects)
        notes[f"events before {number}"] = list(found.storage.events(0))
        return row.between(number, found, notes)

    endured = endure(
        dataclasses.replace(simulation, adapt=adapt),
        FaultPlan(faults=plan),
        disk=disk,
        between=between,
        later=row.later,
        observers=[lambda event: broken.extend(manifests.observe(event))],
    )
    row.unharm(endured.disk, notes)
    return judged(row, endured, environments, notes, broken)


def judged(
    row: Row, endured: Endured, environments: list[Environment], notes: dict[str, Any], broken: list[Violation]
) -> Trial:
    """The trial with what its log breaks; a row that states how its processes end may end otherwise than complete."""
    events = endured.events
    found = [*broken, *check_log(events, bounds_of(row.world.simulation().config), endured.disk.storage.read)]
    if not (row.lives and row.lives[-1].startswith("failed")):
        last = [event.epoch for event in events][-1]
        quiet_ns = next(event.t_ns for event in events if event.epoch == last)
        found += check_liveness(events, bound_s=BOUND_S, quiet_from_ns=quiet_ns)
    if row.world.effect is EffectClass.EXTERNAL:
        found += check_effects(endured.effects)
    trial = Trial(row, endured, events, environments, notes, found)
    if row.is_same:
        whole = trial.whole
        states = state_hashes(whole.events, whole.disk.storage.read)
        found += check_resumed(events, endured.disk.storage.read, states)
    return trial


# --- faults in short


def at(worker: str, method: str, kind: str, *calls: int, **options: Any) -> list[tuple[Fault, ...]]:
    """A plan of one fault for each of the calls."""
    return [(fault(worker, method, kind, call, **options),) for call in calls]


def cut(kind: str, *calls: int, sides: tuple[str, ...] = ("kill_after",)) -> list[tuple[Fault, ...]]:
    """Plans that end the process with the journal cut just after the n-th event of a kind, or just before it."""
    return [plan for side in sides for plan in at("journal", kind, side, *calls)]


def fault(worker: str, method: str, kind: str, call: int = 1, **options: Any) -> Fault:
    """One fault of a plan that has several."""
    return Fault(worker=worker, method=method, kind=FaultKind(kind), call=call, **options)


BOTH = ("kill", "kill_after")
NO_FAULT: list[tuple[Fault, ...]] = [()]
"""One trial without an injected fault: the row's world, or the way that it runs, is the fault."""


# --- a run on a real SQLite journal whose disk loses, tears or refuses


@contextlib.contextmanager
def _disk_log() -> Iterator[DiskLog]:
    """What SQLite does to the disk from here on, and which of it fails."""
    log = DiskLog()
    vfs = FaultyVFS("row", log)
    try:
        yield log
    finally:
        vfs.unregister()


def sqlite_cuts(leaves: Leaves, number: int) -> Callable[[Row, tuple[Fault, ...], Path], Trial]:
    """A trial whose power is cut at an operation of the disk; the next process finds what the cut left.

    Args:
        leaves: what becomes of unsynced bytes.
        number: which of eight operations, spread over the run.
    """

    def run(row: Row, plan: tuple[Fault, ...], folder: Path) -> Trial:
        with _disk_log() as log:
            storage = SqliteStorage(folder / "first", "row", FaultyDisk(log))
            disk = SimulatedDisk(storage=storage)
            simulate(row.world.simulation(), disk=disk)
            storage.close()
        operations = len(log.operations)
        count = operations * (2 * number + 1) // 16
        write_image(log.crashed(count, leaves, random.Random(number)), folder / "first", folder / "cut")
        survivor = SqliteStorage(folder / "cut")
        before = list(survivor.events(0))
        trial = run_lives(row, plan, folder, SimulatedDisk(storage=survivor, shelf=disk.shelf))
        trial.notes["before the cut"] = before
        return trial

    return run


def sqlite_fails(call: int) -> Callable[[Row, tuple[Fault, ...], Path], Trial]:
    """A trial whose n-th call to the disk fails; afterwards the disk is sound."""

    def run(row: Row, plan: tuple[Fault, ...], folder: Path) -> Trial:
        shelf = SimulatedDisk().shelf
        with _disk_log() as log:
            log.fail(call)
            try:
                storage = SqliteStorage(folder / "run", "row", FaultyDisk(log))
            except StoreError:
                pass  # The journal says that it cannot be opened, and the process does not begin.
            else:
                first = endure(row.world.simulation(), FaultPlan(), disk=SimulatedDisk(storage=storage, shelf=shelf))
                storage.close()
                (ended,) = [life.ended for life in first.lives]
                # The committer passes on what is no StoreError as one that begins so: a defect, not a failed disk.
                assert ended == "completed" or ended.startswith("failed: StoreError: "), ended
                assert not ended.startswith("failed: StoreError: commit failed"), ended
            assert log.calls >= call, f"the run made {log.calls} calls; the one that was to fail never came"
        survivor = SqliteStorage(folder / "run")
        return run_lives(row, plan, folder, SimulatedDisk(storage=survivor, shelf=shelf))

    return run
