"""Versions in the simulated engine: how they are staged and activated, and what a change does to turns and caches."""

import asyncio

import msgspec
import numpy as np
import pytest
from simulation.engine_bench import POLICY, Bench, collect, workload

from headrace.errors import InferenceError
from headrace.ports import TurnTiming
from headrace.records.arrays import as_float32
from headrace.records.ids import PolicyRef
from headrace.records.segment import TokenSegment
from headrace.simulation.costs import EngineCost, TrainerCost
from headrace.simulation.laws import Constant
from headrace.simulation.loop import run_virtual
from headrace.simulation.trainer import SimulatedTrainer
from headrace.simulation.weights import SimulatedWeights


def test_a_version_cut_falls_at_the_tokens_sampled_so_far_and_pinned_requests_are_not_cut():
    async def main() -> None:
        bench = Bench()
        await bench.publish(0)
        free = asyncio.create_task(collect(bench.engine, bench.request(0)))
        pinned = asyncio.create_task(collect(bench.engine, bench.request(1, pin_version=0)))
        await asyncio.sleep(3.5)
        await bench.publish(1, keep=[0])
        await asyncio.sleep(4)
        await bench.publish(2, keep=[0])
        segments, timing = await free
        assert [(segment.policy.version, len(segment)) for segment in segments] == [(0, 3), (1, 4), (2, 3)]  # type: ignore[union-attr]
        assert [segment.context_version_min for segment in segments] == [0, 1, 2]
        assert timing.preemptions == 2
        segments, timing = await pinned
        assert [(segment.policy.version, len(segment)) for segment in segments] == [(0, 10)]  # type: ignore[union-attr]
        assert timing.preemptions == 0

    run_virtual(main())


def test_keeping_the_cache_costs_nothing_and_is_stamped():
    async def main() -> None:
        bench = Bench(EngineCost(slots=4, decode=((4, 4.0),), prefill_tokens_per_s=100.0, on_swap="keep_kv"))
        await bench.publish(0)
        running = asyncio.create_task(collect(bench.engine, bench.request()))
        await asyncio.sleep(5)
        activation = await bench.publish(1)
        assert (activation.pause_s, activation.rebuilt_tokens) == (0.0, 0)
        segments, timing = await running
        assert [segment.context_version_min for segment in segments] == [0, 0]
        assert timing.preemptions == 0

    run_virtual(main())


def test_rebuilding_caches_pauses_the_engine_for_the_tokens_that_it_computes_again():
    async def main() -> None:
        cost = EngineCost(slots=4, decode=((4, 4.0),), prefill_tokens_per_s=100.0, swap_pause_s=0.5)
        bench = Bench(cost, workload(10.0, prompt_tokens=Constant(value=50.0)))
        await bench.publish(0)
        begin_s = asyncio.get_running_loop().time()
        running = asyncio.create_task(collect(bench.engine, bench.request()))
        # 50 tokens of prompt take half a second, then come 10 tokens of one second each.
        await asyncio.sleep(4)
        activation = await bench.publish(1)
        assert activation.rebuilt_tokens == 50 + 3
        assert activation.pause_s == pytest.approx(0.5 + 53 / 100)
        segments, timing = await running
        assert [len(segment) for segment in segments] == [3, 7]
        assert timing.preemptions == 1
        assert msgspec.structs.astuple(timing.compute) == pytest.approx((50 + 53, 1.03, 10.0))
        assert asyncio.get_running_loop().time() - begin_s == pytest.approx(0.5 + 10 + activation.pause_s)

    run_virtual(main())


def test_the_prefill_of_one_turn_stops_all_and_each_second_of_the_engine_is_some_turns():
    async def main() -> None:
        cost = EngineCost(slots=4, decode=((4, 4.0),), prefill_tokens_per_s=100.0, turn_start_s=0.25)
        bench = Bench(cost, workload(10.0, prompt_tokens=Constant(value=50.0)))
        await bench.publish(0)
        began_s = asyncio.get_running_loop().time()
        first = asyncio.create_task(collect(bench.engine, bench.request()))
        await asyncio.sleep(3)
        second = asyncio.create_task(collect(bench.engine, bench.request(1)))
        timings = [(await turn)[1] for turn in (first, second)]
        assert [timing.generate_s for timing in timings] == pytest.approx([10 + 2 * 0.75, 10 + 0.75])
        taken = [timing.compute for timing in timings if timing.compute is not None]
        assert [(c.prefill_tokens, c.prefill_s) for c in taken] == [(50, 0.75), (50, 0.75)]
        busy_s = asyncio.get_running_loop().time() - began_s
        assert sum(c.prefill_s + c.decode_s for c in taken) == pytest.approx(busy_s)

    run_virtual(main())


