import asyncio

import pytest
from simulation.engine_bench import POLICY, Bench, collect, workload

from headrace.errors import InferenceError, Outcome
from headrace.records.ids import PolicyId, PolicyRef
from headrace.records.segment import FinishReason
from headrace.simulation.costs import EngineCost
from headrace.simulation.device import SharedDevice
from headrace.simulation.laws import Constant, LogNormal
from headrace.simulation.loop import run_virtual
from headrace.simulation.workload import Stratum, Workload


def test_a_turn_has_the_drawn_length_takes_the_drawn_time_and_says_how_it_ended():
    async def main() -> None:
        bench = Bench(load=workload(7.5))
        await bench.publish(0)
        segments, timing = await collect(bench.engine, bench.request())
        assert [len(segment) for segment in segments] == [8]
        assert segments[0].finish is FinishReason.STOP
        assert segments[0].policy == PolicyRef(POLICY, 0)
        assert bench.harness.parse(segments[0].ids_T).status.value == "final"
        assert (timing.wait_s, timing.generate_s) == (0.0, pytest.approx(7.5))
        assert asyncio.get_running_loop().time() == pytest.approx(7.5)
        assert bench.engine.slot_seconds == pytest.approx(7.5)

    run_virtual(main())


def test_the_workload_decides_the_number_of_turns():
    async def main() -> None:
        bench = Bench(load=workload(turns=Constant(value=3.0)))
        await bench.publish(0)
        statuses = []
        for step in range(3):
            segments, _ = await collect(bench.engine, bench.request(step=step))
            statuses.append(bench.harness.parse(segments[-1].ids_T).status.value)
        assert statuses == ["calls", "calls", "final"]

    run_virtual(main())


def test_a_turn_beyond_the_budget_ends_by_length_and_without_a_stop_token():
    async def main() -> None:
        bench = Bench()
        await bench.publish(0)
        segments, timing = await collect(bench.engine, bench.request(max_tokens=4))
        assert [len(segment) for segment in segments] == [4]
        assert segments[0].finish is FinishReason.LENGTH
        assert not set(segments[0].ids_T.tolist()) & set(bench.harness.stop_ids)
        assert timing.generate_s == pytest.approx(4.0)
        exact, _ = await collect(bench.engine, bench.request(max_tokens=10))
        assert exact[0].finish is FinishReason.STOP

    run_virtual(main())


def test_an_interrupted_turn_keeps_its_tokens_and_goes_on_with_the_rest():
    async def main() -> None:
        bench = Bench()
        await bench.publish(0)
        request = bench.request()
        running = asyncio.create_task(collect(bench.engine, request))
        await asyncio.sleep(4.2)
        await bench.engine.interrupt([request.request_id, "train.9.9.9/9"], 1.0)
        segments, _ = await running
        assert [(len(segment), segment.finish) for segment in segments] == [(4, FinishReason.INTERRUPTED)]
        await bench.publish(1)
        rest, timing = await collect(bench.engine, bench.request(prefix=(*request.prefix, *segments), min_version=0))
        assert [(len(segment), segment.finish) for segment in rest] == [(6, FinishReason.STOP)]
        assert timing.generate_s == pytest.approx(6.0)

    run_virtual(main())


def test_an_interrupted_turn_that_still_waits_ends_with_an_empty_segment():
    async def main() -> None:
        bench = Bench(EngineCost(slots=1, decode=((1, 1.0),)))
        await bench.publish(0)
        first = asyncio.create_task(collect(bench.engine, bench.request(0)))
        second = asyncio.create_task(collect(bench.engine, bench.request(1)))
        await asyncio.sleep(1)
        await bench.engine.interrupt([bench.request(1).request_id], 1.0)
        segments, timing = await second
        assert [(len(segment), segment.finish) for segment in segments] == [(0, FinishReason.INTERRUPTED)]
        assert timing.wait_s == pytest.approx(1.0)
        await first
        assert bench.engine.num_active == bench.engine.num_waiting == 0

    run_virtual(main())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_version": 1}, "needs version 1"),
        ({"pin_version": 5}, "not held"),
        ({"policy_id": PolicyId("other")}, "not served here"),
        ({"max_tokens": 0}, "0 tokens"),
        ({"request_id": "what/0"}, "no simulated request"),
    ],
)
def test_a_request_that_cannot_be_served_is_rejected(options, message: str):
    async def main() -> None:
        bench = Bench()
        await bench.publish(0)
        with pytest.raises(InferenceError, match=message) as caught:
            await collect(bench.engine, bench.request(**options))
        assert caught.value.outcome is Outcome.REJECTED
        await collect(bench.engine, bench.request())

    run_virtual(main())


