import asyncio
import itertools

import numpy as np
import pytest

from headrace.scheduling.seniority import AGEING_TURNS, TurnLine
from headrace.simulation.costs import EngineCost
from headrace.simulation.loop import run_virtual
from headrace.simulation.serving import Job, SharedServer


def _by_small_steps(
    arrivals: list[tuple[float, float]], cost: EngineCost, holds: list[tuple[float, float]], step_s: float
) -> list[float]:
    """Departure times by stepping time: another algorithm, good to about a step."""
    left = [work for _, work in arrivals]
    departed = [float("nan")] * len(arrivals)
    active: list[int] = []
    waiting = sorted(range(len(arrivals)), key=lambda job: arrivals[job][0])
    rates = cost.request_rates()
    for tick in itertools.count():
        now_s = tick * step_s
        while waiting and len(active) < cost.slots and arrivals[waiting[0]][0] <= now_s + 1e-12:
            active.append(waiting.pop(0))
        if not active and not waiting:
            return departed
        if any(begin <= now_s < end for begin, end in holds):
            continue
        for job in tuple(active):
            left[job] -= rates[len(active)] * step_s
        for job in [job for job in active if left[job] <= 0.0]:
            departed[job] = now_s + step_s
            active.remove(job)
    raise AssertionError


async def _served(
    arrivals: list[tuple[float, float]], cost: EngineCost, holds: list[tuple[float, float]]
) -> tuple[list[float], float]:
    loop = asyncio.get_running_loop()
    departed = [float("nan")] * len(arrivals)
    jobs = [Job(work=work, context=0, trajectory=str(index)) for index, (_, work) in enumerate(arrivals)]
    number = {job: index for index, job in enumerate(jobs)}

    def leave(job: Job) -> None:
        departed[number[job]] = loop.time()

    server = SharedServer(cost, on_enter=lambda job: None, on_leave=leave)
    for (at_s, _), job in zip(arrivals, jobs, strict=True):
        loop.call_at(at_s, server.submit, job)
    for begin, end in holds:
        loop.call_at(begin, server.hold)
        loop.call_at(end, server.release)
    await asyncio.sleep(1e5)
    return departed, server.slot_seconds


@pytest.mark.parametrize("seed", range(4))
def test_departures_agree_with_a_simulation_by_small_time_steps(seed: int):
    generator = np.random.Generator(np.random.Philox(key=seed))
    arrivals = [
        (float(at), float(work)) for at, work in zip(generator.random(30) * 20, generator.random(30) * 30, strict=True)
    ]
    cost = EngineCost(slots=6, decode=((1, 10.0), (4, 25.0), (6, 27.0)))
    holds = [(3.0, 5.0), (9.5, 10.25)]
    departed, _ = run_virtual(_served(arrivals, cost, holds))
    assert departed == pytest.approx(_by_small_steps(arrivals, cost, holds, 0.002), abs=0.05)


def test_a_rate_independent_of_load_makes_work_seconds_exactly():
    works = [7.25, 0.5, 3.125, 1e4]
    departed, slot_seconds = run_virtual(
        _served([(float(at), work) for at, work in enumerate(works)], EngineCost(slots=4, decode=((4, 4.0),)), [])
    )
    assert departed == pytest.approx([at + work for at, work in enumerate(works)], abs=2e-9)
    assert slot_seconds == pytest.approx(sum(works))


def test_beyond_the_slots_trajectories_of_one_turn_wait_in_order_of_arrival():
    arrivals = [(0.0, 5.0), (0.0, 1.0), (0.1, 1.0), (0.2, 1.0)]
    departed, _ = run_virtual(_served(arrivals, EngineCost(slots=2, decode=((2, 2.0),)), []))
    assert departed == pytest.approx([5.0, 1.0, 2.0, 3.0])


_TURNS, _SHORT, _SLOTS = 20, 64, 4


async def _long_among_short(num_short: int, ageing_turns: int) -> float:
    """Seconds that a trajectory of twenty turns takes beside so many endless sequences of trajectories of one turn."""
    loop, cost = asyncio.get_running_loop(), EngineCost(slots=_SLOTS, decode=((_SLOTS, float(_SLOTS)),))
    names, done, turns = itertools.count(), loop.create_future(), itertools.count(1)

    def leave(job: Job) -> None:
        if job.trajectory != "long":
            server.submit(Job(work=1.0, context=0, trajectory=f"short {next(names)}"))
        elif next(turns) < _TURNS:
            # Its environment takes as long as a turn.
            loop.call_later(1.0, server.submit, Job(work=1.0, context=0, trajectory="long"))
        else:
            done.set_result(loop.time())

    server = SharedServer(cost, on_enter=lambda job: None, on_leave=leave)
    server._waiting = TurnLine(ageing_turns)
    for index in range(num_short):
        # Spread, so that slots come free one by one.
        loop.call_at(index / num_short, server.submit, Job(work=1.0, context=0, trajectory=f"first {index}"))
    loop.call_at(1.0, server.submit, Job(work=1.0, context=0, trajectory="long"))
    ended_s = await done
    return ended_s - 1.0


def test_a_long_trajectory_among_endless_short_ones_takes_at_most_three_times_its_time_alone():
    alone_s = run_virtual(_long_among_short(0, AGEING_TURNS))
    assert run_virtual(_long_among_short(_SHORT, AGEING_TURNS)) <= 3 * alone_s
    assert run_virtual(_long_among_short(_SHORT, ageing_turns=0)) > 6 * alone_s


def test_work_is_conserved_at_the_saturated_rate():
    arrivals = [(0.0, 10.0)] * 64
    departed, _ = run_virtual(_served(arrivals, EngineCost(slots=8, decode=((1, 3.0), (8, 16.0))), []))
    assert max(departed) == pytest.approx(640 / 16.0)


def test_a_long_context_slows_everyone_down():
    async def main(context: int) -> float:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        server = SharedServer(
            EngineCost(slots=2, decode=((1, 1.0),), context_half_tokens=1000.0),
            on_enter=lambda job: None,
            on_leave=lambda job: done.set_result(loop.time()),
        )
        server.submit(Job(work=1.0, context=context, trajectory="a"))
        return await done

    assert run_virtual(main(0)) == pytest.approx(1.0)
    assert run_virtual(main(1000)) == pytest.approx(2.0)
