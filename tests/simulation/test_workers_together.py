"""All simulated workers at once: one trace for one seed, whatever the process and the interleaving."""

import asyncio
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from simulation.workers import LEASE, POLICY, Workers, fault, now

from headrace.errors import EnvironmentFault, GraderError, InferenceError
from headrace.ports import TurnTiming
from headrace.records.action import Action
from headrace.records.batch import BatchPlan
from headrace.records.ids import ActionId, EpisodeId, GroupId
from headrace.records.provenance import address_of, content_version
from headrace.records.segment import TokenSegment
from headrace.records.verdict import Submission
from headrace.simulation.faults import FaultKind
from headrace.simulation.inference import SimulatedInference
from headrace.simulation.loop import run_virtual
from headrace.simulation.scenario import load_scenario


async def _episodes(workers: Workers, trace: list[str]) -> None:
    """Twenty groups of three through all workers, with a new version now and then."""

    async def episode(name: EpisodeId) -> None:
        task = workers.tasks.task(name.group.ordinal)
        try:
            handle = await workers.environment.open(task, name, LEASE, 60)
            prefix = workers.harness.open(task)
            for step in range(10):
                items = await workers.turn(name, prefix, step)
                segments = tuple(item for item in items if isinstance(item, TokenSegment))
                prefix += segments
                parsed = workers.harness.parse(segments[-1].ids_T)
                for ordinal, call in enumerate(parsed.calls):
                    action = Action(ActionId(name, step, ordinal), call.tool, call.arguments)
                    receipt = await workers.environment.execute(handle, action, LEASE, 60)
                    prefix += workers.harness.observe([receipt.output], 64).segments
                if not parsed.calls:
                    break
            submission = Submission(address_of(str(name).encode()), name, task, parsed.text)
            (verdict,) = await workers.grader.grade([submission], 60)
            trace.append(f"{now():.9f} {name} {[len(segment) for segment in prefix]} {verdict.outcome}")
        except (EnvironmentFault, GraderError, InferenceError) as error:
            trace.append(f"{now():.9f} {name} {error}")

    async def updates() -> None:
        for version in range(1, 6):
            await asyncio.sleep(7)
            plan = BatchPlan(version, POLICY, version - 1, (), content_version("algorithm"), b"\0" * 16)
            await workers.trainer.update(plan, 60)
            await workers.publish(version)
            trace.append(f"{now():.9f} version {version}")

    await workers.publish(0)
    async with asyncio.TaskGroup() as group:
        group.create_task(updates())
        for ordinal in range(20):
            for member in range(3):
                group.create_task(episode(EpisodeId(GroupId("train", ordinal), member, 0)))


def _trace(shuffle_seed: int | None = None) -> list[str]:
    trace: list[str] = []
    workers = Workers(
        load_scenario("small_mixed"),
        7,
        fault("inference", FaultKind.CRASH, "generate", call=200, delay_s=0.1),
        fault("environment", FaultKind.DELAY, call=9, delay_s=30.0),
    )
    run_virtual(_episodes(workers, trace), shuffle_seed=shuffle_seed)
    return trace


def test_all_workers_together_give_the_same_trace_in_another_process():
    code = "from simulation.test_workers_together import _trace; print(*_trace(), sep='\\n')"
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "5"},
        cwd=Path(__file__).parents[1],
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
        run_virtual(_episodes(Workers(scenario), trace), shuffle_seed=shuffle_seed)
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
        workers = Workers(scenario)
        await workers.publish(0)
        ordinals = iter(range(10**6))
        done = 0

        async def slot() -> None:
            nonlocal done
            while now() < 10_000.0:
                ordinal = next(ordinals)
                name = EpisodeId(GroupId("train", ordinal // 8), ordinal % 8, 0)
                items = await workers.turn(name, workers.harness.open(workers.tasks.task(ordinal // 8)), 0)
                drawn = workers.draws.step(ordinal // 8, name, 0).tokens
                assert isinstance(items[-1], TurnTiming)
                assert items[-1].generate_s == pytest.approx(drawn, abs=1e-6)
                done += now() <= 10_000.0

        async with asyncio.TaskGroup() as group:
            for _ in range(64):
                group.create_task(slot())
        engine = workers.inference.inner
        assert isinstance(engine, SimulatedInference)
        assert engine.slot_seconds >= 0.99 * 64 * 10_000
        return done / 8 / 10.0

    assert run_virtual(main()) == pytest.approx(281 * 64 / 256, rel=0.12)
