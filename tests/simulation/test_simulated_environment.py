import asyncio

import pytest

from headrace.errors import EnvironmentFault, Outcome
from headrace.ports import Handle
from headrace.records.action import Action, EffectClass
from headrace.records.execution import ExecutionStatus, IncarnationLost, Lease, Receipt
from headrace.records.ids import ActionId, EpisodeId, GroupId, LeaseToken
from headrace.records.terminal import Failure, Success
from headrace.simulation.environment import SimulatedEnvironment
from headrace.simulation.harness import TOOL
from headrace.simulation.laws import Constant
from headrace.simulation.loop import run_virtual
from headrace.simulation.tasks import SimulatedTasks
from headrace.simulation.workload import Draws, Stratum, Workload

EPISODE = EpisodeId(GroupId("train", 0), 0, 0)


def now() -> float:
    return asyncio.get_running_loop().time()


def lease(token: int = 1) -> Lease:
    return Lease(LeaseToken(token), 1e9)


def action(step: int = 0, episode: EpisodeId = EPISODE, arguments: str = "{}") -> Action:
    return Action(ActionId(episode, step, 0), TOOL.name, arguments)


def bench(effect: EffectClass = EffectClass.PURE, num_slots: int | None = None, success: float = 1.0, **options):
    options = {"tool_s": Constant(value=2.0), "open_s": Constant(value=1.0), **options}
    workload = Workload(name="w", tokens=Constant(value=1.0), strata=(Stratum(name="all", success=success),), **options)
    draws = Draws(workload, 7)
    return SimulatedEnvironment(draws, effect=effect, num_slots=num_slots), SimulatedTasks(draws).task(0)


def test_opening_and_acting_take_the_drawn_time_and_are_metered():
    async def main() -> None:
        environment, task = bench(tool_cpu_share=0.5)
        handle = await environment.open(task, EPISODE, lease(), 10)
        assert now() == 1.0
        receipt = await environment.execute(handle, action(), lease(), 10)
        assert now() == 3.0
        assert receipt.status is ExecutionStatus.OK
        assert (receipt.metering.wall_s, receipt.metering.cpu_s) == (2.0, 1.0)
        await environment.close(handle)
        await environment.close(handle)
        assert environment.num_open == 0

    run_virtual(main())


def test_an_action_runs_once_however_often_and_however_soon_it_is_asked_for():
    async def main() -> None:
        environment, task = bench()
        handle = await environment.open(task, EPISODE, lease(), 10)
        first, second = await asyncio.gather(
            environment.execute(handle, action(), lease(), 10), environment.execute(handle, action(), lease(), 10)
        )
        assert first is second
        assert await environment.execute(handle, action(), lease(2), 10) is first
        assert environment.effects[action().id] == 1
        with pytest.raises(EnvironmentFault, match="other arguments"):
            await environment.execute(handle, action(arguments='{"x":1}'), lease(2), 10)

    run_virtual(main())


def test_a_caller_that_gives_up_does_not_stop_the_action_and_a_probe_waits_for_it():
    async def main() -> None:
        environment, task = bench()
        handle = await environment.open(task, EPISODE, lease(), 10)
        caller = asyncio.create_task(environment.execute(handle, action(), lease(), 10))
        await asyncio.sleep(0.5)
        caller.cancel()
        with pytest.raises(EnvironmentFault, match="still running"):
            await environment.probe(handle, action().id, 1.0)
        receipt = await environment.probe(handle, action().id, 10)
        assert isinstance(receipt, Receipt)
        assert now() == 3.0
        assert await environment.probe(handle, action(1).id, 10) is None

    run_virtual(main())


def test_a_tool_beyond_its_deadline_is_a_receipt_and_no_fault():
    async def main() -> None:
        environment, task = bench()
        handle = await environment.open(task, EPISODE, lease(), 10)
        receipt = await environment.execute(handle, action(), lease(), 0.7)
        assert receipt.status is ExecutionStatus.TIMEOUT
        assert now() == pytest.approx(1.7)

    run_virtual(main())


def test_actions_wait_for_a_slot_in_order_and_are_rejected_when_none_comes_free_in_time():
    async def main() -> None:
        environment, task = bench(num_slots=1)
        episodes = [EpisodeId(GroupId("train", 0), member, 0) for member in range(3)]
        handles = [await environment.open(task, episode, lease(), 10) for episode in episodes]
        begin_s = now()
        ends: dict[int, float] = {}

        async def run(member: int, timeout_s: float) -> Receipt:
            try:
                return await environment.execute(handles[member], action(0, episodes[member]), lease(), timeout_s)
            finally:
                ends[member] = now() - begin_s

        results = await asyncio.gather(run(0, 10), run(1, 10), run(2, 3), return_exceptions=True)
        assert ends == {0: 2.0, 1: 4.0, 2: 3.0}
        assert isinstance(results[2], EnvironmentFault)
        assert results[2].outcome is Outcome.REJECTED
        assert environment.effects[action(0, episodes[2]).id] == 0

    run_virtual(main())


def test_an_older_lease_is_fenced_and_runs_nothing():
    async def main() -> None:
        environment, task = bench()
        handle = await environment.open(task, EPISODE, lease(5), 10)
        for call in (
            environment.execute(handle, action(), lease(4), 10),
            environment.open(task, EPISODE, lease(4), 10),
        ):
            with pytest.raises(EnvironmentFault, match="fenced") as caught:
                await call
            assert caught.value.outcome is Outcome.REJECTED
        assert not environment.effects

    run_virtual(main())