def test_a_repeated_request_that_is_still_running_is_rejected():
    async def main() -> None:
        bench = Bench()
        await bench.publish(0)
        first = asyncio.create_task(collect(bench.engine, bench.request()))
        await asyncio.sleep(1)
        with pytest.raises(InferenceError, match="running already"):
            await collect(bench.engine, bench.request())
        assert len((await first)[0][0]) == 10

    run_virtual(main())


def test_a_turn_that_misses_its_deadline_or_is_cancelled_gives_its_slot_back():
    async def main() -> None:
        bench = Bench(EngineCost(slots=1, decode=((1, 1.0),)))
        await bench.publish(0)
        with pytest.raises(InferenceError, match="not finished in 3") as caught:
            await collect(bench.engine, bench.request(), timeout_s=3.0)
        assert caught.value.outcome is Outcome.LOST
        assert asyncio.get_running_loop().time() == pytest.approx(3.0)
        running = asyncio.create_task(collect(bench.engine, bench.request()))
        await asyncio.sleep(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert bench.engine.num_active == 0
        _, timing = await collect(bench.engine, bench.request())
        assert timing.wait_s == 0.0

    run_virtual(main())


def test_nothing_is_served_before_a_version_is_active_nor_after_a_crash():
    async def main() -> None:
        bench = Bench(EngineCost(slots=1, decode=((1, 1.0),)))
        with pytest.raises(InferenceError, match="proven no version"):
            await collect(bench.engine, bench.request())
        await bench.publish(0)
        running = [asyncio.create_task(collect(bench.engine, bench.request(ordinal))) for ordinal in range(3)]
        await asyncio.sleep(4.5)
        bench.engine.crash()
        for task in running:
            with pytest.raises(InferenceError, match="crashed") as caught:
                await task
            assert caught.value.outcome is Outcome.LOST
        with pytest.raises(InferenceError, match="proven no version"):
            await collect(bench.engine, bench.request())
        with pytest.raises(InferenceError, match="not staged"):
            await bench.engine.activate(PolicyRef(POLICY, 0), frozenset(), 1.0)
        await bench.publish(0)
        await collect(bench.engine, bench.request())

    run_virtual(main())


@pytest.mark.parametrize(
    ("device", "generate_s"),
    [(SharedDevice(switch_s=0.5), 4 + 0.5 + 20 + 0.5 + 6), (SharedDevice(left=0.25), 4 + 20 + 1)],
    ids=["takes turns", "goes on slower"],
)
def test_generation_beside_a_trainer_on_the_same_devices(device: SharedDevice, generate_s: float):
    async def main() -> None:
        bench = Bench(device=device)
        await bench.publish(0)
        running = asyncio.create_task(collect(bench.engine, bench.request()))
        await asyncio.sleep(4)
        async with device.training():
            await asyncio.sleep(20)
        segments, timing = await running
        assert [len(segment) for segment in segments] == [10]
        assert timing.generate_s == pytest.approx(generate_s)
        assert device.training_s == pytest.approx(20 + 2 * device.switch_s)

    run_virtual(main())


def test_every_sampled_token_is_accounted_for():
    async def main() -> None:
        load = Workload(name="w", tokens=LogNormal(mean_uncut=10.0, sigma=1.0), strata=(Stratum(name="all"),))
        bench = Bench(EngineCost(slots=3, decode=((1, 5.0), (3, 9.0))), load)
        await bench.publish(0)
        running = [asyncio.create_task(collect(bench.engine, bench.request(ordinal))) for ordinal in range(40)]
        for version in range(1, 6):
            await asyncio.sleep(5)
            await bench.publish(version)
        total = 0
        for task in running:
            segments, _ = await task
            total += sum(len(segment) for segment in segments)
            versions = [segment.policy.version for segment in segments if segment.policy]
            assert versions == sorted(set(versions))
        assert bench.engine.sampled_tokens == total

    run_virtual(main())
