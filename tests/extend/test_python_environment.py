"""A user's own tools behind the Environment port: what a tool does to an episode, and to nobody else."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import shop_parts

from headrace.config import Config, decode_config
from headrace.errors import ConfigError, EnvironmentFault, Outcome
from headrace.ports import Handle
from headrace.records.action import Action, EffectClass
from headrace.records.execution import ExecutionStatus, IncarnationLost, Lease
from headrace.records.ids import ActionId, EpisodeId, GroupId, LeaseToken, Purpose
from headrace.records.task import Budget, Task
from headrace.records.terminal import Failure, Success
from headrace.runtime.adapters import LocalEnvironment, open_environment

PARTS = str(Path(shop_parts.__file__))
TIMEOUT_S = 20.0
LEASE = Lease(LeaseToken(1), 1e9)


def episode(member: int) -> EpisodeId:
    return EpisodeId(GroupId.of(Purpose.TRAIN, 0), member, 0)


def task(wanted: str = "tea") -> Task:
    parameters = json.dumps({"wanted": wanted})
    return Task("errands", "easy", 0, 0, f"Buy {wanted}.", Budget(), "python", parameters)


def config(name: str, **options: object) -> Config:
    return decode_config(
        {"environment": {"kind": "python", "options": {"file": PARTS, "name": name, **options}}}, "test"
    )


def call(owner: EpisodeId, step: int, tool: str, **arguments: object) -> Action:
    return Action(ActionId(owner, step, 0), tool, json.dumps(arguments))


def run(chosen: Config, scenario: Callable[[LocalEnvironment], Awaitable[None]]) -> None:
    async def body() -> None:
        environment = open_environment(chosen)
        try:
            async with asyncio.timeout(60.0):
                await environment.start()
                await scenario(environment)
        finally:
            await environment.stop()

    asyncio.run(body())


async def opened(environment: LocalEnvironment, member: int = 0, wanted: str = "tea") -> Handle:
    return await environment.open(task(wanted), episode(member), LEASE, TIMEOUT_S)


def test_a_tool_error_is_an_observation_and_a_result_is_text() -> None:
    async def scenario(environment: LocalEnvironment) -> None:
        handle = await opened(environment)
        owner = handle.episode
        good = await environment.execute(handle, call(owner, 0, "divide", dividend=3, divisor=2), LEASE, TIMEOUT_S)
        bad = await environment.execute(handle, call(owner, 1, "divide", dividend=3, divisor=0), LEASE, TIMEOUT_S)
        unfit = await environment.execute(handle, call(owner, 2, "divide", dividend="x", divisor=0), LEASE, TIMEOUT_S)
        slow = await environment.execute(handle, call(owner, 3, "later", text="é"), LEASE, TIMEOUT_S)
        assert (good.status, good.output) == (ExecutionStatus.OK, b"1.5")
        assert (bad.status, bad.output) == (ExecutionStatus.TOOL_ERROR, b"error: divisor is 0")
        assert unfit.status is ExecutionStatus.TOOL_ERROR
        assert b"arguments do not fit divide" in unfit.output
        assert slow.output == "é".encode()
        assert environment.effect is EffectClass.PURE

    run(config("TOOLS", effect="pure"), scenario)


def test_any_other_exception_is_the_infrastructures_and_the_next_call_works() -> None:
    async def scenario(environment: LocalEnvironment) -> None:
        handle = await opened(environment)
        for step, how, told in ((0, "raise", "the database is gone"), (1, "exit", "ended with 3")):
            with pytest.raises(EnvironmentFault, match=told) as raised:
                await environment.execute(handle, call(handle.episode, step, "crash", how=how), LEASE, TIMEOUT_S)
            assert raised.value.outcome is Outcome.LOST
        after = await environment.execute(
            handle, call(handle.episode, 2, "divide", dividend=4, divisor=2), LEASE, TIMEOUT_S
        )
        assert after.output == b"2.0"

    run(config("TOOLS", effect="pure"), scenario)


def test_a_tool_that_hangs_costs_its_own_episode_alone() -> None:
    async def scenario(environment: LocalEnvironment) -> None:
        one, other = await opened(environment, 0), await opened(environment, 1)
        item = {"name": "tea", "count": 2}
        for handle in (one, other):
            await environment.execute(handle, call(handle.episode, 0, "put", item=item), LEASE, TIMEOUT_S)
        hung = await environment.execute(one, call(one.episode, 1, "wait", seconds=600), LEASE, 0.2)
        assert (hung.status, hung.metering.wall_s < 10.0) == (ExecutionStatus.TIMEOUT, True)
        fresh = await environment.execute(one, call(one.episode, 2, "basket"), LEASE, TIMEOUT_S)
        kept = await environment.execute(other, call(other.episode, 2, "basket"), LEASE, TIMEOUT_S)
        assert fresh.output == b"[a fresh environment: what earlier calls did is gone]\n{}"
        assert kept.output == b'{"tea":2}'

    run(config("Shop"), scenario)


def test_each_episode_has_an_instance_whose_state_claims_and_is_handed_over() -> None:
    async def scenario(environment: LocalEnvironment) -> None:
        assert environment.effect is EffectClass.RESETTABLE
        one, other = await opened(environment, 0, "tea"), await opened(environment, 1, "milk")
        put = await environment.execute(one, call(one.episode, 0, "put", item={"name": "tea"}), LEASE, TIMEOUT_S)
        assert put.output == b"1"
        assert await environment.claim(one, "done", TIMEOUT_S) == Success()
        assert isinstance(await environment.claim(other, "done", TIMEOUT_S), Failure)
        assert await environment.artifact(one, TIMEOUT_S) == b'{"tea":1}'
        assert await environment.artifact(other, TIMEOUT_S) == b"{}"

    run(config("Shop"), scenario)


def test_state_that_a_crash_took_is_lost_and_never_run_again() -> None:
    async def scenario(environment: LocalEnvironment) -> None:
        handle = await opened(environment)
        action = call(handle.episode, 0, "crash", how="raise")
        with pytest.raises(EnvironmentFault):
            await environment.execute(handle, action, LEASE, TIMEOUT_S)
        assert isinstance(await environment.probe(handle, action.id, TIMEOUT_S), IncarnationLost)
        with pytest.raises(EnvironmentFault, match="state lost") as raised:
            await environment.execute(handle, call(handle.episode, 1, "later", text="a"), LEASE, TIMEOUT_S)
        assert raised.value.outcome is Outcome.REJECTED

    run(config("TOOLS", effect="external"), scenario)


def children() -> set[str]:
    """Process ids of this process's children."""
    return {pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


def test_no_process_outlives_the_environment() -> None:
    before = children()

    async def scenario(environment: LocalEnvironment) -> None:
        for member in range(3):
            handle = await opened(environment, member)
            await environment.execute(handle, call(handle.episode, 0, "basket"), LEASE, TIMEOUT_S)
        assert len(children() - before) == 1

    run(config("Shop"), scenario)
    assert children() <= before


def test_an_environment_without_a_declared_effect_is_refused_with_the_remedy() -> None:
    async def nothing(_: LocalEnvironment) -> None:
        return

    with pytest.raises(ConfigError, match=r"set environment\.options\.effect"):
        run(config("TOOLS"), nothing)
    with pytest.raises(ConfigError, match="a class and declared pure"):
        run(config("Shop", effect="pure"), nothing)
    with pytest.raises(ConfigError, match="it has"):
        run(config("Stop"), nothing)
