"""All simulated workers of a scenario, each behind one fault plan."""

import asyncio

import msgspec

from headrace.ports import TurnTiming
from headrace.records.action import Action, EffectClass
from headrace.records.execution import Lease, Receipt
from headrace.records.ids import ActionId, EpisodeId, GroupId, LeaseToken, PolicyId, PolicyRef
from headrace.records.segment import GenerateRequest, Sampling, TokenSegment
from headrace.simulation.environment import SimulatedEnvironment
from headrace.simulation.faults import Fault, FaultInjector, FaultKind, FaultPlan
from headrace.simulation.faulty import FaultyEnvironment, FaultyGrader, FaultyInference, FaultyTrainer
from headrace.simulation.grader import SimulatedGrader
from headrace.simulation.harness import TOOL, SimulatedHarness
from headrace.simulation.inference import SimulatedInference
from headrace.simulation.laws import Constant
from headrace.simulation.scenario import Scenario, load_scenario
from headrace.simulation.tasks import SimulatedTasks
from headrace.simulation.trainer import SimulatedTrainer
from headrace.simulation.weights import WeightShelf
from headrace.simulation.workload import Draws

POLICY = PolicyId("policy")
EPISODE = EpisodeId(GroupId("train", 0), 0, 0)
LEASE = Lease(LeaseToken(1), 1e9)
ACTION = Action(ActionId(EPISODE, 0, 0), TOOL.name, "{}")


def now() -> float:
    return asyncio.get_running_loop().time()


class Workers:
    """All simulated workers of a scenario, each behind the same fault plan."""

    def __init__(
        self, scenario: Scenario, seed: int = 7, *faults: Fault, effect: EffectClass = EffectClass.PURE
    ) -> None:
        self.injector = FaultInjector(FaultPlan(faults=faults))
        self.draws = Draws(scenario.workload, seed)
        self.shelf = WeightShelf()
        self.tasks = SimulatedTasks(self.draws)
        self.harness = SimulatedHarness(self.draws)
        self.executor = SimulatedEnvironment(self.draws, effect=effect, num_slots=scenario.environment_slots)
        self.inference = FaultyInference(
            SimulatedInference(self.draws, scenario.engine, self.shelf, policy_id=POLICY), self.injector
        )
        self.environment = FaultyEnvironment(self.executor, self.injector)
        self.grader = FaultyGrader(SimulatedGrader(self.draws), self.injector)
        self.trainer = FaultyTrainer(
            SimulatedTrainer(scenario.trainer, self.shelf, policy_id=POLICY, seed=seed, read=lambda _: b""),
            self.injector,
        )

    async def publish(self, version: int) -> None:
        trainer = self.trainer.inner
        assert isinstance(trainer, SimulatedTrainer)
        await self.inference.stage(PolicyRef(POLICY, version), trainer.weights, 1e6)
        await self.inference.activate(PolicyRef(POLICY, version), frozenset(), 1e6)

    async def turn(
        self,
        episode: EpisodeId,
        prefix: tuple[TokenSegment, ...],
        step: int,
        seen: list[TokenSegment | TurnTiming] | None = None,
    ) -> list[TokenSegment | TurnTiming]:
        """What the engine delivered; in `seen` also when it raised."""
        request = GenerateRequest(
            f"{episode}/{step}",
            prefix,
            1 << 20,
            Sampling(),
            self.harness.stop_ids,
            POLICY,
            0,
            None,
            str(episode.group),
            b"\0" * 16,
        )
        seen = [] if seen is None else seen
        async for item in self.inference.generate(request, 1e6):
            seen.append(item)
        return seen

    async def execute(self, timeout_s: float = 10.0) -> Receipt:
        handle = await self.environment.open(self.tasks.task(0), EPISODE, LEASE, 10)
        return await self.environment.execute(handle, ACTION, LEASE, timeout_s)


def plain(**options) -> Scenario:
    """One second per tool call, grading and token; nothing fails by itself."""
    scenario = load_scenario("controlled_gaussian")
    workload = msgspec.structs.replace(
        scenario.workload,
        tokens=Constant(value=5.0),
        tool_s=Constant(value=1.0),
        grade_s=Constant(value=1.0),
        **options,
    )
    return msgspec.structs.replace(scenario, workload=workload)


def fault(worker: str, kind: FaultKind, method: str = "", **options) -> Fault:
    return Fault(worker=worker, kind=kind, method=method, **options)
