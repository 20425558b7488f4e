import asyncio

import pytest
from simulation.workers import ACTION, EPISODE, LEASE, POLICY, Workers, fault, now, plain

from headrace.config import decode_options
from headrace.errors import ConfigError, EnvironmentFault, InferenceError, Outcome, TrainerError
from headrace.ports import TurnTiming
from headrace.records.action import EffectClass
from headrace.records.batch import BatchPlan
from headrace.records.execution import IncarnationLost, Receipt
from headrace.records.ids import EpisodeId, GroupId
from headrace.records.provenance import address_of, content_version
from headrace.records.segment import TokenSegment
from headrace.records.verdict import Scored, Submission
from headrace.simulation.faults import FaultInjector, FaultKind, FaultPlan
from headrace.simulation.faulty import FaultyGrader
from headrace.simulation.inference import SimulatedInference
from headrace.simulation.loop import run_virtual
from headrace.simulation.trainer import SimulatedTrainer


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
        workers = Workers(plain(), 7, fault("environment", kind, "execute", **options), effect=EffectClass.EXTERNAL)
        try:
            receipt = await workers.execute()
            assert outcome is None
            assert receipt.action_id == ACTION.id
        except EnvironmentFault as caught:
            assert caught.outcome is outcome
        assert workers.executor.effects[ACTION.id] == effects
        assert now() == pytest.approx(time_s)
        assert [firing.method for firing in workers.injector.fired] == ["execute"]
        assert workers.injector.is_spent

    run_virtual(main())


@pytest.mark.parametrize(
    ("kind", "is_found"), [(FaultKind.LOSE, True), (FaultKind.REJECT, False), (FaultKind.CRASH, None)]
)
def test_a_probe_tells_what_became_of_an_action(kind: FaultKind, is_found: bool | None):
    async def main() -> None:
        workers = Workers(plain(), 7, fault("environment", kind, "execute", delay_s=0.5))
        handle = await workers.environment.open(workers.tasks.task(0), EPISODE, LEASE, 10)
        with pytest.raises(EnvironmentFault):
            await workers.environment.execute(handle, ACTION, LEASE, 10)
        answer = await workers.environment.probe(handle, ACTION.id, 10)
        expected = {True: Receipt, False: type(None), None: IncarnationLost}[is_found]
        assert isinstance(answer, expected)

    run_virtual(main())


def test_a_fault_hits_the_nth_call_or_the_first_at_a_time_and_no_other():
    async def main() -> None:
        workers = Workers(
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
                await workers.environment.open(workers.tasks.task(0), EPISODE, LEASE, 10)
                outcomes.append("open")
            except EnvironmentFault:
                outcomes.append("fault")
        assert outcomes == ["open", "open", "fault", "open", "open", "fault", "fault", "open", "open"]
        assert [(firing.call, firing.time_s) for firing in workers.injector.fired] == [(3, 0.0), (6, 60.0), (7, 60.0)]
        assert workers.injector.calls["environment", "open"] == 9

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
        workers = Workers(plain(), 7, fault("inference", kind, "generate", delay_s=2.5))
        await workers.publish(0)
        seen: list[TokenSegment | TurnTiming] = []
        try:
            await workers.turn(EPISODE, workers.harness.open(workers.tasks.task(0)), 0, seen)
            assert outcome is None
            assert isinstance(seen[-1], TurnTiming)
        except InferenceError as caught:
            assert caught.outcome is outcome
        assert sum(isinstance(item, TokenSegment) for item in seen) == num_segments
        if kind is FaultKind.DELAY:
            assert now() == pytest.approx(7.5)
        engine = workers.inference.inner
        assert isinstance(engine, SimulatedInference)
        assert engine.num_active == 0

    run_virtual(main())


def test_a_grading_that_is_delivered_twice_gives_both_verdicts():
    async def main() -> None:
        workers = Workers(plain(verdict_flip=0.5), 7, *(fault("grader", FaultKind.DUPLICATE) for _ in range(20)))
        differing = 0
        for member in range(20):
            episode = EpisodeId(GroupId("train", 0), member, 0)
            submission = Submission(address_of(str(episode).encode()), episode, workers.tasks.task(0), "answer")
            first, second = await workers.grader.grade([submission], 10)
            assert first.transcript == second.transcript
            assert isinstance(first.outcome, Scored)
            differing += first != second
        assert 3 <= differing <= 17

    run_virtual(main())


def test_an_update_that_is_delivered_twice_steps_once_and_one_that_is_lost_has_stepped():
    async def main() -> None:
        for kind in (FaultKind.DUPLICATE, FaultKind.LOSE, FaultKind.REJECT, FaultKind.CRASH):
            workers = Workers(plain(), 7, fault("trainer", kind, "update"))
            plan = BatchPlan(1, POLICY, 0, (), content_version("algorithm"), b"\0" * 16)
            try:
                await workers.trainer.update(plan, 1e6)
                assert kind is FaultKind.DUPLICATE
            except TrainerError as caught:
                assert caught.outcome is (Outcome.REJECTED if kind is FaultKind.REJECT else Outcome.LOST)
            trainer = workers.trainer.inner
            assert isinstance(trainer, SimulatedTrainer)
            assert trainer.version == (1 if kind in (FaultKind.DUPLICATE, FaultKind.LOSE) else 0)

    run_virtual(main())


def test_a_rejected_phase_of_publication_leaves_the_old_version_serving():
    async def main() -> None:
        workers = Workers(plain(), 7, fault("inference", FaultKind.REJECT, "activate", call=2))
        await workers.publish(0)
        plan = BatchPlan(1, POLICY, 0, (), content_version("algorithm"), b"\0" * 16)
        await workers.trainer.update(plan, 1e6)
        with pytest.raises(InferenceError):
            await workers.publish(1)
        engine = workers.inference.inner
        assert isinstance(engine, SimulatedInference)
        assert engine.version == 0
        await workers.publish(1)
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
