"""The contract of the Environment port, run against every implementation that has a calculator."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import calculator_part
import pytest

from headrace.config import decode_config
from headrace.environments.inline import InlineEnvironment
from headrace.environments.parts.environment import PythonEnvironment
from headrace.environments.sandbox.environment import SandboxEnvironment
from headrace.environments.sandbox.options import SandboxOptions
from headrace.environments.sessions import SessionEnvironment
from headrace.errors import EnvironmentFault, Outcome
from headrace.ports import Environment, Handle
from headrace.records.action import Action, EffectClass
from headrace.records.execution import ExecutionStatus, IncarnationLost, Lease, Receipt
from headrace.records.ids import ActionId, EpisodeId, GroupId, LeaseToken, Purpose
from headrace.records.task import Budget, Task
from headrace.records.terminal import Failure, Success
from headrace.runtime.adapters import open_environment

TIMEOUT_S = 20.0
CALCULATOR_PART = Path(calculator_part.__file__)
TASK = Task("sums", "easy", seed=1, index=0, question="What is 2 + 3?", budget=Budget(), environment="sandbox")
EPISODE = EpisodeId(GroupId.of(Purpose.TRAIN, 4), 1, 0)
OTHER = EpisodeId(GroupId.of(Purpose.TRAIN, 4), 2, 0)


@asynccontextmanager
async def inline() -> AsyncIterator[SessionEnvironment]:
    environment = InlineEnvironment()
    yield environment
    await environment.stop()


@asynccontextmanager
async def sandbox() -> AsyncIterator[SessionEnvironment]:
    environment = SandboxEnvironment(SandboxOptions(tools=("calculator",)))
    try:
        yield environment
    finally:
        await environment.stop()


@asynccontextmanager
async def python() -> AsyncIterator[SessionEnvironment]:
    options = {"file": str(CALCULATOR_PART), "name": "calculator", "effect": "pure"}
    environment = open_environment(decode_config({"environment": {"kind": "python", "options": options}}, "contract"))
    assert isinstance(environment, PythonEnvironment)
    try:
        await environment.start()
        yield environment
    finally:
        await environment.stop()


MAKERS = {"inline": inline, "sandbox": sandbox, "python": python}


def lease(token: int = 1) -> Lease:
    return Lease(LeaseToken(token), 1e9)


def calculation(expression: str, *, step: int = 0, episode: EpisodeId = EPISODE) -> Action:
    return Action(ActionId(episode, step, 0), "calculator", '{"expression":"' + expression + '"}')


Scenario = Callable[[Any, Handle], Awaitable[None]]
Run = Callable[[Scenario], None]


@pytest.fixture(params=MAKERS)
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a scenario in a fresh environment with one open episode."""

    def start(scenario: Scenario) -> None:
        async def body() -> None:
            async with MAKERS[request.param]() as environment, asyncio.timeout(30.0):
                await scenario(environment, await environment.open(TASK, EPISODE, lease(), TIMEOUT_S))

        asyncio.run(body())

    return start


def test_an_action_leaves_a_receipt_under_its_own_id_and_token(run: Run) -> None:
    async def scenario(environment: Environment, handle: Handle) -> None:
        receipt = await environment.execute(handle, calculation("2 * (3 + 4)"), lease(), TIMEOUT_S)
        assert (receipt.status, receipt.output) == (ExecutionStatus.OK, b"14")
        assert (receipt.action_id, receipt.token) == (ActionId(EPISODE, 0, 0), 1)
        assert receipt.output_bytes == 2

    run(scenario)


def test_a_second_call_with_the_same_id_returns_the_stored_receipt(run: Run) -> None:
    async def scenario(environment: Environment, handle: Handle) -> None:
        first = await environment.execute(handle, calculation("1 + 1"), lease(), TIMEOUT_S)
        assert await environment.execute(handle, calculation("1 + 1"), lease(), TIMEOUT_S) is first

    run(scenario)


def test_two_calls_with_the_same_id_at_once_run_it_once(run: Run) -> None:
    async def scenario(environment: Environment, handle: Handle) -> None:
        calls = (environment.execute(handle, calculation("6 * 7"), lease(), TIMEOUT_S) for _ in range(4))
        first, *others = await asyncio.gather(*calls)
        assert all(receipt is first for receipt in others)

    run(scenario)


