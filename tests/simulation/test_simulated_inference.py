import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from headrace.errors import InferenceError, Outcome
from headrace.ports import Inference, TurnTiming
from headrace.records.arrays import as_float32
from headrace.records.ids import EpisodeId, GroupId, PolicyId, PolicyRef
from headrace.records.segment import FinishReason, GenerateRequest, Sampling, TokenSegment
from headrace.simulation.costs import EngineCost, TrainerCost
from headrace.simulation.device import SharedDevice
from headrace.simulation.harness import SimulatedHarness
from headrace.simulation.inference import SimulatedInference
from headrace.simulation.laws import Constant, LogNormal
from headrace.simulation.loop import run_virtual
from headrace.simulation.tasks import SimulatedTasks
from headrace.simulation.trainer import SimulatedTrainer
from headrace.simulation.weights import SimulatedWeights, WeightShelf
from headrace.simulation.workload import Draws, Stratum, Workload

POLICY = PolicyId("policy")
FLAT = EngineCost(slots=4, decode=((4, 4.0),))
"""One token per second, whatever the load."""


def workload(tokens: float = 10.0, **options) -> Workload:
    return Workload(name="w", tokens=Constant(value=tokens), strata=(Stratum(name="all"),), **options)


class Bench:
    """An engine with version 0 active, and what it needs."""

    def __init__(self, cost: EngineCost = FLAT, load: Workload | None = None, device: SharedDevice | None = None):
        self.draws = Draws(load or workload(), 7)
        self.shelf = WeightShelf()
        self.engine = SimulatedInference(self.draws, cost, self.shelf, policy_id=POLICY, device=device)
        self.harness = SimulatedHarness(self.draws)
        self.tasks = SimulatedTasks(self.draws)

    async def publish(self, version: int, keep: Sequence[int] = ()):
        address = self.shelf.put(SimulatedWeights(POLICY, version, "", "p"))
        await self.engine.stage(PolicyRef(POLICY, version), address, 1e6)
        return await self.engine.activate(PolicyRef(POLICY, version), frozenset(keep), 1e6)

    def request(self, ordinal: int = 0, step: int = 0, **options) -> GenerateRequest:
        fields = {
            "request_id": f"{EpisodeId(GroupId('train', ordinal), 0, 0)}/{step}",
            "prefix": self.harness.open(self.tasks.task(ordinal)),
            "max_tokens": 1 << 20,
            "sampling": Sampling(),
            "stop_ids": self.harness.stop_ids,
            "policy_id": POLICY,
            "min_version": 0,
            "pin_version": None,
            "affinity": f"train.{ordinal}",
            "seed_key": b"\0" * 16,
        }
        return GenerateRequest(**{**fields, **options})


async def collect(
    engine: Inference, request: GenerateRequest, timeout_s: float = 1e6
) -> tuple[list[TokenSegment], TurnTiming]:
    *segments, timing = [item async for item in engine.generate(request, timeout_s)]
    assert isinstance(timing, TurnTiming)
    for segment in segments:
        assert isinstance(segment, TokenSegment)
        segment.check()
    assert all(segment.finish is None for segment in segments[:-1])
    return segments, timing  # type: ignore[return-value]


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
        # 50 tokens of prompt cost 50 * (4 tokens/s) / (100 tokens/s) = 2 tokens of work, then come 10 tokens.
        await asyncio.sleep(5)
        activation = await bench.publish(1)
        assert activation.rebuilt_tokens == 50 + 3
        assert activation.pause_s == pytest.approx(0.5 + 53 / 100)
        segments, timing = await running
        assert [len(segment) for segment in segments] == [3, 7]
        assert timing.preemptions == 1
        assert asyncio.get_running_loop().time() - begin_s == pytest.approx(2 + 10 + activation.pause_s)

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

    assert run_virtual(main()) == pytest.approx([12.0, 10.0, 12.0])


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


def test_generation_pauses_while_the_shared_device_trains():
    async def main() -> None:
        device = SharedDevice(switch_s=0.5)
        bench = Bench(device=device)
        await bench.publish(0)
        running = asyncio.create_task(collect(bench.engine, bench.request()))
        await asyncio.sleep(4)
        async with device.training():
            await asyncio.sleep(20)
        segments, timing = await running
        assert [len(segment) for segment in segments] == [10]
        assert timing.generate_s == pytest.approx(10 + 20 + 2 * 0.5)
        assert device.training_s == pytest.approx(21)

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
