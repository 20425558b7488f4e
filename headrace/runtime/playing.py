"""`headrace play`: a person is the policy of one episode, through the real harness, environment and grader."""

import asyncio
import sys
from collections.abc import Sequence

import msgspec
from rich.console import Console

from headrace.config import Config
from headrace.errors import ConfigError
from headrace.harness import WritingHarness
from headrace.inference.scripted import ScriptedInference, said
from headrace.records.arrays import IntArray
from headrace.records.harness import ToolSchema
from headrace.records.ids import GroupId, PolicyId, PolicyRef, Purpose
from headrace.records.provenance import PolicyVersion, content_version
from headrace.records.segment import GenerateRequest, Origin, Sampling, TokenSegment
from headrace.records.task import Task
from headrace.records.terminal import terminal_name
from headrace.records.verdict import Unscored
from headrace.runtime.adapters import open_tasks
from headrace.runtime.bench import Played, open_bench
from headrace.runtime.preflight import preflight_tasks

_PERSON = PolicyVersion(PolicyId("person"), 0, content_version("person"))


def play(config: Config, number: int, *, is_training: bool) -> int:
    """Plays task `number`; exit status 0 once it is graded.

    Raises:
        ConfigError: when there is no such task.
    """
    task = _task(config, number, is_training=is_training)
    return asyncio.run(_play(config, task))


def _task(config: Config, number: int, *, is_training: bool) -> Task:
    source = open_tasks(config)
    if is_training:
        return source.task("train", number)
    held_out = source.held_out()
    if not 0 <= number < len(held_out):
        raise ConfigError(
            f"--task is {number}; there are {len(held_out)} held-out tasks, from 0; --training takes one of the stream"
        )
    return held_out[number]


async def _play(config: Config, task: Task) -> int:
    console = Console(highlight=False, markup=False)
    # A person plays once: what a run would try again shows as the failure that it is.
    schedule = msgspec.structs.replace(config.schedule, infra_attempts=1)
    config = msgspec.structs.replace(config, schedule=schedule)
    async with open_bench(config) as bench:
        await preflight_tasks(config, bench.harness, [task], workers=())
        speaker = _Person(console, bench.harness, bench.environment.tools, task)
        speaker.introduce()
        runner = bench.runner(ScriptedInference(speaker.speak), [_PERSON], has_wall_limit=False)
        played = await runner.run(task, GroupId.of(Purpose.CHECK, 0), 0, Sampling(1.0))
        _conclude(console, played)
    return 0


class _Person:
    """Shows what the policy reads, and reads what it says."""

    def __init__(self, console: Console, harness: WritingHarness, tools: Sequence[ToolSchema], task: Task) -> None:
        self._console = console
        self._harness = harness
        self._tools = {tool.name: tool for tool in tools}
        self._task = task

    def introduce(self) -> None:
        """What there is to act with, and what an episode may spend."""
        budget = self._task.budget
        for tool in self._tools.values():
            self._console.print(f"tool {tool.name}: {tool.description}\n     {tool.parameters}", soft_wrap=True)
        self._console.print(
            f"budget: {budget.turns} turns, {budget.episode_tokens} tokens in all, {budget.turn_tokens} a turn\n"
            "a line that begins with a tool's name is a call, with its arguments as JSON behind; any other line is the "
            "answer\n",
            soft_wrap=True,
        )

    async def speak(self, request: GenerateRequest) -> Sequence[TokenSegment]:
        """The person's turn."""
        spoken = (Origin.POLICY, Origin.HISTORY)
        places = [place for place, segment in enumerate(request.prefix) if segment.origin in spoken]
        for segment in request.prefix[places[-1] + 1 if places else 0 :]:
            if segment.origin is Origin.ENVIRONMENT:
                self._console.print(self._harness.decode(segment.ids_T), soft_wrap=True)
        line = await asyncio.to_thread(self._read)
        ids = self._ids(line)
        if len(ids) > request.max_tokens:
            self._console.print(f"({len(ids)} tokens; only {request.max_tokens} are left, so the turn is cut)")
        return [said(request, ids, PolicyRef(_PERSON.policy_id, 0))]

    def _read(self) -> str:
        self._console.print("> ", end="")
        line = sys.stdin.readline()
        return line.removesuffix("\n")

    def _ids(self, line: str) -> IntArray:
        name, _, arguments = line.partition(" ")
        if name in self._tools:
            return self._harness.turn_ids("", [f'{{"name": "{name}", "arguments": {arguments.strip() or "{}"}}}'])
        if line.startswith("/"):
            return self._harness.turn_ids("", [line[1:]])
        return self._harness.turn_ids(line, ())


def _conclude(console: Console, played: Played) -> None:
    transcript, outcome = played.transcript, played.verdict.outcome
    console.print(
        f"\nover after {len(transcript.actions)} calls and {transcript.num_tokens} tokens; the environment claims "
        f"{terminal_name(transcript.terminal)}, the grader's verdict counts:",
        soft_wrap=True,
    )
    if isinstance(outcome, Unscored):
        console.print(f"not scored: {outcome.cause.value}: {outcome.detail}", soft_wrap=True)
    else:
        scores = ", ".join(f"{name} {value:g}" for name, value in outcome.components)
        console.print(f"reward {played.reward:g} ({scores})\nevidence {outcome.evidence}", soft_wrap=True)
