"""The simulated composition root: the orchestrator on workers with a cost model, under virtual time.

It measures scheduling behaviour, not hardware. No thread, process, socket or tensor library is involved.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from headrace.checkers import LawChecker, bounds_of, lost_records
from headrace.config import Config
from headrace.control.context import Ports, RunFacts
from headrace.control.orchestrator import Orchestrator, RunSummary
from headrace.control.recorder import Observer
from headrace.errors import InvariantViolated
from headrace.records.action import EffectClass
from headrace.records.arrays import as_int32
from headrace.records.events import Event
from headrace.records.ids import ActionId, PolicyId
from headrace.records.provenance import PolicyVersion
from headrace.runtime.cycles import rarely_searched
from headrace.simulation.device import SharedDevice
from headrace.simulation.environment import SimulatedEnvironment
from headrace.simulation.grader import SimulatedGrader
from headrace.simulation.harness import SimulatedHarness
from headrace.simulation.inference import SimulatedInference
from headrace.simulation.journal import CountingJournal
from headrace.simulation.loop import run_virtual
from headrace.simulation.scenario import Scenario
from headrace.simulation.tasks import SimulatedTasks
from headrace.simulation.tokens import prompt
from headrace.simulation.trainer import SimulatedTrainer
from headrace.simulation.weights import WeightShelf
from headrace.simulation.workload import Draws
from headrace.store.group_commit import Storage
from headrace.store.memory import MemoryJournal, MemoryStorage

CANARY_TOKENS = 8


@dataclasses.dataclass(frozen=True)
class Simulation:
    """What to simulate, and how closely to watch it.

    Attributes:
        config: the configuration; its adapter sections are ignored, the workers and the rate limit of the service behind
            the tools are the scenario's.
        scenario: workload and costs.
        shuffle_seed: explores another interleaving of ready callbacks per seed; None keeps asyncio's order.
        is_checked: whether every law is checked after every event.
        num_train: tasks of the source; None never ends.
        num_held_out: held-out tasks.
        adapt: may wrap ports, for instance to inject faults.
        effect: what actions do to the world.
        start_s: what the loop's clock says when the process begins.
        watch: called once the ports stand; awaitables that end, with a reason, when a worker is gone.
        keeps_log: whether the log is kept; without it observers see every event, laws are not checked, and a run of any
            length takes bounded memory.
    """

    config: Config
    scenario: Scenario
    shuffle_seed: int | None = None
    is_checked: bool = True
    num_train: int | None = None
    num_held_out: int = 0
    adapt: Callable[[Ports], Ports] = lambda ports: ports
    effect: EffectClass = EffectClass.PURE
    start_s: float = 0.0
    watch: Callable[[], Sequence[Awaitable[str]]] = tuple
    keeps_log: bool = True


@dataclasses.dataclass(frozen=True)
class SimulatedDisk:
    """What outlives a simulated process: the journal's storage and the weights. A second run on it goes on with the first.

    Attributes:
        storage: committed events and rows.
        shelf: weights by content address.
        effects: how often each action was really run, which the world outside knows whoever dies.
    """

    storage: Storage = dataclasses.field(default_factory=MemoryStorage)
    shelf: WeightShelf = dataclasses.field(default_factory=WeightShelf)
    effects: Counter[ActionId] = dataclasses.field(default_factory=Counter[ActionId])


@dataclasses.dataclass(frozen=True)
class SimulationResult:
    """What came of it.

    Attributes:
        summary: how the run ended.
        events: the whole log; empty when it was not kept.
        makespan_s: virtual seconds from start to end.
        slot_seconds: integral of busy engine slots over time.
    """

    summary: RunSummary
    events: tuple[Event, ...]
    makespan_s: float
    slot_seconds: float


def simulate(
    simulation: Simulation,
    observers: Sequence[Observer] = (),
    *,
    disk: SimulatedDisk | None = None,
    max_time_s: float | None = None,
) -> SimulationResult:
    """Runs to the end.

    Args:
        simulation: what.
        observers: called with every new event.
        disk: what an earlier process left behind; a fresh one by default.
        max_time_s: virtual seconds that it may take.

    Raises:
        InvariantViolated: when a law breaks, naming the event.
        StuckLoop: when every task waits for ever, or time is over.
    """
    main = run_simulated(simulation, observers, disk or SimulatedDisk())
    return run_virtual(
        main,
        shuffle_seed=simulation.shuffle_seed,
        max_time_s=None if max_time_s is None else simulation.start_s + max_time_s,
        start_s=simulation.start_s,
    )


def law_observer(checker: LawChecker) -> Observer:
    """An observer that stops the run at the first broken law."""

    def observe(event: Event) -> None:
        violations = checker.observe(event)
        if violations:
            first = violations[0]
            raise InvariantViolated(f"{first.law} at event {first.seq}: {first.message}")

    return observe


def resumed_laws(config: Config, journal: MemoryJournal) -> Observer:
    """Every law, for a process that begins where the journal ends."""
    events = list(journal.events())
    observe = law_observer(LawChecker(bounds_of(config), journal.read, lost_records(events)))
    for event in events:
        observe(event)
    return observe


def _device(scenario: Scenario, is_shared: bool) -> SharedDevice | None:
    if is_shared:
        return SharedDevice(scenario.switch_s)
    left = scenario.engine.while_training
    return SharedDevice(left=left) if left < 1.0 else None


async def run_simulated(simulation: Simulation, observers: Sequence[Observer], disk: SimulatedDisk) -> SimulationResult:
    """`simulate` on the loop that runs already: two on the same disk are two processes that both believe to be the one."""
    scenario = simulation.scenario
    environment = msgspec.structs.replace(simulation.config.environment, calls_per_s=scenario.external_calls_per_s)
    config = msgspec.structs.replace(simulation.config, environment=environment)
    policy_id = PolicyId(config.policy.policy_id)
    draws, shelf = Draws(scenario.workload, config.run.seed), disk.shelf
    stored = MemoryJournal(disk.storage) if simulation.keeps_log else None
    journal = CountingJournal() if stored is None else stored
    is_shared = scenario.placement == "shared" or config.schedule.mode == "colocate_async"
    device = _device(scenario, is_shared)
    trainer = SimulatedTrainer(
        scenario.trainer, shelf, policy_id=policy_id, seed=config.run.seed, read=journal.read, device=device
    )
    engine = SimulatedInference(draws, scenario.engine, shelf, policy_id=policy_id, device=device)
    ports = Ports(
        tasks=SimulatedTasks(draws, num_train=simulation.num_train, num_held_out=simulation.num_held_out),
        harness=SimulatedHarness(draws),
        inference=engine,
        environment=SimulatedEnvironment(
            draws,
            effect=simulation.effect,
            num_slots=scenario.environment_slots,
            effects=disk.effects,
        ),
        grader=SimulatedGrader(draws, num_slots=scenario.grader_slots),
        trainer=trainer,
        journal=journal,
    )
    facts = RunFacts(
        run_id=f"{scenario.workload.name}-{config.run.seed}",
        runtime="simulated",
        wall_clock="",
        resources={"engine_slots": float(scenario.engine.slots)},
        initial=PolicyVersion(policy_id, 0, trainer.weights),
        initial_bytes=scenario.trainer.weights_bytes,
        canary=[as_int32(prompt(0, CANARY_TOKENS))],
    )
    laws = [resumed_laws(config, stored)] if simulation.is_checked and stored is not None else []
    orchestrator = Orchestrator(
        config, simulation.adapt(ports), facts, observers=(*laws, *observers), watch=simulation.watch()
    )
    with rarely_searched():
        summary = await orchestrator.run()
    if stored is not None:
        await stored.durable(stored.last_seq)
    events = tuple(journal.events())
    if stored is not None:
        await stored.close()
    end_s = events[-1].t_ns / 1e9 if events else asyncio.get_running_loop().time()
    return SimulationResult(summary, events, end_s, engine.slot_seconds)
