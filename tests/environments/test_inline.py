"""The in-process environment: given durations, and a restart that loses what an executor would lose."""

import asyncio

import pytest

from headrace.environments.inline import InlineEnvironment
from headrace.errors import EnvironmentFault, Outcome
from headrace.records.action import Action
from headrace.records.execution import ExecutionStatus, IncarnationLost, Lease
from headrace.records.ids import ActionId, EpisodeId, GroupId, LeaseToken, Purpose
from headrace.records.task import Budget, Task

TASK = Task("sums", "easy", seed=1, index=0, question="2 + 3?", budget=Budget(), environment="inline")
EPISODE = EpisodeId(GroupId.of(Purpose.TRAIN, 0), 0, 0)
ACTION = Action(ActionId(EPISODE, 0, 0), "calculator", '{"expression":"2 + 3"}')
LEASE = Lease(LeaseToken(1), 1e9)


def test_a_duration_beyond_the_deadline_is_a_timeout_receipt() -> None:
    async def scenario() -> None:
        environment = InlineEnvironment(duration_s=lambda _action: 1e6)
        handle = await environment.open(TASK, EPISODE, LEASE, 1.0)
        receipt = await environment.execute(handle, ACTION, LEASE, 0.01)
        assert receipt.status is ExecutionStatus.TIMEOUT
        assert receipt.metering.wall_s == 0.01

    asyncio.run(scenario())


def test_a_restart_loses_what_is_running_and_a_pure_action_may_run_again_under_its_id() -> None:
    async def scenario() -> None:
        durations = iter([1e6, 0.0])
        environment = InlineEnvironment(duration_s=lambda _action: next(durations))
        handle = await environment.open(TASK, EPISODE, LEASE, 1.0)
        running = asyncio.create_task(environment.execute(handle, ACTION, LEASE, 1e7))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        environment.restart()
        with pytest.raises(EnvironmentFault) as fault:
            await running
        assert fault.value.outcome is Outcome.LOST
        answer = await environment.probe(handle, ACTION.id, 1.0)
        assert answer == IncarnationLost(handle.incarnation, f"{handle.incarnation}+1")
        assert (await environment.execute(handle, ACTION, LEASE, 1.0)).output == b"5"

    asyncio.run(scenario())


def test_closing_an_episode_ends_its_running_action() -> None:
    async def scenario() -> None:
        environment = InlineEnvironment(duration_s=lambda _action: 1e6)
        handle = await environment.open(TASK, EPISODE, LEASE, 1.0)
        running = asyncio.create_task(environment.execute(handle, ACTION, LEASE, 1e7))
        await asyncio.sleep(0)
        await environment.close(handle)
        with pytest.raises(EnvironmentFault, match="closed under it"):
            await running

    asyncio.run(scenario())
