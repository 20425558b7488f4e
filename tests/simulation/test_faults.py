import asyncio
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from headrace.config import decode_options
from headrace.errors import (
    ConfigError,
    EnvironmentFault,
    GraderError,
    InferenceError,
    Outcome,
    TrainerError,
)
from headrace.ports import TurnTiming
from headrace.records.action import Action, EffectClass
from headrace.records.batch import BatchPlan
from headrace.records.execution import IncarnationLost, Lease, Receipt
from headrace.records.ids import ActionId, EpisodeId, GroupId, LeaseToken, PolicyId, PolicyRef
from headrace.records.provenance import address_of, content_version
from headrace.records.segment import GenerateRequest, Sampling, TokenSegment
from headrace.records.verdict import Scored, Submission
from headrace.simulation.environment import SimulatedEnvironment
from headrace.simulation.faults import Fault, FaultInjector, FaultKind, FaultPlan
from headrace.simulation.faulty import FaultyEnvironment, FaultyGrader, FaultyInference, FaultyTrainer
from headrace.simulation.grader import SimulatedGrader
from headrace.simulation.harness import TOOL, SimulatedHarness
from headrace.simulation.inference import SimulatedInference
from headrace.simulation.laws import Constant
from headrace.simulation.loop import run_virtual
from headrace.simulation.scenario import Scenario, load_scenario
from headrace.simulation.tasks import SimulatedTasks
from headrace.simulation.trainer import SimulatedTrainer
from headrace.simulation.weights import WeightShelf
from headrace.simulation.workload import Draws

POLICY = PolicyId("policy")
EPISODE = EpisodeId(GroupId("train", 0), 0, 0)
LEASE = Lease(LeaseToken(1), 1e9)


def now() -> float:
    return asyncio.get_running_loop().time()


class World:
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


ACTION = Action(ActionId(EPISODE, 0, 0), TOOL.name, "{}")


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


@pytest.mark.parametrize(
    ("kind", "options", "outcome", "effects", "time_s"),
    [
        (FaultKind.REJECT, {}, Outcome.REJECTED, 0, 0.0),
        (FaultKind.LOSE, {}, Outcome.LOST, 1, 1.0),
        (FaultKind.DELAY, {"delay_s": 3.0}, None, 1, 4.0),
        (FaultKind.DELAY, {"delay_s": 100.0}, Outcome.LOST, 1, 10.0),
        (FaultKind.CRASH, {}, Outcome.LOST, 0, 0.0),
        (FaultKind.CRASH, {"delay_s": 0.5}, Outcome.LOST, 1, 0.5),
        (FaultKind.DUPLICATE, {}, None, 1, 1.0),
    ],
)
def test_a_fault_on_an_action_has_its_effect_its_time_and_its_outcome(
    kind: FaultKind, options: dict[str, float], outcome: Outcome | None, effects: int, time_s: float
):
    async def main() -> None:
        world = World(plain(), 7, fault("environment", kind, "execute", **options), effect=EffectClass.EXTERNAL)
        try:
            receipt = await world.execute()
            assert outcome is None
            assert receipt.action_id == ACTION.id
        except EnvironmentFault as caught:
            assert caught.outcome is outcome
        assert world.executor.effects[ACTION.id] == effects
        assert now() == pytest.approx(time_s)
        assert [firing.method for firing in world.injector.fired] == ["execute"]
        assert world.injector.is_spent

    run_virtual(main())


@pytest.mark.parametrize(
    ("kind", "is_found"), [(FaultKind.LOSE, True), (FaultKind.REJECT, False), (FaultKind.CRASH, None)]
)
def test_a_probe_tells_what_became_of_an_action(kind: FaultKind, is_found: bool | None):
    async def main() -> None:
        world = World(plain(), 7, fault("environment", kind, "execute", delay_s=0.5))
        handle = await world.environment.open(world.tasks.task(0), EPISODE, LEASE, 10)
        with pytest.raises(EnvironmentFault):
            await world.environment.execute(handle, ACTION, LEASE, 10)
        answer = await world.environment.probe(handle, ACTION.id, 10)
        expected = {True: Receipt, False: type(None), None: IncarnationLost}[is_found]
        assert isinstance(answer, expected)

    run_virtual(main())


def test_a_fault_hits_the_nth_call_or_the_first_at_a_time_and_no_other():
    async def main() -> None:
        world = World(
            plain(),
            7,
            fault("environment", FaultKind.REJECT, "open", call=3),
            fault("environment", FaultKind.REJECT, "open", at_s=50.0, times=2),
        )
        outcomes = []
        for attempt in range(9):
            if attempt == 5:
                await asyncio.sleep(60)
            try:
                await world.environment.open(world.tasks.task(0), EPISODE, LEASE, 10)
                outcomes.append("open")
            except EnvironmentFault:
                outcomes.append("fault")
        assert outcomes == ["open", "open", "fault", "open", "open", "fault", "fault", "open", "open"]
        assert [(firing.call, firing.time_s) for firing in world.injector.fired] == [(3, 0.0), (6, 60.0), (7, 60.0)]
        assert world.injector.calls["environment", "open"] == 9

    run_virtual(main())


