import asyncio
import gc
import itertools
import threading
import time

import pytest

from headrace.simulation.loop import Deadlock, Livelock, OutOfTime, RealTimeRefused, VirtualLoop, run_virtual


def now() -> float:
    return asyncio.get_running_loop().time()


def test_time_starts_at_zero_and_a_sleep_of_a_million_seconds_takes_none():
    async def main() -> tuple[float, float]:
        start = now()
        await asyncio.sleep(1e6)
        return start, now()

    started = time.perf_counter()
    assert run_virtual(main()) == (0.0, 1e6)
    assert time.perf_counter() - started < 1.0


def test_time_does_not_advance_while_something_is_ready():
    async def main() -> tuple[float, int]:
        timer = asyncio.create_task(asyncio.sleep(1e-9))
        turns = 0
        while turns < 1000:
            await asyncio.sleep(0)
            turns += 1
            assert not timer.done()
        spun_until = now()
        await timer
        return spun_until, turns

    assert run_virtual(main()) == (0.0, 1000)


def test_timers_of_one_nanosecond_fire_by_birth_and_others_by_time():
    fired: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(2.0, fired.append, "2 s, first")
        loop.call_at(1.0 + 1e-12, fired.append, "1 s, first")
        loop.call_at(1.0, fired.append, "1 s, second: the same nanosecond, born later")
        loop.call_at(2.0, fired.append, "2 s, second")
        loop.call_at(1.0 - 1e-8, fired.append, "before 1 s")
        await asyncio.sleep(3)

    run_virtual(main())
    assert fired == [
        "before 1 s",
        "1 s, first",
        "1 s, second: the same nanosecond, born later",
        "2 s, first",
        "2 s, second",
    ]


def test_a_timer_in_the_past_fires_now_and_time_never_goes_back():
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(5)
        seen: list[float] = []
        loop.call_at(1.0, lambda: seen.append(loop.time()))
        loop.call_later(-3.0, lambda: seen.append(loop.time()))
        await asyncio.sleep(1)
        return [*seen, now()]

    assert run_virtual(main()) == [5.0, 5.0, 6.0]


def test_a_cancelled_timer_never_fires_and_many_are_swept_out():
    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        for _ in range(10_000):
            loop.call_later(10, pytest.fail, "a cancelled timer fired").cancel()
        left = len(loop._timers)
        await asyncio.sleep(20)
        return left

    assert run_virtual(main()) < 1000


def test_the_primitives_of_asyncio_work():
    async def producer(queue: "asyncio.Queue[int]") -> None:
        for item in range(5):
            await asyncio.sleep(1)
            await queue.put(item)

    async def main() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
        async with asyncio.TaskGroup() as group:
            group.create_task(producer(queue))
            assert [await queue.get() for _ in range(5)] == list(range(5))
        assert now() == 5.0

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await asyncio.sleep(10)
        assert now() == 8.0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 2)
        assert now() == 10.0

        semaphore, running, most = asyncio.Semaphore(3), 0, 0

        async def limited() -> None:
            nonlocal running, most
            async with semaphore:
                running += 1
                most = max(most, running)
                await asyncio.sleep(1)
                running -= 1

        await asyncio.gather(*(limited() for _ in range(9)))
        assert (most, now()) == (3, 13.0)

        condition, ready = asyncio.Condition(), False

        async def waiter() -> float:
            async with condition:
                await condition.wait_for(lambda: ready)
            return now()

        waiters = [asyncio.create_task(waiter()) for _ in range(3)]
        await asyncio.sleep(4)
        async with condition:
            ready = True
            condition.notify_all()
        assert await asyncio.gather(*waiters) == [17.0] * 3

    run_virtual(main())


def test_a_deadlock_names_every_waiting_task_and_what_it_awaits_and_since_when():
    async def take(queue: "asyncio.Queue[int]") -> int:
        await asyncio.sleep(2.5)
        return await queue.get()

    async def main() -> None:
        taker = asyncio.create_task(take(asyncio.Queue()), name="taker")
        await asyncio.gather(taker)

    with pytest.raises(Deadlock) as caught:
        run_virtual(main())
    by_name = {task.name: task for task in caught.value.waiting}
    assert set(by_name) == {"main", "taker"}
    assert by_name["taker"].since_s == 2.5
    assert by_name["main"].since_s == 0.0
    assert "take" in by_name["taker"].places[0]
    assert any("queues.py" in place for place in by_name["taker"].places)
    assert by_name["main"].awaits == "1 of 1 gathered (taker)"
    assert caught.value.time_s == 2.5
    for piece in ("taker", "2.5 s", "test_loop.py"):
        assert piece in str(caught.value)


