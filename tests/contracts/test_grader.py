"""What every grader keeps, wherever its core runs."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import pytest
from grader_case import child_grader, core, entry_of, make_task, submit, value_of

from headrace.errors import GraderError
from headrace.graders import InlineGrader
from headrace.ports import Grader
from headrace.records.verdict import Unscored


@pytest.fixture(scope="module", params=["inline", "child"])
def play(request: pytest.FixtureRequest) -> Iterator[Callable[[Callable[[Grader], Awaitable[None]]], None]]:
    """Runs a scene with a grader of each kind."""

    async def opened() -> tuple[Grader, AsyncExitStack]:
        stack = AsyncExitStack()
        if request.param == "inline":
            return InlineGrader(core()), stack
        return await stack.enter_async_context(child_grader()), stack

    with asyncio.Runner() as runner:
        grader, stack = runner.run(opened())
        yield lambda scene: runner.run(scene(grader))
        runner.run(stack.aclose())


Play = Callable[[Callable[[Grader], Awaitable[None]]], None]


def test_each_submission_gets_one_valid_verdict_of_this_grader(play: Play) -> None:
    async def scene(grader: Grader) -> None:
        tasks = [make_task(family, index) for family in ("chain_sum", "gcd") for index in range(5)]
        submissions = [submit(entry_of(task.family, task.index)["answer"], task) for task in tasks]
        submissions += [submit("wrong", task) for task in tasks]
        verdicts = {verdict.transcript: verdict for verdict in await grader.grade(submissions, 30.0)}
        assert set(verdicts) == {submission.transcript for submission in submissions}
        for verdict in verdicts.values():
            verdict.check()
            assert verdict.grader == grader.version
        assert [value_of(verdicts[item.transcript]) for item in submissions] == [1.0] * 10 + [0.0] * 10

    play(scene)


def test_a_submission_that_cannot_be_graded_poisons_no_other(play: Play) -> None:
    async def scene(grader: Grader) -> None:
        good = submit(entry_of("gcd")["answer"], make_task("gcd"))
        bad = submit("5", make_task(question="What else?"))
        verdicts = {verdict.transcript: verdict for verdict in await grader.grade([bad, good], 30.0)}
        assert isinstance(verdicts[bad.transcript].outcome, Unscored)
        assert value_of(verdicts[good.transcript]) == 1.0

    play(scene)


def test_the_same_submission_gets_the_same_verdict_every_time(play: Play) -> None:
    async def scene(grader: Grader) -> None:
        submission = submit("12", make_task("lcm"))
        rounds = [await grader.grade([submission], 30.0) for _ in range(20)]
        assert len({verdict.address for verdicts in rounds for verdict in verdicts}) == 1

    play(scene)


def test_nothing_to_grade_is_no_verdict(play: Play) -> None:
    async def scene(grader: Grader) -> None:
        assert await grader.grade([], 30.0) == []

    play(scene)


def test_batches_at_once_do_not_mix(play: Play) -> None:
    async def scene(grader: Grader) -> None:
        batches = [[submit(str(i), make_task("count_bits", i)), submit("x", make_task("gcd", i))] for i in range(8)]
        answers = await asyncio.gather(*(grader.grade(batch, 30.0) for batch in batches))
        for batch, verdicts in zip(batches, answers, strict=True):
            assert {verdict.transcript for verdict in verdicts} == {item.transcript for item in batch}

    play(scene)


def test_the_version_and_scope_are_stated(play: Play) -> None:
    async def scene(grader: Grader) -> None:
        assert len(grader.version) == 64
        assert grader.version == core().version
        assert grader.scope == "episode"

    play(scene)


def test_an_inline_grader_takes_the_time_that_it_is_given() -> None:
    async def scene() -> None:
        slow = InlineGrader(core(), latency=lambda submission: 60.0)
        with pytest.raises(GraderError, match="not graded within"):
            await slow.grade([submit("5")], 0.0)

    asyncio.run(scene())