@pytest.mark.parametrize(
    ("kind", "outcome", "num_segments"),
    [
        (FaultKind.REJECT, Outcome.REJECTED, 0),
        (FaultKind.LOSE, Outcome.LOST, 1),
        (FaultKind.CRASH, Outcome.LOST, 0),
        (FaultKind.DELAY, None, 1),
        (FaultKind.DUPLICATE, None, 1),
    ],
)
def test_a_fault_on_a_generation(kind: FaultKind, outcome: Outcome | None, num_segments: int):
    async def main() -> None:
        world = World(plain(), 7, fault("inference", kind, "generate", delay_s=2.5))
        await world.publish(0)
        seen: list[TokenSegment | TurnTiming] = []
        try:
            await world.turn(EPISODE, world.harness.open(world.tasks.task(0)), 0, seen)
            assert outcome is None
            assert isinstance(seen[-1], TurnTiming)
        except InferenceError as caught:
            assert caught.outcome is outcome
        assert sum(isinstance(item, TokenSegment) for item in seen) == num_segments
        if kind is FaultKind.DELAY:
            assert now() == pytest.approx(7.5)
        engine = world.inference.inner
        assert isinstance(engine, SimulatedInference)
        assert engine.num_active == 0

    run_virtual(main())


def test_a_grading_that_is_delivered_twice_gives_both_verdicts():
    async def main() -> None:
        world = World(plain(verdict_flip=0.5), 7, *(fault("grader", FaultKind.DUPLICATE) for _ in range(20)))
        differing = 0
        for member in range(20):
            episode = EpisodeId(GroupId("train", 0), member, 0)
            submission = Submission(address_of(str(episode).encode()), episode, world.tasks.task(0), "answer")
            first, second = await world.grader.grade([submission], 10)
            assert first.transcript == second.transcript
            assert isinstance(first.outcome, Scored)
            differing += first != second
        assert 3 <= differing <= 17

    run_virtual(main())


def test_an_update_that_is_delivered_twice_steps_once_and_one_that_is_lost_has_stepped():
    async def main() -> None:
        for kind in (FaultKind.DUPLICATE, FaultKind.LOSE, FaultKind.REJECT, FaultKind.CRASH):
            world = World(plain(), 7, fault("trainer", kind, "update"))
            plan = BatchPlan(1, POLICY, 0, (), content_version("algorithm"), b"\0" * 16)
            try:
                await world.trainer.update(plan, 1e6)
                assert kind is FaultKind.DUPLICATE
            except TrainerError as caught:
                assert caught.outcome is (Outcome.REJECTED if kind is FaultKind.REJECT else Outcome.LOST)
            trainer = world.trainer.inner
            assert isinstance(trainer, SimulatedTrainer)
            assert trainer.version == (1 if kind in (FaultKind.DUPLICATE, FaultKind.LOSE) else 0)

    run_virtual(main())


def test_a_rejected_phase_of_publication_leaves_the_old_version_serving():
    async def main() -> None:
        world = World(plain(), 7, fault("inference", FaultKind.REJECT, "activate", call=2))
        await world.publish(0)
        plan = BatchPlan(1, POLICY, 0, (), content_version("algorithm"), b"\0" * 16)
        await world.trainer.update(plan, 1e6)
        with pytest.raises(InferenceError):
            await world.publish(1)
        engine = world.inference.inner
        assert isinstance(engine, SimulatedInference)
        assert engine.version == 0
        await world.publish(1)
        assert engine.version == 1

    run_virtual(main())


def test_a_plan_is_data_and_a_wrong_one_is_refused():
    tree = {"faults": [{"worker": "grader", "kind": "delay", "method": "grade", "call": 2, "delay_s": 3.0}]}
    plan = decode_options(tree, FaultPlan, "faults")
    assert plan.faults == (fault("grader", FaultKind.DELAY, "grade", call=2, delay_s=3.0),)
    for key, value in (("kind", "explode"), ("times", 0), ("wroker", "x")):
        with pytest.raises(ConfigError):
            decode_options({"faults": [{**tree["faults"][0], key: value}]}, FaultPlan, "faults")


def test_a_worker_that_cannot_crash_says_so():
    class Steady:
        scope = "episode"

    async def main() -> None:
        grader = FaultyGrader(Steady(), FaultInjector(FaultPlan(faults=(fault("grader", FaultKind.CRASH),))))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="cannot crash"):
            await grader.grade([], 1.0)

    run_virtual(main())


