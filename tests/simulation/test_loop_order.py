"""The order in which the virtual loop runs what is ready: the same for one seed, another for another."""

import asyncio
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.simulation.loop import run_virtual


def now() -> float:
    return asyncio.get_running_loop().time()


async def _busy(seed_names: list[str], trace: list[str]) -> None:
    """Sets of tasks, ties between timers, a task group that is cancelled, `wait` and `as_completed`."""

    async def work(name: str, delay_s: float) -> str:
        await asyncio.sleep(delay_s)
        trace.append(f"{now()} {name} {asyncio.current_task().get_name()}")  # type: ignore[union-attr]
        await asyncio.sleep(0)
        return name

    tasks = {asyncio.create_task(work(name, (index * 7) % 3)) for index, name in enumerate(seed_names)}
    while tasks:
        done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        trace.extend(f"{now()} done {task.result()}" for task in done)
    for first in asyncio.as_completed([asyncio.create_task(work(f"c{index}", 1)) for index in range(10)]):
        trace.append(await first)  # noqa: PERF401
    try:
        async with asyncio.TaskGroup() as group:
            for index in range(10):
                group.create_task(_until_cancelled(f"g{index}", trace))
            await asyncio.sleep(1)
            raise KeyError("stop")
    except* KeyError:
        trace.append(f"{now()} stopped")


async def _until_cancelled(name: str, trace: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        trace.append(f"{now()} cancelled {name}")


def _trace(shuffle_seed: int | None) -> str:
    trace: list[str] = []
    run_virtual(_busy([f"t{index}" for index in range(40)], trace), shuffle_seed=shuffle_seed)
    return hashlib.sha256("\n".join(trace).encode()).hexdigest()


@pytest.mark.parametrize("shuffle_seed", [None, 3])
def test_the_same_seed_gives_the_same_trace_in_processes_with_other_hash_seeds(shuffle_seed: int | None):
    code = (
        f"from tests.simulation.test_loop_order import _trace; ballast = bytearray({{}}); print(_trace({shuffle_seed}))"
    )
    traces = {
        subprocess.run(
            [sys.executable, "-c", code.format(size)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for size, hash_seed in ((1, "1"), (123_457, "2"))
    }
    assert traces == {_trace(shuffle_seed)}


def test_different_shuffle_seeds_give_different_traces():
    assert len({_trace(seed) for seed in range(8)}) == 8


def test_exploring_shuffles_finds_a_race_that_first_in_first_out_hides():
    async def main() -> int:
        balance = 0

        async def deposit() -> None:
            nonlocal balance
            seen = balance
            await asyncio.sleep(0)
            balance = seen + 1

        first = asyncio.create_task(deposit())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.gather(first, asyncio.create_task(deposit()))
        return balance

    assert run_virtual(main()) == 2
    found = {seed for seed in range(50) if run_virtual(main(), shuffle_seed=seed) == 1}
    assert found
    again = {seed for seed in range(50) if run_virtual(main(), shuffle_seed=seed) == 1}
    assert again == found


def test_a_shuffled_loop_still_hands_out_each_item_of_a_queue_once():
    async def main() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        taken: list[int] = []

        async def take() -> None:
            for _ in range(5):
                taken.append(await queue.get())  # noqa: PERF401

        takers = [asyncio.create_task(take()) for _ in range(4)]
        for item in range(20):
            queue.put_nowait(item)
            await asyncio.sleep(0)
        await asyncio.gather(*takers)
        return taken

    for seed in range(20):
        assert sorted(run_virtual(main(), shuffle_seed=seed)) == list(range(20))
