"""`headrace check`: three policies without weights play a task set before anything is trained on it.

Invariant: the oracle reaches full marks on every task, the silent and the random policy do not, and nothing fails but the
policy; every exception to that is named with its episode and remedy. Environment, harness and grader are the real ones.
"""

import asyncio
import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence

from headrace.config import Config
from headrace.control.together import all_of
from headrace.errors import ConfigError
from headrace.inference.scripted import ScriptedInference, said
from headrace.records.arrays import IntArray
from headrace.records.ids import GroupId, PolicyId, PolicyRef, Purpose
from headrace.records.provenance import PolicyVersion, content_version
from headrace.records.segment import GenerateRequest, Sampling, TokenSegment
from headrace.records.task import Task
from headrace.records.terminal import InfraError, terminal_name
from headrace.records.verdict import Unscored
from headrace.runtime.adapters import open_tasks
from headrace.runtime.bench import Bench, Played, open_bench
from headrace.runtime.oracles import Script, open_oracle, oracle_script, random_script, silent_script
from headrace.runtime.preflight import preflight_tasks

ORACLE, SILENT, RANDOM = "oracle", "silent", "random"
_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class CheckSettings:
    """What is played.

    Attributes:
        train: number of training tasks, from the first on.
        held_out: number of held-out tasks; None for all.
        concurrency: episodes at a time.
        chance: largest share of full marks that the silent and the random policy may have.
    """

    train: int = 20
    held_out: int | None = None
    concurrency: int = 16
    chance: float = 0.0


@dataclasses.dataclass(frozen=True)
class PolicyCheck:
    """What came of one policy.

    Attributes:
        name: which policy.
        episodes: number of episodes.
        full: with a reward at the success bound or above.
        partial: with a reward between.
        zero: with reward 0.
        unscored: without a reward.
        infra: ended by a boundary.
        terminals: terminal states by name.
        turns: most turns of an episode.
        tokens: most tokens of an episode.
    """

    name: str
    episodes: int
    full: int
    partial: int
    zero: int
    unscored: int
    infra: int
    terminals: dict[str, int]
    turns: int
    tokens: int


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """The whole check.

    Attributes:
        policies: one entry each.
        problems: what is wrong, in words; empty when the task set may be trained on.
        fits: how a run would fit into context, slots and memory; empty when it would not, None where the configuration
            names no policy.
    """

    policies: tuple[PolicyCheck, ...]
    problems: tuple[str, ...]
    fits: str | None


def check_tasks(config: Config, settings: CheckSettings) -> CheckReport:
    """Plays the task set.

    Raises:
        ConfigError: when a part cannot be built, or there is no task.
    """
    return asyncio.run(_check(config, settings))


async def _check(config: Config, settings: CheckSettings) -> CheckReport:
    tasks = _chosen(config, settings)
    oracle = open_oracle(config)
    known = [task for task in tasks if oracle(task) is not None]
    problems = []
    if len(known) < len(tasks):
        missing = next(task for task in tasks if oracle(task) is None)
        problems.append(
            f"oracle: {len(tasks) - len(known)} of {len(tasks)} tasks have none, such as {_named(missing)}; give their "
            "problems an answer or an oracle"
        )
    async with open_bench(config) as bench:
        fits: str | None = ""
        try:
            fits = await preflight_tasks(config, bench.harness, tasks)
        except ConfigError as error:
            problems.append(str(error))
        scripts = {
            ORACLE: (oracle_script(bench.harness, oracle), known),
            SILENT: (silent_script(bench.harness), tasks),
            RANDOM: (random_script(bench.harness, bench.environment.tools, config.run.seed), tasks),
        }
        checks: list[PolicyCheck] = []
        for place, (name, (script, own)) in enumerate(scripts.items()):
            played = await _play_all(bench, script, own, place=place, concurrency=settings.concurrency)
            checks.append(_summary(name, played, config.evaluation.success_bound))
            problems += _problems(name, played, config, settings)
    return CheckReport(tuple(checks), tuple(problems), fits)


