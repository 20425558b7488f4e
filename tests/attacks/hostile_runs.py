"""Whole runs of a scripted policy: the real orchestrator, journal, tasks, harness, sandbox and grader's process."""

import asyncio
import contextlib
import dataclasses
import functools
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.checkers import LawChecker, bounds_of
from headrace.config import Config, decode_config, decode_options
from headrace.control.context import Ports, RunFacts
from headrace.control.orchestrator import Orchestrator
from headrace.environments.sandbox.environment import SandboxEnvironment
from headrace.environments.sandbox.meters import children
from headrace.environments.sandbox.options import Isolation, SandboxOptions
from headrace.graders import ChildGrader
from headrace.harness import ChatMLHarness, open_harness
from headrace.processes.child import Child
from headrace.records.events import Event
from headrace.records.ids import EpisodeId, PolicyId
from headrace.records.provenance import PolicyVersion, canonical_bytes
from headrace.records.task import Task
from headrace.records.trajectory import SideRecord, Transcript, TranscriptSealed
from headrace.records.verdict import Verdict, VerdictSealed
from headrace.reporting.report import RunReport, report_run
from headrace.runtime.placement import place_grader
from headrace.runtime.simulated import law_observer
from headrace.simulation.costs import TrainerCost
from headrace.simulation.laws import Constant
from headrace.simulation.scripted import ScriptedInference, ScriptedTurn
from headrace.simulation.trainer import SimulatedTrainer
from headrace.simulation.weights import WeightShelf
from headrace.store.blobs import FileBlobs
from headrace.store.reader import open_reader
from headrace.store.sqlite import SqliteJournal
from headrace.store.verify import verify_run
from headrace.tasks.reasoning_gym import ReasoningGymTasks, open_tasks

POLICY = PolicyId("policy")
Behaviour = Callable[[Task, int], ScriptedTurn]
"""What a member says about its task at a step."""

StartGrader = Callable[[Isolation], Awaitable[Child]]
BUDGET = {
    "turns": 5,
    "turn_tokens": 1200,
    "episode_tokens": 2400,
    "observation_tokens": 192,
    "wall_s": 60.0,
    "environment_cpu_s": 30.0,
}


@dataclasses.dataclass(frozen=True)
class Member:
    """One sealed attempt with everything that was said of it, oldest verdict first."""

    transcript: Transcript
    side: SideRecord
    sealed: TranscriptSealed
    verdicts: tuple[Verdict, ...]

    @property
    def outputs(self) -> list[str]:
        return [outcome.output.decode("utf-8", "replace") for outcome in self.transcript.actions]

    @property
    def statuses(self) -> list[str]:
        return [outcome.status.value for outcome in self.transcript.actions]


@dataclasses.dataclass(frozen=True)
class Played:
    """What a run left in its folder."""

    folder: Path
    config: Config
    events: tuple[Event, ...]
    report: RunReport
    members: dict[str, Member]
    inference: ScriptedInference
    harness: ChatMLHarness
    grader: ChildGrader

    def member(self, number: int, group: int = 0, attempt: int = 0) -> Member:
        return self.members[f"train.{group}.{number}.{attempt}"]

    def outcome(self, stage: str, reason: str) -> int:
        """How often the report's funnel names the reason."""
        return sum(
            sum(o.counts.values()) for o in self.report.funnel.outcomes if o.stage == stage and o.reason == reason
        )

    def text(self, member: Member) -> str:
        """Everything that stands in the member's sequence, control tokens written out."""
        return self.harness.decode(np.concatenate([s.ids_T for s in member.transcript.paths[0].segments]))


@functools.cache
def answer_of(task: Task) -> str:
    """The oracle's answer."""
    import reasoning_gym

    return reasoning_gym.create_dataset(task.family, seed=task.seed, **msgspec.json.decode(task.parameters))[
        task.index
    ]["answer"]


def call(tool: str, **arguments: object) -> ScriptedTurn:
    return ScriptedTurn(calls=(msgspec.json.encode({"name": tool, "arguments": arguments}).decode(),))


def python(code: str) -> ScriptedTurn:
    return call("python", code=code)


def say(text: str) -> ScriptedTurn:
    return ScriptedTurn(text=text)


def calculates(task: Task, step: int) -> ScriptedTurn:
    """Uses the calculator and answers with what it says."""
    if step == 0:
        found = re.search(r"\d[\d +-]*\d", task.question)
        assert found, task.question
        return call("calculator", expression=found[0])
    return say(answer_of(task))


def after(*turns: ScriptedTurn, then: str | None = None) -> Behaviour:
    """Says the turns, then answers: rightly, unless another answer is given."""

    def behave(task: Task, step: int) -> ScriptedTurn:
        return turns[step] if step < len(turns) else say(answer_of(task) if then is None else then)

    return behave


def always(turn: ScriptedTurn) -> Behaviour:
    return lambda task, step: turn


