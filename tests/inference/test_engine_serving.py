"""The engine behind the port: inline under virtual time, and in a child process that may die."""

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from engine_case import Result, make_core, rescoring_error, some_ids
from tiny_policy import POLICY, PolicyFolder, prompt, request

from headrace.errors import InferenceError, Outcome
from headrace.inference.child import ChildInference
from headrace.inference.core import EngineCore
from headrace.inference.inline import InlineInference
from headrace.inference.options import EngineOptions
from headrace.inference.turns import StepWork
from headrace.ports import Inference, TurnTiming
from headrace.processes.child import Child
from headrace.records.ids import PolicyRef
from headrace.records.segment import GenerateRequest, TokenSegment
from headrace.simulation.loop import run_virtual

HERE = Path(__file__).parent
TIMEOUT_S = 60.0
STEP_S = 0.01


async def turn(
    inference: Inference, item: GenerateRequest, timeout_s: float = 1e6
) -> tuple[list[TokenSegment], TurnTiming]:
    items = [found async for found in inference.generate(item, timeout_s)]
    timing = items.pop()
    assert isinstance(timing, TurnTiming)
    return [found for found in items if isinstance(found, TokenSegment)], timing


def by_rows(work: StepWork) -> float:
    return STEP_S if work.decode_rows or work.prefill_tokens else 0.0


async def virtual_run(folder: PolicyFolder, **options: object) -> str:
    """Hash of what a small run with tool waits and a swap gave, times included."""
    loop = asyncio.get_running_loop()
    settings = {"slots": 4, "context": 128, "prefill_chunk": 16, "is_recorded": False, **options}
    core = EngineCore(EngineOptions(**settings), folder.path, folder.weights_path, loop.time)
    inference = InlineInference(core, by_rows)
    await inference.stage(PolicyRef(POLICY, 0), folder.publish(0), TIMEOUT_S)
    await inference.activate(PolicyRef(POLICY, 0), frozenset(), TIMEOUT_S)
    digest = hashlib.sha256()

    async def episode(index: int) -> list[bytes]:
        ids, found = list(some_ids(10 + index % 3, index % 3)), []
        for step in range(3):
            segments, timing = await turn(inference, request(f"e{index}/{step}", prompt(*ids), max_tokens=6 + index))
            ids += [int(token) for segment in segments for token in segment.ids_T]
            found += [msgspec.msgpack.encode((segments, timing)), str(loop.time()).encode()]
            await asyncio.sleep(0.007 * index)
        return found

    async def publisher() -> None:
        await asyncio.sleep(0.15)
        await inference.stage(PolicyRef(POLICY, 1), folder.publish(1), TIMEOUT_S)
        await inference.activate(PolicyRef(POLICY, 1), frozenset(), TIMEOUT_S)

    results = await asyncio.gather(*(episode(index) for index in range(6)), publisher())
    for found in results[:-1]:
        for part in found or []:
            digest.update(part)
    await inference.close()
    return digest.hexdigest()


@pytest.mark.parametrize("deterministic", [False, True])
def test_two_virtual_runs_agree_in_every_byte_and_instant(folder: PolicyFolder, deterministic: bool) -> None:
    first = run_virtual(virtual_run(folder, deterministic=deterministic))
    assert first == run_virtual(virtual_run(folder, deterministic=deterministic))
    assert first != run_virtual(virtual_run(folder, deterministic=deterministic, slots=2))


@pytest.mark.parametrize("on_swap", ["rebuild", "keep_kv"])
def test_whichever_of_a_swap_and_a_reply_comes_first_the_stamp_is_who_sampled(
    folder: PolicyFolder, on_swap: str
) -> None:
    """The swap falls on the instant of the last step; only the order of ready callbacks decides which sees the other."""

    async def scenario() -> tuple[int, ...]:
        loop = asyncio.get_running_loop()
        core = make_core(folder, clock=loop.time, on_swap=on_swap)
        core.stage(PolicyRef(POLICY, 1), folder.publish(1))
        inference = InlineInference(core, by_rows)

        async def swap() -> None:
            await asyncio.sleep(3 * STEP_S)
            await inference.activate(PolicyRef(POLICY, 1), frozenset(), TIMEOUT_S)

        ids = some_ids(9)
        first = request("e/0", prompt(*ids), max_tokens=5)
        (segments, timing), _ = await asyncio.gather(turn(inference, first), swap())
        result = Result(segments, timing)
        last = result.versions[-1]
        (after, _) = await turn(
            inference, request("e/1", (*first.prefix, *segments, *prompt(7)), max_tokens=2, min_version=last)
        )
        for found, prefix in ((result, ids), (Result(after), [*ids, *result.ids, 7])):
            exact = [item.context_version_min == item.policy.version for item in found.segments if item.policy]
            if all(exact):
                assert rescoring_error(folder, prefix, found) < 2e-5
            assert found.versions == sorted(found.versions)
        assert after[0].policy is not None and after[0].policy.version == 1 >= last
        await inference.close()
        return tuple(result.versions)

    orders = {run_virtual(scenario(), shuffle_seed=seed) for seed in range(24)}
    assert orders == {(0,), (0, 1)}