def test_a_deadlock_of_thousands_of_tasks_still_has_a_short_message():
    async def main() -> None:
        await asyncio.gather(*(asyncio.Event().wait() for _ in range(3000)))

    with pytest.raises(Deadlock) as caught:
        run_virtual(main())
    assert len(caught.value.waiting) == 3001
    assert len(str(caught.value)) < 40_000


def test_tasks_that_keep_one_another_ready_for_ever_are_a_livelock():
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, lambda: None)
        for _ in itertools.count():
            await asyncio.sleep(0)

    loop = VirtualLoop(max_rounds=1000)
    with pytest.raises(Livelock):
        loop.run_until_complete(main())
    loop.wind_down()


def test_a_run_beyond_its_time_is_stopped_with_the_tasks_that_wait():
    async def main() -> None:
        await asyncio.sleep(11)

    with pytest.raises(OutOfTime) as caught:
        run_virtual(main(), max_time_s=10)
    assert [task.name for task in caught.value.waiting] == ["main"]


def test_an_exception_in_a_callback_is_raised_and_not_logged_away():
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, lambda: 1 // 0)
        await asyncio.sleep(10)

    with pytest.raises(ZeroDivisionError):
        run_virtual(main())


@pytest.mark.parametrize("is_kept", [False, True])
def test_an_error_in_a_task_that_nobody_awaits_is_raised_at_the_end(is_kept: bool):
    kept: list[object] = []

    async def fail() -> None:
        raise LookupError("nobody listens")

    async def main() -> None:
        task = asyncio.create_task(fail())
        if is_kept:
            kept.append(task)
        del task
        await asyncio.sleep(1)
        gc.collect()

    with pytest.raises(LookupError):
        run_virtual(main())


def test_leftover_tasks_are_cancelled_and_awaited_and_generators_closed_in_order():
    closed: list[str] = []

    async def numbers(name: str):
        try:
            for number in itertools.count():
                yield number
        finally:
            await asyncio.sleep(1)
            closed.append(name)

    async def leftover() -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            await asyncio.sleep(3)
            closed.append("task")

    generators = [numbers("first"), numbers("second")]
    left: list[asyncio.Task[None]] = []

    async def main() -> str:
        left.append(asyncio.create_task(leftover()))
        for generator in generators:
            assert await anext(generator) == 0
        await asyncio.sleep(1)
        return "done"

    assert run_virtual(main()) == "done"
    assert closed == ["task", "first", "second"]


def test_what_would_bring_in_real_time_is_refused():
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(RealTimeRefused, match="run_in_executor"):
            await asyncio.to_thread(time.sleep, 0)
        with pytest.raises(RealTimeRefused, match="create_connection"):
            await asyncio.open_connection("localhost", 1)
        with pytest.raises(RealTimeRefused, match="subprocess_exec"):
            await asyncio.create_subprocess_exec("true")
        with pytest.raises(RealTimeRefused, match="add_signal_handler"):
            loop.add_signal_handler(2, lambda: None)
        with pytest.raises(RealTimeRefused, match="add_reader"):
            loop.add_reader(0, lambda: None)

        refused: list[BaseException] = []

        def from_thread() -> None:
            try:
                loop.call_soon_threadsafe(lambda: None)
            except RealTimeRefused as error:
                refused.append(error)

        thread = threading.Thread(target=from_thread)
        thread.start()
        thread.join()
        assert len(refused) == 1

    run_virtual(main())


@pytest.mark.slow
def test_a_hundred_thousand_sleeping_tasks_are_feasible():
    async def main() -> float:
        await asyncio.gather(*(asyncio.sleep(index % 1000) for index in range(100_000)))
        return now()

    started = time.perf_counter()
    assert run_virtual(main()) == 999.0
    assert time.perf_counter() - started < 60.0


def test_one_loop_does_not_run_inside_another():
    async def inner() -> None:
        await asyncio.sleep(0)

    async def main() -> None:
        coroutine = inner()
        loop = VirtualLoop()
        task = loop.create_task(coroutine)
        with pytest.raises(RuntimeError, match="while an event loop is running"):
            loop.run_until_complete(task)
        coroutine.close()
        loop.close()

    run_virtual(main())