def test_an_id_that_comes_again_with_other_arguments_is_refused(run: Run) -> None:
    async def scenario(environment: Environment, handle: Handle) -> None:
        await environment.execute(handle, calculation("1 + 1"), lease(), TIMEOUT_S)
        with pytest.raises(EnvironmentFault, match="other arguments") as fault:
            await environment.execute(handle, calculation("1 + 2"), lease(), TIMEOUT_S)
        assert fault.value.outcome is Outcome.REJECTED

    run(scenario)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("calculator", '{"expression":"1 / 0"}'),
        ("calculator", '{"expression":"__import__(\'os\')"}'),
        ("calculator", '{"expression":1}'),
        ("calculator", '{"code":"1"}'),
        ("calculator", "[" * 3000),
        ("calculator", '{"expression":"\\ud800"}'),
        ("no_such_tool", "{}"),
    ],
)
def test_what_a_tool_objects_to_is_a_receipt_for_the_policy(run: Run, tool: str, arguments: str) -> None:
    async def scenario(environment: Environment, handle: Handle) -> None:
        action = Action(ActionId(EPISODE, 0, 0), tool, arguments)
        receipt = await environment.execute(handle, action, lease(), TIMEOUT_S)
        assert receipt.status is ExecutionStatus.TOOL_ERROR
        assert receipt.output.startswith(b"error: ")
        assert len(receipt.output) < 300

    run(scenario)


def test_a_lower_token_than_the_highest_seen_is_fenced(run: Run) -> None:
    async def scenario(environment: Environment, handle: Handle) -> None:
        await environment.execute(handle, calculation("1", step=0), lease(5), TIMEOUT_S)
        for stale in (calculation("1", step=0), calculation("2", step=1)):
            with pytest.raises(EnvironmentFault, match="fenced") as fault:
                await environment.execute(handle, stale, lease(4), TIMEOUT_S)
            assert fault.value.outcome is Outcome.REJECTED
        with pytest.raises(EnvironmentFault, match="fenced"):
            await environment.open(TASK, EPISODE, lease(4), TIMEOUT_S)
        assert (await environment.execute(handle, calculation("2", step=1), lease(5), TIMEOUT_S)).output == b"2"

    run(scenario)


def test_a_fence_outlives_the_session_and_binds_one_episode_only(run: Run) -> None:
    async def scenario(environment: Environment, handle: Handle) -> None:
        await environment.execute(handle, calculation("1"), lease(5), TIMEOUT_S)
        await environment.close(handle)
        with pytest.raises(EnvironmentFault, match="fenced"):
            await environment.open(TASK, EPISODE, lease(4), TIMEOUT_S)
        assert (await environment.open(TASK, OTHER, lease(4), TIMEOUT_S)).episode == OTHER

    run(scenario)


def test_a_probe_finds_the_receipt_and_nothing_where_nothing_was_taken(run: Run) -> None:
    async def scenario(environment: Environment, handle: Handle) -> None:
        receipt = await environment.execute(handle, calculation("1 + 1"), lease(), TIMEOUT_S)
        assert await environment.probe(handle, ActionId(EPISODE, 0, 0), TIMEOUT_S) is receipt
        assert await environment.probe(handle, ActionId(EPISODE, 1, 0), TIMEOUT_S) is None

    run(scenario)


def test_an_action_goes_on_when_its_caller_gives_up(run: Run) -> None:
    async def scenario(environment: Environment, handle: Handle) -> None:
        caller = asyncio.create_task(environment.execute(handle, calculation("1 + 1"), lease(), TIMEOUT_S))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        receipt = await environment.probe(handle, ActionId(EPISODE, 0, 0), TIMEOUT_S)
        assert receipt is not None and not isinstance(receipt, IncarnationLost)
        assert receipt.output == b"2"

    run(scenario)


def test_a_handle_of_another_incarnation_is_refused_and_its_probe_says_so(run: Run) -> None:
    async def scenario(environment: Environment, handle: Handle) -> None:
        stale = Handle(EPISODE, "before-the-restart")
        answer = await environment.probe(stale, ActionId(EPISODE, 0, 0), TIMEOUT_S)
        assert isinstance(answer, IncarnationLost)
        assert answer.expected == "before-the-restart"
        assert answer.found != answer.expected
        with pytest.raises(EnvironmentFault) as fault:
            await environment.execute(stale, calculation("1"), lease(), TIMEOUT_S)
        assert fault.value.outcome is Outcome.REJECTED

    run(scenario)


def test_opening_an_episode_again_gives_a_fresh_one_and_ends_the_old(run: Run) -> None:
    async def scenario(environment: Environment, handle: Handle) -> None:
        await environment.execute(handle, calculation("1 + 1"), lease(), TIMEOUT_S)
        again = await environment.open(TASK, EPISODE, lease(2), TIMEOUT_S)
        assert again.incarnation != handle.incarnation
        assert await environment.probe(again, ActionId(EPISODE, 0, 0), TIMEOUT_S) is None
        assert isinstance(await environment.probe(handle, ActionId(EPISODE, 0, 0), TIMEOUT_S), IncarnationLost)
        await environment.close(handle)
        assert (await environment.execute(again, calculation("5"), lease(2), TIMEOUT_S)).output == b"5"

    run(scenario)