def test_virtual_time_is_the_charged_work_and_nothing_else(folder: PolicyFolder) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        core = make_core(folder, clock=loop.time)
        inference = InlineInference(core, by_rows)
        _, timing = await turn(inference, request("e/0", prompt(1, 2, 3), max_tokens=10))
        # The first step samples two tokens: from the prefix, and by decoding once.
        assert timing == TurnTiming("e/0", 0.0, pytest.approx(9 * STEP_S), 0)
        assert loop.time() == pytest.approx(9 * STEP_S)
        await inference.close()

    run_virtual(scenario())


def test_a_deadline_interrupts_the_request_and_frees_its_slot(folder: PolicyFolder) -> None:
    async def scenario() -> None:
        core = make_core(folder, slots=1, clock=asyncio.get_running_loop().time)
        inference = InlineInference(core, by_rows)
        with pytest.raises(InferenceError, match=r"not finished within 0.1 s") as error:
            await turn(inference, request("e/0", prompt(1), max_tokens=100), timeout_s=0.1)
        assert error.value.outcome is Outcome.LOST
        assert core.is_idle
        await turn(inference, request("e/0", prompt(1), max_tokens=4))
        await inference.close()

    run_virtual(scenario())


def test_a_closed_inline_engine_ends_its_requests_as_lost(folder: PolicyFolder) -> None:
    async def scenario() -> None:
        inference = InlineInference(make_core(folder, clock=asyncio.get_running_loop().time), by_rows)
        running = asyncio.create_task(turn(inference, request("e/0", prompt(1), max_tokens=100)))
        await asyncio.sleep(3.5 * STEP_S)
        await inference.close()
        with pytest.raises(InferenceError, match="closed"):
            await running

    run_virtual(scenario())


@contextlib.asynccontextmanager
async def engine_child(folder: PolicyFolder) -> AsyncIterator[tuple[Child, ChildInference]]:
    options = EngineOptions(slots=4, context=128, prefill_chunk=16)
    argv = [sys.executable, str(HERE / "engine_child.py"), str(folder.path), msgspec.json.encode(options).decode()]
    child = await Child.start("engine", argv, start_timeout_s=TIMEOUT_S, env={"PYTHONPATH": str(HERE.parents[1])})
    inference = ChildInference(child)
    await inference.stage(PolicyRef(POLICY, 0), folder.publish(0), TIMEOUT_S)
    await inference.activate(PolicyRef(POLICY, 0), frozenset(), TIMEOUT_S)
    try:
        yield child, inference
    finally:
        await child.close()


@pytest.mark.slow
def test_a_child_gives_the_same_tokens_as_the_core_and_accounts_for_its_time(folder: PolicyFolder) -> None:
    async def scenario() -> None:
        async with engine_child(folder) as (_, inference):
            ids = some_ids(30)
            items = [request(f"e{index}/0", prompt(*ids[: 10 + index]), max_tokens=9) for index in range(4)]
            turns = await asyncio.gather(*(turn(inference, item, TIMEOUT_S) for item in items))
            inline = InlineInference(make_core(folder), lambda work: 0.0)
            for item, (segments, _) in zip(items, turns, strict=True):
                expected, _ = await turn(inline, item, TIMEOUT_S)
                assert [segment.ids for segment in segments] == [segment.ids for segment in expected]
            stats = await inference.stats(TIMEOUT_S)
            assert sum(stats.seconds.values()) == pytest.approx(stats.wall_s, abs=1e-6)
            assert {"idle", "serve", "prefill", "decode", "sync"} <= set(stats.seconds)
            assert stats.counters.turns == 4 and stats.running == stats.waiting == 0
            await inline.close()

    asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_S))


@pytest.mark.slow
def test_a_child_that_dies_loses_every_running_request(folder: PolicyFolder) -> None:
    async def scenario() -> None:
        async with engine_child(folder) as (child, inference):
            items = [request(f"e{index}/0", prompt(1, 2), max_tokens=120) for index in range(3)]
            running = [asyncio.create_task(turn(inference, item, TIMEOUT_S)) for item in items]
            await asyncio.sleep(0)  # they are sent first
            await turn(inference, request("f/0", prompt(1), max_tokens=1), TIMEOUT_S)
            os.kill(child.pid, signal.SIGKILL)
            for ended in await asyncio.gather(*running, return_exceptions=True):
                assert isinstance(ended, InferenceError) and ended.outcome is Outcome.LOST
            with pytest.raises(InferenceError) as error:
                await turn(inference, request("g/0", prompt(1)), TIMEOUT_S)
            assert error.value.outcome is Outcome.REJECTED

    asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_S))


@pytest.mark.slow
def test_a_refused_duplicate_leaves_the_running_request_alone(folder: PolicyFolder) -> None:
    async def scenario() -> None:
        async with engine_child(folder) as (_, inference):
            item = request("e/0", prompt(1, 2), max_tokens=120)
            running = asyncio.create_task(turn(inference, item, TIMEOUT_S))
            await turn(inference, request("f/0", prompt(1), max_tokens=1), TIMEOUT_S)
            duplicate = asyncio.create_task(turn(inference, item, TIMEOUT_S))
            await asyncio.sleep(0)
            duplicate.cancel()
            with contextlib.suppress(asyncio.CancelledError, InferenceError):
                await duplicate
            segments, _ = await running
            assert sum(map(len, segments)) == 120

    asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_S))
