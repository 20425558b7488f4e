import asyncio
import os
import signal

import pytest
from grader_case import child_grader, start_child, submit, value_of

from headrace.errors import GraderError, Outcome, ProcessError
from headrace.graders import ChildGrader
from headrace.records.task import Budget, Task

TASK = Task("sum", "any", 0, 0, "What is right?", Budget(), "sandbox")
ANSWER = submit("right", TASK)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_broken_verdict_is_no_score_for_its_submission_and_poisons_no_other() -> None:
    async def run() -> None:
        async with child_grader("--breaking=1") as grader:
            faults = ("nan", "large", "text", "none", "empty", "other grader", "other transcript", "raise")
            submissions = [ANSWER, *(submit(fault, TASK) for fault in faults), submit("7", TASK)]
            verdicts = await grader.grade(submissions, 30.0)
            assert [verdict.transcript for verdict in verdicts] == [item.transcript for item in submissions]
            assert {verdict.grader for verdict in verdicts} == {grader.version}
            invalid = ["grader_invalid"] * 7
            assert [value_of(verdict) for verdict in verdicts] == [1.0, *invalid, "grader_crash", 0.0]
            for verdict in verdicts:
                verdict.check()

    asyncio.run(run())


def test_items_that_were_not_asked_for_or_come_twice_change_nothing() -> None:
    async def run() -> None:
        async with child_grader("--breaking=1", "--flooding") as grader:
            verdicts = await grader.grade([ANSWER, submit("7", TASK)], 30.0)
            assert [value_of(verdict) for verdict in verdicts] == [1.0, 0.0]

    asyncio.run(run())


def test_a_killed_grader_keeps_the_verdicts_that_came_before() -> None:
    async def run() -> None:
        async with child_grader("--breaking=1") as grader:
            verdicts = await grader.grade([ANSWER, submit("kill", TASK), submit("7", TASK)], 30.0)
            assert [value_of(verdict) for verdict in verdicts] == [1.0, "grader_crash", "grader_crash"]

    asyncio.run(run())


def test_a_grader_that_was_killed_from_outside_is_lost() -> None:
    async def run() -> None:
        child = await start_child("--breaking=1")
        grader = ChildGrader(child)
        task = asyncio.create_task(grader.grade([submit("hang", TASK)], 60.0))
        await asyncio.sleep(0)
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(GraderError) as caught:
            await task
        assert caught.value.outcome is Outcome.LOST
        assert "SIGKILL" in str(caught.value)
        with pytest.raises(GraderError, match="gone") as caught:
            await grader.grade([ANSWER], 60.0)
        assert caught.value.outcome is Outcome.REJECTED
        assert is_gone(child.pid)

    asyncio.run(run())


def test_a_grader_that_hangs_is_ended_at_the_deadline_and_another_takes_over() -> None:
    async def run() -> None:
        async with child_grader("--breaking=1", respawns=True) as grader:
            first = grader._child
            assert first is not None
            with pytest.raises(GraderError) as caught:
                await grader.grade([submit("hang", TASK), ANSWER], 0.2)
            assert caught.value.outcome is Outcome.LOST
            assert is_gone(first.pid)
            verdicts = await grader.grade([ANSWER, submit("7", TASK)], 30.0)
            assert [value_of(verdict) for verdict in verdicts] == [1.0, 0.0]
            assert grader.num_restarts == 1

    asyncio.run(run())


def test_what_hangs_after_others_were_graded_is_a_timeout_for_the_rest() -> None:
    async def run() -> None:
        async with child_grader("--breaking=1") as grader:
            verdicts = await grader.grade([ANSWER, submit("hang", TASK), submit("7", TASK)], 1.0)
            assert [value_of(verdict) for verdict in verdicts] == [1.0, "grader_timeout", "grader_timeout"]

    asyncio.run(run())


def test_many_batches_at_once_are_all_graded_after_a_crash() -> None:
    async def run() -> None:
        async with child_grader("--breaking=1", respawns=True) as grader:

            async def until_graded(index: int) -> float | str:
                item = submit("right", TASK, f"submission {index}")
                while True:
                    try:
                        return value_of((await grader.grade([item], 30.0))[0])
                    except GraderError:
                        continue

            crash = asyncio.create_task(grader.grade([submit("kill", TASK)], 30.0))
            values = await asyncio.gather(*map(until_graded, range(20)))
            assert values == [1.0] * 20
            with pytest.raises(GraderError):
                await crash
            assert grader.num_restarts == 1

    asyncio.run(run())


def test_a_grader_of_another_version_does_not_take_over() -> None:
    async def run() -> None:
        grader = ChildGrader(await start_child("--breaking=1"), lambda: start_child("--breaking=2"))
        with pytest.raises(GraderError, match="killed"):
            await grader.grade([submit("kill", TASK)], 30.0)
        with pytest.raises(GraderError, match="another version"):
            await grader.grade([ANSWER], 30.0)
        await grader.close()

    asyncio.run(run())


def test_a_child_rejects_what_it_cannot_read_and_goes_on() -> None:
    async def run() -> None:
        child = await start_child("--breaking=1")
        for method, payload in (("grade", b"\x93\x01"), ("verdicts", b""), ("grade", b"\x91\x01")):
            with pytest.raises(ProcessError) as caught:
                await child.call(method, payload, timeout_s=30.0)
            assert caught.value.outcome is Outcome.REJECTED
        grader = ChildGrader(child)
        assert [value_of(verdict) for verdict in await grader.grade([ANSWER], 30.0)] == [1.0]
        await grader.close()
        await grader.close()
        assert is_gone(child.pid)

    asyncio.run(run())