def test_members_of_a_group_share_the_cache_of_their_prompt_until_the_version_changes():
    async def main() -> list[float]:
        cost = EngineCost(slots=4, decode=((4, 4.0),), prefill_tokens_per_s=100.0)
        bench = Bench(cost, workload(10.0, prompt_tokens=Constant(value=50.0)))
        await bench.publish(0)
        seconds = []
        for member in range(3):
            if member == 2:
                await bench.publish(1)
            request = bench.request(request_id=f"train.0.{member}.0/0")
            seconds.append((await collect(bench.engine, request))[1].generate_s)
        return seconds

    assert run_virtual(main()) == pytest.approx([10.5, 10.0, 10.5])


def test_pieces_that_a_version_cut_had_closed_arrive_before_the_engine_is_lost():
    async def main() -> None:
        bench = Bench()
        await bench.publish(0)
        seen: list[TokenSegment | TurnTiming] = []

        async def read() -> None:
            async for item in bench.engine.generate(bench.request(), 1e6):
                seen.append(item)  # noqa: PERF401

        running = asyncio.create_task(read())
        await asyncio.sleep(3)
        await bench.publish(1)
        await asyncio.sleep(3)
        bench.engine.crash()
        with pytest.raises(InferenceError):
            await running
        (piece,) = seen
        assert isinstance(piece, TokenSegment)
        assert (len(piece), piece.finish) == (3, None)

    run_virtual(main())


def test_weights_that_are_missing_damaged_or_of_another_version_are_not_staged():
    async def main() -> None:
        bench = Bench()
        address = bench.shelf.put(SimulatedWeights(POLICY, 1, "", "p"))
        with pytest.raises(InferenceError, match="those of policy@1"):
            await bench.engine.stage(PolicyRef(POLICY, 2), address, 1.0)
        with pytest.raises(InferenceError, match="cannot be loaded"):
            await bench.engine.stage(PolicyRef(POLICY, 1), type(address)("0" * 64), 1.0)
        bench.shelf.damage(address)
        with pytest.raises(InferenceError, match="cannot be loaded"):
            await bench.engine.stage(PolicyRef(POLICY, 1), address, 1.0)

    run_virtual(main())


def test_two_contents_of_one_version_are_refused_and_versions_only_rise():
    async def main() -> None:
        bench = Bench()
        await bench.publish(3)
        other = bench.shelf.put(SimulatedWeights(POLICY, 3, "", "another plan"))
        with pytest.raises(InferenceError, match="other contents"):
            await bench.engine.stage(PolicyRef(POLICY, 3), other, 1.0)
        with pytest.raises(InferenceError, match="older than version 3"):
            await bench.publish(2)
        again = await bench.engine.activate(PolicyRef(POLICY, 3), frozenset(), 1.0)
        assert (again.pause_s, again.rebuilt_tokens) == (0.0, 0)

    run_virtual(main())


def test_a_version_is_unloaded_once_nobody_keeps_it_and_nothing_runs_on_it():
    async def main() -> None:
        bench = Bench()
        await bench.publish(0)
        pinned = asyncio.create_task(collect(bench.engine, bench.request(0, pin_version=0)))
        await asyncio.sleep(1)
        await bench.publish(1)
        await pinned
        await bench.publish(2, keep=[1])
        ids = [np.arange(5, dtype=np.int32)]
        for version in (1, 2):
            assert len(await bench.engine.score(ids, version, 1.0)) == 1
        with pytest.raises(InferenceError, match="neither held nor staged"):
            await bench.engine.score(ids, 0, 1.0)

    run_virtual(main())


def test_engine_and_trainer_agree_on_the_canary_exactly_when_they_hold_the_same_weights():
    async def main() -> None:
        bench = Bench()
        trainer = SimulatedTrainer(TrainerCost(), bench.shelf, policy_id=POLICY, seed=7, read=lambda address: b"")
        ids = [np.arange(9, dtype=np.int32), np.arange(4, dtype=np.int32)]
        await bench.engine.stage(PolicyRef(POLICY, 0), trainer.weights, 1.0)
        scored = await bench.engine.score(ids, 0, 1.0)
        expected = as_float32((await trainer.canary(ids, 1.0)).logprobs)
        assert np.array_equal(np.concatenate([as_float32(item) for item in scored]), expected)
        assert len(expected) == 8 + 3
        stale = bench.shelf.put(SimulatedWeights(POLICY, 1, trainer.weights, "plan"))
        await bench.engine.stage(PolicyRef(POLICY, 1), stale, 1.0)
        other = as_float32((await bench.engine.score(ids, 1, 1.0))[0])
        assert np.abs(other - expected[:8]).max() > 1e-3

    run_virtual(main())