def _chosen(config: Config, settings: CheckSettings) -> list[Task]:
    source = open_tasks(config)
    held_out = list(source.held_out())[: settings.held_out]
    training = list(itertools.islice(iter(source.next, None), settings.train))
    if not held_out and not training:
        raise ConfigError("there is no task to check; raise --train, or tasks.options.held_out")
    return held_out + training


async def _play_all(
    bench: Bench, script: Script, tasks: Sequence[Task], *, place: int, concurrency: int
) -> list[Played]:
    policy = PolicyVersion(PolicyId("scripted"), 0, content_version("scripted", str(place)))
    by_group = {str(GroupId.of(Purpose.CHECK, index)): task for index, task in enumerate(tasks)}

    async def speak(request: GenerateRequest) -> Sequence[TokenSegment]:
        step = int(request.request_id.rpartition("/")[2])
        ids: IntArray = script(by_group[request.affinity], step)
        return [said(request, ids, PolicyRef(policy.policy_id, policy.version))]

    runner = bench.runner(ScriptedInference(speak), [policy], has_wall_limit=True)
    gate = asyncio.Semaphore(concurrency)

    async def play(index: int, task: Task) -> Played:
        async with gate:
            return await runner.run(task, GroupId.of(Purpose.CHECK, index), place, Sampling(1.0))

    return await all_of(play(index, task) for index, task in enumerate(tasks))


def _summary(name: str, played: Sequence[Played], bound: float) -> PolicyCheck:
    rewards = [item.reward for item in played if item.reward is not None]
    full = sum(reward >= bound for reward in rewards)
    zero = sum(reward == 0.0 for reward in rewards)
    return PolicyCheck(
        name=name,
        episodes=len(played),
        full=full,
        partial=len(rewards) - full - zero,
        zero=zero,
        unscored=len(played) - len(rewards),
        infra=sum(isinstance(item.transcript.terminal, InfraError) for item in played),
        terminals=dict(Counter(terminal_name(item.transcript.terminal) for item in played).most_common()),
        turns=max((_turns(item) for item in played), default=0),
        tokens=max((item.transcript.num_tokens for item in played), default=0),
    )


def _problems(name: str, played: Sequence[Played], config: Config, settings: CheckSettings) -> list[str]:
    bound, problems = config.evaluation.success_bound, list[str]()
    infra = [item for item in played if isinstance(item.transcript.terminal, InfraError)]
    if infra:
        told = infra[0].transcript.terminal
        detail = told.detail if isinstance(told, InfraError) else ""
        problems.append(f"{name}: {len(infra)} infrastructure failures, such as {_named(infra[0].task)}: {detail}")
    unscored = [item for item in played if isinstance(item.verdict.outcome, Unscored) and item not in infra]
    if unscored:
        outcome = unscored[0].verdict.outcome
        why = f"{outcome.cause.value}: {outcome.detail}" if isinstance(outcome, Unscored) else ""
        problems.append(f"{name}: {len(unscored)} episodes without a score, such as {_named(unscored[0].task)}: {why}")
    full = [item for item in played if item.reward is not None and item.reward >= bound]
    if name == ORACLE:
        below = [item for item in played if item.reward is not None and item.reward < bound]
        for item in below[:_SHOWN]:
            problems.append(
                f"{name}: {item.reward:g} of {bound:g} on {_named(item.task)}, which ended as "
                f"{terminal_name(item.transcript.terminal)}: {_evidence(item)}"
            )
        if len(below) > _SHOWN:
            problems.append(f"{name}: {len(below) - _SHOWN} more tasks below full marks")
    elif len(full) > settings.chance * len(played):
        problems.append(
            f"{name}: full marks on {len(full)} of {len(played)} tasks, such as {_named(full[0].task)}; at most a share of "
            f"{settings.chance:g} is allowed, make the grader stricter or raise --chance if tasks can be guessed"
        )
    return problems


def _turns(item: Played) -> int:
    return sum(segment.finish is not None for segment in item.transcript.sampled())


def _named(task: Task) -> str:
    question = task.question if len(task.question) <= 60 else task.question[:59] + "…"
    return f"{task.family}[{task.index}] {question!r}"


def _evidence(item: Played) -> str:
    outcome = item.verdict.outcome
    return outcome.detail if isinstance(outcome, Unscored) else f"{dict(outcome.components)} {outcome.evidence}"
