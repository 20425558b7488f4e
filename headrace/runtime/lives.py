"""Takes a simulated run through its faults: process after process on the same disk, until one of them reaches the end.

A process that is killed, stopped, or fails because of a fault is followed by another one, as whoever watches over a run
would start it. A process that fails although no fault has touched it is not: that is a finding.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from headrace.control.context import Ports
from headrace.control.recorder import Observer
from headrace.errors import HeadraceError
from headrace.records.events import Event
from headrace.records.ids import ActionId
from headrace.records.run import RunEnded
from headrace.runtime.mortal import MortalStorage, interpose
from headrace.runtime.simulated import SimulatedDisk, Simulation, simulate
from headrace.simulation.faults import ControlProcess, FaultInjector, FaultPlan, ProcessKilled
from headrace.simulation.loop import StuckLoop

MOST_LIVES = 12
"""Processes that a run may take; each fault ends at most one."""
FINISHED = ("completed", "exhausted")
"""How a run ends that is over."""
MOST_LIFE_S = 100_000.0
"""Virtual seconds of one process, after which it is taken to be stuck."""


@dataclasses.dataclass(frozen=True)
class Life:
    """One process of a run.

    Attributes:
        ended: `completed`, `exhausted`, `killed`, `stopped`, `failed: …` or `stuck: …`.
        fired: faults that fired in it.
    """

    ended: str
    fired: int


@dataclasses.dataclass(frozen=True)
class Endured:
    """A run with all its processes.

    Attributes:
        lives: in order.
        disk: what the last one left behind.
        injector: which faults fired, and how often everything was called.
    """

    lives: tuple[Life, ...]
    disk: SimulatedDisk
    injector: FaultInjector

    @property
    def events(self) -> list[Event]:
        """The durable log."""
        return list(self.disk.storage.events(0))

    @property
    def effects(self) -> Counter[ActionId]:
        """How often each action was really run, over all processes."""
        return self.disk.effects

    @property
    def ended(self) -> str:
        """How the last process ended."""
        return self.lives[-1].ended


def endure(
    simulation: Simulation,
    plan: FaultPlan,
    *,
    disk: SimulatedDisk | None = None,
    between: Callable[[int, SimulatedDisk], SimulatedDisk] = lambda number, disk: disk,
    later: Callable[[int, Simulation], Simulation] = lambda number, simulation: simulation,
    observers: Sequence[Observer] = (),
) -> Endured:
    """The run through all its processes.

    Args:
        simulation: what the first process runs; laws are for whoever judges the whole log.
        plan: faults, which count calls over all processes.
        disk: where it begins; a fresh one by default.
        between: called before process `number` >= 2 with the disk, for what happens to it while nobody runs; returns the
            disk that this process finds.
        later: what process `number` >= 2 runs.
        observers: called with every new event of every process.

    Raises:
        BaseException: a defect that is no failure of a run, such as an assertion.
    """
    injector = FaultInjector(plan)
    disk = SimulatedDisk() if disk is None else disk
    lives: list[Life] = []
    while len(lives) < MOST_LIVES:
        if lives:
            disk = between(len(lives) + 1, disk)
        run = simulation if not lives else later(len(lives) + 1, simulation)
        before = len(injector.fired)
        ended = _live(run, injector, disk, observers)
        lives.append(Life(ended, len(injector.fired) - before))
        # A stuck process is a finding, and so is one that fails although it met no fault.
        is_over = _has_ended(disk) or ended.startswith("stuck")
        if is_over or (ended.startswith("failed") and lives[-1].fired == 0):
            break
    return Endured(tuple(lives), disk, injector)


def _has_ended(disk: SimulatedDisk) -> bool:
    """Whether the journal says that the run is over, whatever became of the process that wrote it."""
    ends = [event.payload.reason for event in disk.storage.events(0) if isinstance(event.payload, RunEnded)]
    return bool(ends) and ends[-1] in FINISHED


def _live(simulation: Simulation, injector: FaultInjector, disk: SimulatedDisk, observers: Sequence[Observer]) -> str:
    """How a process on the disk ended."""
    injector.process = ControlProcess()
    mortal = dataclasses.replace(disk, storage=MortalStorage(disk.storage, injector))
    gone: list[asyncio.Future[str]] = []

    def lose(worker: str) -> None:
        if not gone[0].done():
            gone[0].set_result(worker)

    def adapt(ports: Ports) -> Ports:
        injector.process.main = asyncio.current_task()
        gone.append(asyncio.get_running_loop().create_future())
        return interpose(simulation.adapt(ports), injector, lose)

    def watch() -> Sequence[Awaitable[str]]:
        return [*simulation.watch(), *gone]

    run = dataclasses.replace(simulation, adapt=adapt, watch=watch, is_checked=False)
    try:
        return simulate(run, observers, disk=mortal, max_time_s=MOST_LIFE_S).summary.reason
    except ProcessKilled:
        return "killed"
    except BaseException as error:
        # What a dead process runs into while it unwinds is of no account.
        return "killed" if injector.process.is_dead else _reason(error)


def _reason(error: BaseException) -> str:
    match error:
        case asyncio.CancelledError():
            return "stopped"
        case StuckLoop():
            return f"stuck: {type(error).__name__}: {error}"
        case HeadraceError():
            return f"failed: {type(error).__name__}: {error}"
        case _:
            raise error
