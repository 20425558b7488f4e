"""Submissions to grade, and graders in a process of their own."""

import functools
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.graders import ChildGrader, ReasoningGymGrader, open_grader_core
from headrace.processes.child import Child
from headrace.records.ids import Address, EpisodeId
from headrace.records.provenance import address_of
from headrace.records.task import Budget, Task
from headrace.records.verdict import Scored, Submission, Verdict

CHILD = Path(__file__).with_name("grader_child.py")


def make_task(family: str = "chain_sum", index: int = 3, question: str | None = None, parameters: str = "{}") -> Task:
    question = question or entry_of(family, index)["question"]
    return Task(family, "any", 0, index, question, Budget(), "sandbox", parameters)


def entry_of(family: str, index: int = 3) -> dict[str, str]:
    import reasoning_gym

    return reasoning_gym.create_dataset(family, seed=0)[index]


def submit(text: str, task: Task | None = None, name: str = "") -> Submission:
    task = task or make_task()
    transcript = address_of(f"{name or text} {task.family} {task.index}".encode("utf-8", "replace"))
    return Submission(Address(transcript), EpisodeId.parse("train.0.0.0"), task, text)


@functools.cache
def core() -> ReasoningGymGrader:
    return open_grader_core("reasoning_gym", {})


def grade(text: str, task: Task | None = None) -> Scored:
    """The score, which has to be one."""
    outcome = core().grade(submit(text, task)).outcome
    assert isinstance(outcome, Scored), outcome
    return outcome


def value_of(verdict: Verdict) -> float | str:
    """The answer component, or the cause of its absence."""
    outcome = verdict.outcome
    return dict(outcome.components)["answer"] if isinstance(outcome, Scored) else outcome.cause.value


async def start_child(*flags: str) -> Child:
    path = ":".join(filter(None, sys.path))
    argv = [sys.executable, str(CHILD), *flags]
    return await Child.start("grader", argv, start_timeout_s=60.0, env={"PYTHONPATH": path})


@asynccontextmanager
async def child_grader(*flags: str, respawns: bool = False) -> AsyncIterator[ChildGrader]:
    async def respawn() -> Child:
        return await start_child(*flags)

    grader = ChildGrader(await start_child(*flags), respawn if respawns else None)
    try:
        yield grader
    finally:
        await grader.close()