async def _episodes(world: World, trace: list[str]) -> None:
    """Twenty groups of three through all workers, with a new version now and then."""

    async def episode(name: EpisodeId) -> None:
        task = world.tasks.task(name.group.ordinal)
        try:
            handle = await world.environment.open(task, name, LEASE, 60)
            prefix = world.harness.open(task)
            for step in range(10):
                items = await world.turn(name, prefix, step)
                segments = tuple(item for item in items if isinstance(item, TokenSegment))
                prefix += segments
                parsed = world.harness.parse(segments[-1].ids_T)
                for ordinal, call in enumerate(parsed.calls):
                    action = Action(ActionId(name, step, ordinal), call.tool, call.arguments)
                    receipt = await world.environment.execute(handle, action, LEASE, 60)
                    prefix += world.harness.observe([receipt.output], 64).segments
                if not parsed.calls:
                    break
            submission = Submission(address_of(str(name).encode()), name, task, parsed.text)
            (verdict,) = await world.grader.grade([submission], 60)
            trace.append(f"{now():.9f} {name} {[len(segment) for segment in prefix]} {verdict.outcome}")
        except (EnvironmentFault, GraderError, InferenceError) as error:
            trace.append(f"{now():.9f} {name} {error}")

    async def updates() -> None:
        for version in range(1, 6):
            await asyncio.sleep(7)
            plan = BatchPlan(version, POLICY, version - 1, (), content_version("algorithm"), b"\0" * 16)
            await world.trainer.update(plan, 60)
            await world.publish(version)
            trace.append(f"{now():.9f} version {version}")

    await world.publish(0)
    async with asyncio.TaskGroup() as group:
        group.create_task(updates())
        for ordinal in range(20):
            for member in range(3):
                group.create_task(episode(EpisodeId(GroupId("train", ordinal), member, 0)))


def _trace(shuffle_seed: int | None = None) -> list[str]:
    trace: list[str] = []
    world = World(
        load_scenario("small_mixed"),
        7,
        fault("inference", FaultKind.CRASH, "generate", call=200, delay_s=0.1),
        fault("environment", FaultKind.DELAY, call=9, delay_s=30.0),
    )
    run_virtual(_episodes(world, trace), shuffle_seed=shuffle_seed)
    return trace


def test_all_workers_together_give_the_same_trace_in_another_process():
    code = "from tests.simulation.test_faults import _trace; print(*_trace(), sep='\\n')"
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "5"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    mine = _trace()
    assert hashlib.sha256(other.stdout.strip().encode()).digest() == hashlib.sha256("\n".join(mine).encode()).digest()
    assert len(mine) == 65


def test_what_is_drawn_does_not_depend_on_the_interleaving():
    def verdicts(shuffle_seed: int | None) -> dict[str, str]:
        trace: list[str] = []
        scenario = load_scenario("small_mixed")
        run_virtual(_episodes(World(scenario), trace), shuffle_seed=shuffle_seed)
        words = [line.split(" ", 2) for line in trace if "Scored" in line]
        return {name: outcome[outcome.index("Scored") :] for _, name, outcome in words}

    expected = verdicts(None)
    assert len(expected) > 40
    for shuffle_seed in range(5):
        assert verdicts(shuffle_seed) == expected


def test_slots_held_by_one_turn_episodes_reach_the_fluid_bound_of_the_ten_times_scenario():
    scenario = load_scenario("ten_times")
    scenario = msgspec.structs.replace(
        scenario, engine=msgspec.structs.replace(scenario.engine, slots=64, decode=((64, 64.0),))
    )

    async def main() -> float:
        world = World(scenario)
        await world.publish(0)
        ordinals = iter(range(10**6))
        done = 0

        async def slot() -> None:
            nonlocal done
            while now() < 10_000.0:
                ordinal = next(ordinals)
                name = EpisodeId(GroupId("train", ordinal // 8), ordinal % 8, 0)
                items = await world.turn(name, world.harness.open(world.tasks.task(ordinal // 8)), 0)
                drawn = world.draws.step(ordinal // 8, name, 0).tokens
                assert isinstance(items[-1], TurnTiming)
                assert items[-1].generate_s == pytest.approx(drawn, abs=1e-6)
                done += now() <= 10_000.0

        async with asyncio.TaskGroup() as group:
            for _ in range(64):
                group.create_task(slot())
        engine = world.inference.inner
        assert isinstance(engine, SimulatedInference)
        assert engine.slot_seconds >= 0.99 * 64 * 10_000
        return done / 8 / 10.0

    assert run_virtual(main()) == pytest.approx(281 * 64 / 256, rel=0.12)