def config_of(num_members: int, budget: dict[str, Any], **sections: dict[str, Any]) -> Config:
    families = [{"generator": "chain_sum", "levels": {"easy": {"min_terms": 2, "max_terms": 2}}}]
    tree: dict[str, Any] = {
        "run": {"seed": 5, "updates": 1},
        "budget": {**BUDGET, **budget},
        "tasks": {"kind": "reasoning_gym", "options": {"families": families, "held_out_per_stratum": 0}},
        "schedule": {"batch_groups": 1, "group_size": num_members},
        "evaluation": {"every_updates": 0},
    }
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section}
    return decode_config(tree, "attack")


def play(
    folder: Path,
    behaviours: Sequence[Behaviour],
    *,
    budget: dict[str, Any] | None = None,
    sandbox: dict[str, Any] | None = None,
    start_grader: StartGrader | None = None,
    watch: Callable[[Event, ChildGrader], None] = lambda event, grader: None,
    **sections: dict[str, Any],
) -> Played:
    """One update on groups whose member m behaves as `behaviours[m]` in group 0 and calculates in every other."""
    tools = {"tools": ["calculator", "python"], "wall_s": 5.0, **(sandbox or {})}
    config = config_of(len(behaviours), budget or {}, environment={"kind": "sandbox", "options": tools}, **sections)
    tasks = _tasks(config)

    def script(episode: EpisodeId, step: int) -> ScriptedTurn:
        behave = behaviours[episode.member] if episode.group.ordinal == 0 else calculates
        return behave(tasks.task("train", episode.group.ordinal), step)

    before = set(children(os.getpid()))
    options = decode_options(config.environment.options, SandboxOptions, "environment.options")

    async def run() -> tuple[ScriptedInference, ChatMLHarness, ChildGrader]:
        async with asyncio.timeout(120.0):
            return await _run(config, folder, options, script, start_grader or _placed(config), watch)

    inference, harness, grader = asyncio.run(run())
    assert set(children(os.getpid())) <= before
    verified = verify_run(folder)
    assert verified.is_sound, verified.problems
    with open_reader(folder) as reader:
        events = tuple(reader.events())
        report = report_run(events, reader.read)
        members = _members(events, reader.read)
    return Played(folder, config, events, report, members, inference, harness, grader)


def _tasks(config: Config) -> ReasoningGymTasks:
    kind, options = config.tasks.kind, config.tasks.options
    return open_tasks(kind, options, seed=config.run.seed, budget=config.budget, environment="sandbox")


def _placed(config: Config) -> StartGrader:
    async def start(isolation: Isolation) -> Child:
        return await Child.start("grader", place_grader(config.grader, isolation).argv, start_timeout_s=60.0)

    return start


async def _run(
    config: Config,
    folder: Path,
    options: SandboxOptions,
    script: Callable[[EpisodeId, int], ScriptedTurn],
    start_grader: StartGrader,
    watch: Callable[[Event, ChildGrader], None],
) -> tuple[ScriptedInference, ChatMLHarness, ChildGrader]:
    shelf = WeightShelf()
    async with contextlib.AsyncExitStack() as stack:
        environment = SandboxEnvironment(options)
        stack.push_async_callback(environment.stop)
        await environment.start()
        journal = SqliteJournal(folder, incarnation="test")
        stack.push_async_callback(journal.close)
        grader = await stack.enter_async_context(_grader(start_grader, environment.isolation))
        harness = open_harness("chatml", {}, environment.tools, None)
        inference = ScriptedInference(script, harness.turn_ids, shelf, policy_id=POLICY)
        cost = TrainerCost(update_s=Constant(value=0.0))
        trainer = SimulatedTrainer(cost, shelf, policy_id=POLICY, seed=config.run.seed, read=journal.read)
        initial = PolicyVersion(POLICY, 0, trainer.weights)
        facts = RunFacts("attack", "local", "", {"cores": 1.0}, initial, 1, [np.arange(8, dtype=np.int32)])
        ports = Ports(_tasks(config), harness, inference, environment, grader, trainer, journal)
        observers = (law_observer(LawChecker(bounds_of(config), journal.read)), lambda event: watch(event, grader))
        await Orchestrator(config, ports, facts, observers=observers).run()
        blobs = FileBlobs(folder / "blobs")
        for weights in (trainer.weights, initial.weights):
            blobs.put(canonical_bytes(shelf.read(weights)))
        return inference, harness, grader


@contextlib.asynccontextmanager
async def _grader(start: StartGrader, isolation: Isolation) -> AsyncIterator[ChildGrader]:
    grader = ChildGrader(await start(isolation), lambda: start(isolation))
    try:
        yield grader
    finally:
        await grader.close()


def _members(events: Sequence[Event], read: Callable[[Any], bytes]) -> dict[str, Member]:
    verdicts: dict[str, list[Verdict]] = {}
    for event in events:
        if isinstance(event.payload, VerdictSealed):
            verdict = msgspec.msgpack.decode(read(event.payload.verdict), type=Verdict)
            verdicts.setdefault(event.payload.transcript, []).append(verdict)
    return {
        event.key: Member(
            msgspec.msgpack.decode(read(event.payload.transcript), type=Transcript),
            msgspec.msgpack.decode(read(event.payload.side), type=SideRecord),
            event.payload,
            tuple(verdicts.get(event.payload.transcript, ())),
        )
        for event in events
        if isinstance(event.payload, TranscriptSealed)
    }