def test_an_owner_that_is_overtaken_while_it_opens_gets_nothing():
    async def main() -> None:
        environment, task = bench()
        slow = asyncio.create_task(environment.open(task, EPISODE, lease(1), 10))
        await asyncio.sleep(0.5)
        handle = await environment.open(task, EPISODE, lease(2), 10)
        with pytest.raises(EnvironmentFault, match="fenced"):
            await slow
        await environment.execute(handle, action(), lease(2), 10)

    run_virtual(main())


def test_opening_again_ends_the_old_environment():
    async def main() -> None:
        environment, task = bench()
        old = await environment.open(task, EPISODE, lease(), 10)
        await environment.execute(old, action(), lease(), 10)
        new = await environment.open(task, EPISODE, lease(2), 10)
        assert await environment.probe(new, action().id, 10) is None
        answer = await environment.probe(old, action().id, 10)
        assert answer == IncarnationLost(old.incarnation, new.incarnation)
        await environment.close(old)
        assert environment.num_open == 1

    run_virtual(main())


def test_a_crash_loses_the_running_action_and_a_probe_says_so():
    async def main() -> None:
        environment, task = bench()
        handle = await environment.open(task, EPISODE, lease(), 10)
        running = asyncio.create_task(environment.execute(handle, action(), lease(), 10))
        await asyncio.sleep(1)
        environment.crash()
        with pytest.raises(EnvironmentFault, match="crashed") as caught:
            await running
        assert caught.value.outcome is Outcome.LOST
        assert now() == 2.0
        assert isinstance(await environment.probe(handle, action().id, 10), IncarnationLost)
        with pytest.raises(EnvironmentFault, match="nothing is open") as caught:
            await environment.execute(handle, action(), lease(), 10)
        assert caught.value.outcome is Outcome.REJECTED
        assert environment.num_open == 0

    run_virtual(main())


def test_a_snapshot_survives_a_crash_with_the_receipts_that_it_holds():
    async def main() -> None:
        environment, task = bench(EffectClass.SNAPSHOT)
        handle = await environment.open(task, EPISODE, lease(), 10)
        empty = await environment.snapshot(handle, 10)
        first = await environment.execute(handle, action(0), lease(), 10)
        revision = await environment.snapshot(handle, 10)
        assert revision == await environment.snapshot(handle, 10) == first.revision != empty
        assert revision is not None
        await environment.execute(handle, action(1), lease(), 10)
        environment.crash()
        restored = await environment.restore(handle, revision, 10)
        assert await environment.execute(restored, action(0), lease(), 10) == first
        again = await environment.execute(restored, action(1), lease(), 10)
        assert environment.effects == {action(0).id: 1, action(1).id: 2}
        assert again.revision == await environment.snapshot(restored, 10)
        with pytest.raises(EnvironmentFault, match="no revision"):
            await environment.restore(restored, type(revision)("0" * 64), 10)

    run_virtual(main())


@pytest.mark.parametrize("effect", [EffectClass.RESETTABLE, EffectClass.EXTERNAL])
def test_an_environment_that_keeps_no_revisions_has_no_snapshot(effect: EffectClass):
    async def main() -> None:
        environment, task = bench(effect)
        handle = await environment.open(task, EPISODE, lease(), 10)
        assert await environment.snapshot(handle, 10) is None
        assert (await environment.execute(handle, action(), lease(), 10)).revision is None

    run_virtual(main())


def test_a_lost_answer_is_found_by_a_probe_and_was_run_once():
    async def main() -> None:
        environment, task = bench(tool_failure=1.0)
        handle = await environment.open(task, EPISODE, lease(), 10)
        with pytest.raises(EnvironmentFault, match="lost on its way") as caught:
            await environment.execute(handle, action(), lease(), 10)
        assert caught.value.outcome is Outcome.LOST
        receipt = await environment.probe(handle, action().id, 10)
        assert receipt is await environment.execute(handle, action(), lease(), 10)
        assert environment.effects[action().id] == 1

    run_virtual(main())


def test_what_the_policy_causes_is_a_receipt_and_what_the_platform_causes_a_fault():
    async def main() -> None:
        environment, task = bench(tool_error=1.0)
        handle = await environment.open(task, EPISODE, lease(), 10)
        assert (await environment.execute(handle, action(), lease(), 10)).status is ExecutionStatus.TOOL_ERROR
        unknown = Action(ActionId(EPISODE, 1, 0), "no_such_tool", "{}")
        receipt = await environment.execute(handle, unknown, lease(), 10)
        assert (receipt.status, receipt.output) == (ExecutionStatus.TOOL_ERROR, b"error: unknown tool")
        broken, task = bench(open_failure=1.0)
        with pytest.raises(EnvironmentFault, match="could not be created") as caught:
            await broken.open(task, EPISODE, lease(), 10)
        assert caught.value.outcome is Outcome.REJECTED
        with pytest.raises(EnvironmentFault, match="not open in") as caught:
            await broken.open(task, EPISODE, lease(), 0.5)
        assert caught.value.outcome is Outcome.LOST

    run_virtual(main())


def test_the_claim_follows_the_draw_and_nothing_is_claimed_without_an_answer():
    async def main() -> None:
        for success, expected in ((1.0, Success()), (0.0, Failure("not solved"))):
            environment, task = bench(success=success)
            handle = await environment.open(task, EPISODE, lease(), 10)
            assert await environment.claim(handle, "answer", 10) == expected
            assert await environment.claim(handle, " \n", 10) == Failure("no answer")
        with pytest.raises(EnvironmentFault):
            await environment.claim(Handle(EPISODE, "another life"), "answer", 10)

    run_virtual(main())
