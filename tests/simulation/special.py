"""Worlds and trials that need more than a plan of faults: two processes at once, two engines, a grader that babbles."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from simulation.trials import Row, Trial, judged

from headrace.control.context import Ports
from headrace.errors import EnvironmentFault, HeadraceError
from headrace.ports import Handle, TurnTiming
from headrace.records.action import Action
from headrace.records.batch import GroupClosed
from headrace.records.execution import Lease, Receipt
from headrace.records.ids import Address, PolicyRef
from headrace.records.segment import GenerateRequest, TokenSegment
from headrace.records.trajectory import TranscriptSealed
from headrace.records.update import Activation
from headrace.records.verdict import Scored, Submission, Verdict
from headrace.runtime.lives import Endured, Life
from headrace.runtime.simulated import SimulatedDisk, run_simulated
from headrace.simulation.environment import SimulatedEnvironment
from headrace.simulation.faults import Fault, FaultInjector, FaultPlan
from headrace.simulation.inference import SimulatedInference
from headrace.simulation.loop import run_virtual
from headrace.simulation.workload import Draws
from headrace.store.memory import MemoryStorage

SERVED: dict[str, list[int]] = {}
"""Versions that the engines of `two_engines` served, by request."""

# --- a grader that answers with what is no score


def babbling(value: Any, every: int = 3) -> Callable[[Ports], Ports]:
    """Every third verdict has a value that is none, whatever the type says."""

    def adapt(ports: Ports) -> Ports:
        grader, count = ports.grader, 0
        grade = grader.grade

        async def babble(submissions: Sequence[Submission], timeout_s: float) -> list[Verdict]:
            nonlocal count
            count += 1
            answers = await grade(submissions, timeout_s)
            if count % every:
                return answers
            return [msgspec.structs.replace(a, outcome=Scored((("solved", value),), "")) for a in answers]

        grader.grade = babble  # type: ignore[method-assign]
        return ports

    return adapt


# --- two engines, the second of which takes longer to change


class TwoEngines:
    """`Inference` over two workers; a group stays with one. The second activates later than anybody believes."""

    def __init__(self, engines: Sequence[SimulatedInference], late_s: float, served: dict[str, list[int]]) -> None:
        self._engines = engines
        self._late_s = late_s
        self._served = served
        self._tasks: list[asyncio.Task[None]] = []

    def _of(self, affinity: str) -> SimulatedInference:
        return self._engines[int(affinity.rpartition(".")[2]) % 2]

    async def generate(self, request: GenerateRequest, timeout_s: float) -> AsyncIterator[TokenSegment | TurnTiming]:
        engine, versions = self._of(request.affinity), list[int]()
        began = engine.version
        async for item in engine.generate(request, timeout_s):
            if isinstance(item, TokenSegment) and item.policy is not None:
                versions.append(item.policy.version)
            yield item
        # What the worker itself served, first and last; a test that trusted the tags would compare them with themselves.
        assert began is not None
        assert engine.version is not None
        assert versions[0] >= began
        assert versions[-1] <= engine.version
        self._served[request.request_id] = versions

    async def interrupt(self, request_ids: Sequence[str], timeout_s: float) -> None:
        for engine in self._engines:
            await engine.interrupt(request_ids, timeout_s)

    async def stage(self, policy: PolicyRef, weights: Address, timeout_s: float) -> None:
        for engine in self._engines:
            await engine.stage(policy, weights, timeout_s)

    async def activate(self, policy: PolicyRef, keep: frozenset[int], timeout_s: float) -> Activation:
        found = await self._engines[0].activate(policy, keep, timeout_s)
        if policy.version == 0:
            await self._engines[1].activate(policy, keep, timeout_s)
        else:
            self._tasks.append(asyncio.create_task(self._later(policy, keep, timeout_s), name=f"late {policy}"))
        return found

    async def _later(self, policy: PolicyRef, keep: frozenset[int], timeout_s: float) -> None:
        await asyncio.sleep(self._late_s)
        await self._engines[1].activate(policy, keep, timeout_s)

    async def score(self, ids: Any, version: int, timeout_s: float) -> Any:
        return await self._engines[0].score(ids, version, timeout_s)


def two_engines(late_s: float) -> Callable[[Ports], Ports]:
    def adapt(ports: Ports) -> Ports:
        first = ports.inference
        assert isinstance(first, SimulatedInference)
        second = first.twin("engine 2")
        return dataclasses.replace(ports, inference=TwoEngines([first, second], late_s, SERVED))

    return adapt


# --- two processes at once


class Outside(SimulatedEnvironment):
    """One executor for both processes; it notes whom it refused."""

    def __init__(self, draws: Draws, **options: Any) -> None:
        super().__init__(draws, **options)
        self.refused: list[int] = []

    async def execute(self, handle: Handle, action: Action, lease: Lease, timeout_s: float) -> Receipt:
        try:
            return await super().execute(handle, action, lease, timeout_s)
        except EnvironmentFault as fault:
            if "fenced" in str(fault):
                self.refused.append(lease.token)
            raise


@dataclasses.dataclass
class Pause:
    """A process that stands still from `begin_s` until `end_s`: whatever it asks for is asked afterwards."""

    begin_s: float
    end_s: float

    async def pass_by(self) -> None:
        loop = asyncio.get_running_loop()
        if self.begin_s <= loop.time() < self.end_s:
            await asyncio.sleep(self.end_s - loop.time())


class Pausing:
    """Any port of a process that may stand still before and after each call."""

    def __init__(self, inner: Any, pause: Pause) -> None:
        self._inner = inner
        self._pause = pause

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*given: Any, **named: Any) -> Any:
            await self._pause.pass_by()
            try:
                return await found(*given, **named)
            finally:
                await self._pause.pass_by()

        return call


def two_processes(second_at_s: float, pause: Pause | None) -> Callable[[Row, tuple[Fault, ...], Path], Trial]:
    """A trial in which a second process takes over while the first one still lives, or stands still."""

    def run(row: Row, plan: tuple[Fault, ...], folder: Path) -> Trial:
        del plan, folder
        simulation, disk, notes = row.world.simulation(), SimulatedDisk(), dict[str, Any]()
        outside = Outside(Draws(simulation.scenario.workload, 7), effect=row.world.effect, effects=disk.effects)
        engines: list[SimulatedInference] = []

        def shared(ports: Ports) -> Ports:
            assert isinstance(ports.inference, SimulatedInference)
            engines.append(ports.inference)
            return dataclasses.replace(ports, environment=outside)

        def first(ports: Ports) -> Ports:
            ports = shared(ports)
            if pause is None:
                return ports
            return dataclasses.replace(
                ports,
                environment=Pausing(ports.environment, pause),
                trainer=Pausing(ports.trainer, pause),
                grader=Pausing(ports.grader, pause),
            )

        async def both() -> tuple[str, str]:
            older = asyncio.create_task(_ended(dataclasses.replace(simulation, adapt=first, is_checked=False), disk))
            await asyncio.sleep(second_at_s)
            newer = asyncio.create_task(_ended(dataclasses.replace(simulation, adapt=shared, is_checked=False), disk))
            return (await older, await newer)

        notes["first"], ended = run_virtual(both(), max_time_s=1e5)
        notes["first engine"], notes["refused tokens"] = engines[0].version, outside.refused
        endured = Endured((Life(notes["first"], 0), Life(ended, 0)), disk, FaultInjector(FaultPlan()))
        return judged(row, endured, [outside], notes, [])

    return run


async def _ended(simulation: Any, disk: SimulatedDisk) -> str:
    try:
        return (await run_simulated(simulation, (), disk)).summary.reason
    except HeadraceError as error:
        return f"failed: {error}"


# --- a bit that flips while nobody runs


def flip_a_transcript(number: int, disk: SimulatedDisk, notes: dict[str, Any]) -> SimulatedDisk:
    """Damages a stored transcript of the newest closed group."""
    closed = [event.payload for event in disk.storage.events(0) if isinstance(event.payload, GroupClosed)]
    return _flipped(disk, closed[-1].members[0].transcript, notes)


def drop_a_transcript(number: int, disk: SimulatedDisk, notes: dict[str, Any]) -> SimulatedDisk:
    """Removes a stored transcript of the newest closed group."""
    storage = flip_a_transcript(number, disk, notes).storage
    assert isinstance(storage, MemoryStorage)
    del storage._rows[notes["damaged"]]
    return disk


def flip_a_running_groups_transcript(number: int, disk: SimulatedDisk, notes: dict[str, Any]) -> SimulatedDisk:
    """The same to the newest sealed transcript, whose group still runs."""
    sealed = [event.payload for event in disk.storage.events(0) if isinstance(event.payload, TranscriptSealed)]
    return _flipped(disk, sealed[-1].transcript, notes)


def _flipped(disk: SimulatedDisk, address: Address | None, notes: dict[str, Any]) -> SimulatedDisk:
    storage = disk.storage
    assert isinstance(storage, MemoryStorage)
    assert address is not None
    data = storage._rows[address]
    notes["damaged"], notes["intact"] = address, data
    storage._rows[address] = data[:-1] + bytes([data[-1] ^ 1])
    return disk


def mend_the_transcript(disk: SimulatedDisk, notes: dict[str, Any]) -> None:
    """Puts the bytes back, or the laws about contents could not be checked on the whole log."""
    storage = disk.storage
    assert isinstance(storage, MemoryStorage)
    assert storage._rows.get(notes["damaged"]) != notes["intact"], "nobody wrote the row again"
    storage._rows[notes["damaged"]] = notes["intact"]


def damage_the_newest_checkpoint(number: int, disk: SimulatedDisk, notes: dict[str, Any]) -> SimulatedDisk:
    """Flips a bit of the weights that the newest checkpoint names."""
    from headrace.records.checkpoint import CheckpointWritten

    written = [event.payload for event in disk.storage.events(0) if isinstance(event.payload, CheckpointWritten)]
    disk.shelf.damage(written[-1].manifest.weights)
    return disk