def test_closing_twice_is_safe_and_nothing_runs_afterwards(run: Run) -> None:
    async def scenario(environment: Environment, handle: Handle) -> None:
        await environment.close(handle)
        await environment.close(handle)
        with pytest.raises(EnvironmentFault) as fault:
            await environment.execute(handle, calculation("1"), lease(), TIMEOUT_S)
        assert fault.value.outcome is Outcome.REJECTED

    run(scenario)


def test_the_revision_of_a_pure_environment_never_changes_and_can_be_restored(run: Run) -> None:
    async def scenario(environment: Environment, handle: Handle) -> None:
        assert environment.effect is EffectClass.PURE
        before = await environment.snapshot(handle, TIMEOUT_S)
        await environment.execute(handle, calculation("1 + 1"), lease(), TIMEOUT_S)
        assert before is not None
        assert await environment.snapshot(handle, TIMEOUT_S) == before
        restored = await environment.restore(handle, before, TIMEOUT_S)
        assert (await environment.execute(restored, calculation("3", step=1), lease(), TIMEOUT_S)).output == b"3"
        assert await environment.artifact(handle, TIMEOUT_S) == b""

    run(scenario)


def test_the_claim_is_success_exactly_when_the_answer_is_the_last_successful_result(run: Run) -> None:
    async def scenario(environment: Environment, handle: Handle) -> None:
        assert await environment.claim(handle, "5", TIMEOUT_S) == Failure("no call succeeded")
        await environment.execute(handle, calculation("2 + 3", step=0), lease(), TIMEOUT_S)
        await environment.execute(handle, calculation("2 * 3", step=1), lease(), TIMEOUT_S)
        await environment.execute(handle, calculation("1 / 0", step=2), lease(), TIMEOUT_S)
        assert await environment.claim(handle, " 6\n", TIMEOUT_S) == Success()
        assert await environment.claim(handle, "5", TIMEOUT_S) == Failure("the answer is not the last result")
        assert await environment.claim(handle, " \n", TIMEOUT_S) == Failure("no answer")

    run(scenario)


def test_what_a_predecessor_did_is_never_run_again_and_the_claim_knows_it(run: Run) -> None:
    async def scenario(environment: Environment, handle: Handle) -> None:
        action = calculation("2 + 3")
        # An answer that no run of the action would give.
        receipt = Receipt(action.id, LeaseToken(1), action.arguments_hash, ExecutionStatus.OK, b"77", 2)
        await environment.adopt(handle, [(action, receipt)], TIMEOUT_S)
        assert await environment.execute(handle, action, lease(2), TIMEOUT_S) == receipt
        assert await environment.probe(handle, action.id, TIMEOUT_S) == receipt
        assert await environment.claim(handle, "77", TIMEOUT_S) == Success()
        with pytest.raises(EnvironmentFault, match="other arguments"):
            await environment.execute(handle, calculation("2 + 4"), lease(2), TIMEOUT_S)

    run(scenario)


def test_the_claim_of_one_episode_knows_nothing_of_another(run: Run) -> None:
    async def scenario(environment: Environment, handle: Handle) -> None:
        await environment.execute(handle, calculation("2 + 3"), lease(), TIMEOUT_S)
        other = await environment.open(TASK, OTHER, lease(), TIMEOUT_S)
        assert isinstance(await environment.claim(other, "5", TIMEOUT_S), Failure)
        again = await environment.open(TASK, EPISODE, lease(2), TIMEOUT_S)
        assert isinstance(await environment.claim(again, "5", TIMEOUT_S), Failure)

    run(scenario)


def test_receipts_of_two_runs_have_the_same_digests(run: Run) -> None:
    digests: list[list[str]] = []

    async def scenario(environment: Environment, handle: Handle) -> None:
        actions = [calculation(expression, step=step) for step, expression in enumerate(("1+1", "1/0", "7//2"))]
        digests.append([(await environment.execute(handle, a, lease(), TIMEOUT_S)).digest for a in actions])

    run(scenario)
    run(scenario)
    assert digests[0] == digests[1]


def test_versions_and_tools_are_fixed(run: Run) -> None:
    async def scenario(environment: Environment, _handle: Handle) -> None:
        assert len(environment.version) == 64
        assert [tool.name for tool in environment.tools] == ["calculator"]

    run(scenario)
