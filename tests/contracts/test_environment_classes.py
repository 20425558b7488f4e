"""What the class of an environment promises, run against every implementation in every class that it has."""

import pytest
from environment_kinds import EPISODE, KINDS, TASK, TIMEOUT_S, Kind, act, lease, run_on

from headrace.errors import EnvironmentFault, Outcome
from headrace.ports import Environment, Handle
from headrace.records.action import EffectClass
from headrace.records.execution import ExecutionStatus, IncarnationLost

KEEPS_STATE = [name for name, kind in KINDS.items() if kind.seen]
NO_REVISIONS = [name for name, kind in KINDS.items() if kind.effect in (EffectClass.RESETTABLE, EffectClass.EXTERNAL)]
REVISIONS = [name for name, kind in KINDS.items() if kind.effect is EffectClass.SNAPSHOT]
PURE = [name for name, kind in KINDS.items() if kind.effect is EffectClass.PURE]


@pytest.mark.parametrize("name", KINDS)
def test_the_class_is_the_declared_one_and_receipts_name_a_revision_exactly_where_there_are_any(name: str) -> None:
    async def scenario(kind: Kind, environment: Environment, handle: Handle) -> None:
        assert environment.effect is kind.effect
        assert environment.effect.is_resumable == (name in PURE or name in REVISIONS)
        receipt = await environment.execute(handle, act(kind.write, 0), lease(), TIMEOUT_S)
        assert receipt.status is ExecutionStatus.OK
        assert (receipt.revision is not None) == (kind.effect is EffectClass.SNAPSHOT)
        assert await environment.execute(handle, act(kind.write, 0), lease(), TIMEOUT_S) == receipt
        with pytest.raises(EnvironmentFault, match="fenced") as fault:
            await environment.execute(handle, act(kind.write, 1), lease(0), TIMEOUT_S)
        assert fault.value.outcome is Outcome.REJECTED
        await environment.close(handle)
        await environment.close(handle)

    run_on(KINDS[name], scenario)


@pytest.mark.parametrize("name", KEEPS_STATE)
def test_what_a_call_leaves_is_there_for_the_next_one_and_gone_in_a_fresh_environment(name: str) -> None:
    async def scenario(kind: Kind, environment: Environment, handle: Handle) -> None:
        await environment.execute(handle, act(kind.write, 0), lease(), TIMEOUT_S)
        read = await environment.execute(handle, act(kind.read, 1), lease(), TIMEOUT_S)
        assert read.output == kind.seen
        again = await environment.open(TASK, EPISODE, lease(2), TIMEOUT_S)
        fresh = await environment.execute(again, act(kind.read, 1), lease(2), TIMEOUT_S)
        assert kind.seen not in fresh.output
        await environment.close(again)

    run_on(KINDS[name], scenario)


@pytest.mark.parametrize("name", NO_REVISIONS)
def test_without_revisions_an_episode_is_a_prefix_and_nothing_pretends_otherwise(name: str) -> None:
    """An interpreter's memory, an object of the owner's and a world outside are in no snapshot."""

    async def scenario(kind: Kind, environment: Environment, handle: Handle) -> None:
        receipt = await environment.execute(handle, act(kind.write, 0), lease(), TIMEOUT_S)
        assert await environment.snapshot(handle, TIMEOUT_S) is None
        for attempt in (
            environment.restore(handle, TASK.address, TIMEOUT_S),
            environment.adopt(handle, [(act(kind.write, 0), receipt)], TIMEOUT_S),
        ):
            with pytest.raises(EnvironmentFault) as fault:
                await attempt
            assert fault.value.outcome is Outcome.REJECTED
        await environment.close(handle)

    run_on(KINDS[name], scenario)


@pytest.mark.parametrize("name", PURE)
def test_a_pure_environment_has_one_revision_for_ever(name: str) -> None:
    async def scenario(kind: Kind, environment: Environment, handle: Handle) -> None:
        before = await environment.snapshot(handle, TIMEOUT_S)
        await environment.execute(handle, act(kind.write, 0), lease(), TIMEOUT_S)
        assert before is not None
        assert await environment.snapshot(handle, TIMEOUT_S) == before
        assert await environment.restore(handle, before, TIMEOUT_S) == handle
        await environment.close(handle)

    run_on(KINDS[name], scenario)


@pytest.mark.parametrize("name", REVISIONS)
def test_a_revision_is_brought_back_and_the_same_action_leads_to_the_same_revision_again(name: str) -> None:
    async def scenario(kind: Kind, environment: Environment, handle: Handle) -> None:
        start = await environment.snapshot(handle, TIMEOUT_S)
        first = await environment.execute(handle, act(kind.write, 0), lease(), TIMEOUT_S)
        second = await environment.execute(handle, act(kind.write, 1), lease(), TIMEOUT_S)
        assert start is not None and first.revision is not None
        assert len({start, first.revision, second.revision}) == 3
        assert await environment.snapshot(handle, TIMEOUT_S) == second.revision
        restored = await environment.restore(handle, first.revision, TIMEOUT_S)
        assert restored.incarnation != handle.incarnation
        assert isinstance(await environment.probe(handle, act(kind.write, 1).id, TIMEOUT_S), IncarnationLost)
        assert await environment.probe(restored, act(kind.write, 0).id, TIMEOUT_S) == first, "it is part of the state"
        assert await environment.probe(restored, act(kind.write, 1).id, TIMEOUT_S) is None, "it never happened"
        again = await environment.execute(restored, act(kind.write, 1), lease(), TIMEOUT_S)
        assert (again.revision, again.digest) == (second.revision, second.digest)
        from_start = await environment.restore(restored, start, TIMEOUT_S)
        assert (await environment.execute(from_start, act(kind.write, 0), lease(), TIMEOUT_S)).digest == first.digest
        with pytest.raises(EnvironmentFault) as fault:
            await environment.restore(from_start, TASK.address, TIMEOUT_S)
        assert fault.value.outcome is Outcome.REJECTED
        await environment.close(from_start)

    run_on(KINDS[name], scenario)


@pytest.mark.parametrize("name", [name for name in REVISIONS if KINDS[name].seen])
def test_an_unchanged_state_is_the_same_revision(name: str) -> None:
    async def scenario(kind: Kind, environment: Environment, handle: Handle) -> None:
        wrote = await environment.execute(handle, act(kind.write, 0), lease(), TIMEOUT_S)
        read = await environment.execute(handle, act(kind.read, 1), lease(), TIMEOUT_S)
        assert read.revision == wrote.revision == await environment.snapshot(handle, TIMEOUT_S)
        await environment.close(handle)

    run_on(KINDS[name], scenario)
