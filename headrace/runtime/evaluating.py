"""`headrace eval`: a model on tasks, with intervals, and two models on the same tasks.

Invariant: an episode without a score is in no figure and is counted; two models see the same tasks with the same sampling
streams, so that a difference is the models' own.
"""

import asyncio
import dataclasses
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headrace.algorithms.comparison import PairedComparison, bootstrap_mean, compare_paired, pass_at_k
from headrace.algorithms.intervals import Interval, wilson_interval
from headrace.config import Config
from headrace.control.together import all_of
from headrace.errors import ConfigError
from headrace.inference.child import ChildInference
from headrace.records.ids import GroupId, PolicyRef, Purpose
from headrace.records.segment import Sampling
from headrace.records.streams import stream
from headrace.records.task import Task
from headrace.runtime.adapters import open_tasks
from headrace.runtime.bench import open_bench
from headrace.runtime.engines import open_engine
from headrace.runtime.folders import find_run
from headrace.runtime.models import Model, open_model, run_config
from headrace.runtime.parts import load_with_parts
from headrace.runtime.preflight import model_shape, preflight, prompt_lengths, tokenizer_ids
from headrace.store.reader import open_reader


@dataclasses.dataclass(frozen=True)
class EvalSettings:
    """What is measured.

    Attributes:
        samples: attempts at each task.
        temperature: sampling temperature.
        limit: number of held-out tasks, spread evenly over all; None for all.
        train: take so many tasks of the training stream instead.
        concurrency: episodes at a time.
    """

    samples: int = 1
    temperature: float = 1.0
    limit: int | None = None
    train: int = 0
    concurrency: int = 64

    def check(self) -> None:
        """Raises ConfigError for a value out of its bounds."""
        for name, least in (("samples", 1), ("concurrency", 1), ("train", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"--{name} is {getattr(self, name)}; it must be at least {least}")
        if not 0.0 <= self.temperature <= 10.0:
            raise ConfigError(f"--temperature is {self.temperature}; it must lie in [0, 10]")


@dataclasses.dataclass(frozen=True)
class TaskScore:
    """One task.

    Attributes:
        task: which.
        successes: attempts at or above the success bound.
        scored: attempts with a reward.
        reward: sum of their rewards.
    """

    task: Task
    successes: int
    scored: int
    reward: float


@dataclasses.dataclass(frozen=True)
class PassAtK:
    """One figure with its interval.

    Attributes:
        k: attempts.
        value: unbiased estimate, mean over tasks.
        interval: 95%.
        method: how the interval was made.
    """

    k: int
    value: float
    interval: Interval
    method: str


@dataclasses.dataclass(frozen=True)
class ModelScore:
    """One model.

    Attributes:
        model: its name.
        fits: what its engine holds, and of how much.
        tasks: scores by task.
        passes: pass@k.
        mean_reward: over scored attempts.
        unscored: attempts without a reward.
    """

    model: str
    fits: str
    tasks: tuple[TaskScore, ...]
    passes: tuple[PassAtK, ...]
    mean_reward: float
    unscored: int


@dataclasses.dataclass(frozen=True)
class EvalReport:
    """Everything that was measured.

    Attributes:
        scores: one per model, in the order given.
        comparison: first against second, if there are two.
    """

    scores: tuple[ModelScore, ...]
    comparison: PairedComparison | None


def evaluate(models: Sequence[str], tasks: str | Config, runs: Path, settings: EvalSettings) -> EvalReport:
    """One or two models on the tasks of a TOML file, of a run, or of a configuration that is there already.

    Raises:
        ConfigError: when a model or the tasks are not there, or a value is out of bounds.
    """
    settings.check()
    config = tasks if isinstance(tasks, Config) else _config_of(tasks, runs)
    with tempfile.TemporaryDirectory(prefix="headrace-eval-") as scratch:
        opened = [open_model(name, runs, Path(scratch)) for name in models]
        scores = tuple(asyncio.run(_score(model, config, settings)) for model in opened)
    comparison = None
    if len(scores) == 2:
        pairs = [
            pair for pair in zip(*(score.tasks for score in scores), strict=True) if all(one.scored for one in pair)
        ]
        if not pairs:
            raise ConfigError("no task was scored for both models; there is nothing to compare")
        means = [[one.successes / one.scored for one in side] for side in zip(*pairs, strict=True)]
        draw = stream(config.run.seed, "eval", "comparison")
        comparison = compare_paired(means[0], means[1], draw, is_single=settings.samples == 1)
    return EvalReport(scores, comparison)


def _config_of(tasks: str, runs: Path) -> Config:
    if Path(tasks).suffix == ".toml":
        return load_with_parts(Path(tasks))
    run = find_run(runs, tasks)
    with open_reader(run) as reader:
        return run_config(reader, run)


async def _score(model: Model, config: Config, settings: EvalSettings) -> ModelScore:
    tasks = _tasks(config, settings)
    has_tokenizer = (model.folder / "tokenizer.json").is_file()
    async with open_bench(config, model.folder if has_tokenizer else None) as bench:
        vocabulary, prompts = tokenizer_ids(bench.harness), prompt_lengths(bench.harness, tasks)
        shape = model_shape(config, model.folder, vocabulary)
        fits = preflight(config, shape, vocabulary, prompts, workers=("engine",))
        child = await open_engine(config.inference).start(model.folder, model.blobs)
        try:
            inference, policy = ChildInference(child), PolicyRef(model.policy.policy_id, model.policy.version)
            await inference.stage(policy, model.policy.weights, config.timeouts.publish_s)
            await inference.activate(policy, frozenset(), config.timeouts.publish_s)
            runner = bench.runner(inference, [model.policy], has_wall_limit=True)
            gate = asyncio.Semaphore(settings.concurrency)

            async def attempt(index: int, member: int) -> float | None:
                async with gate:
                    group, sampling = GroupId.of(Purpose.EVAL, index), Sampling(settings.temperature)
                    return (await runner.run(tasks[index], group, member, sampling)).reward

            pairs = list(itertools.product(range(len(tasks)), range(settings.samples)))
            rewards = await all_of(attempt(*pair) for pair in pairs)
        finally:
            await child.close()
    of_task = [rewards[start : start + settings.samples] for start in range(0, len(rewards), settings.samples)]
    return _summary(model.name, fits, tasks=tasks, rewards=of_task, config=config)


def _tasks(config: Config, settings: EvalSettings) -> list[Task]:
    source = open_tasks(config)
    if settings.train:
        return [source.task("train", ordinal) for ordinal in range(settings.train)]
    held_out = source.held_out()
    limit = len(held_out) if settings.limit is None else min(settings.limit, len(held_out))
    tasks = [held_out[number * len(held_out) // limit] for number in range(limit)]
    if not tasks:
        raise ConfigError("there are no held-out tasks; give --train N, or raise the task set's held-out number")
    return tasks


def _summary(
    name: str, fits: str, *, tasks: Sequence[Task], rewards: Sequence[Sequence[float | None]], config: Config
) -> ModelScore:
    bound = config.evaluation.success_bound
    scores: list[TaskScore] = []
    for task, attempts in zip(tasks, rewards, strict=True):
        scored = [reward for reward in attempts if reward is not None]
        scores.append(TaskScore(task, sum(reward >= bound for reward in scored), len(scored), sum(scored)))
    total = sum(score.scored for score in scores)
    return ModelScore(
        model=name,
        fits=fits,
        tasks=tuple(scores),
        passes=tuple(_passes(scores, stream(config.run.seed, "eval", "bootstrap"))),
        mean_reward=sum(score.reward for score in scores) / total if total else float("nan"),
        unscored=sum(len(attempts) for attempts in rewards) - total,
    )


def _passes(scores: Sequence[TaskScore], draw: np.random.Generator) -> list[PassAtK]:
    """pass@1, 2, 4, … as far as every scored task has attempts."""
    scored = [score for score in scores if score.scored]
    if not scored:
        return []
    fewest, passes, k = min(score.scored for score in scored), list[PassAtK](), 1
    while k <= fewest:
        values = [pass_at_k(score.scored, score.successes, k) for score in scored]
        if all(score.scored == 1 for score in scored):
            interval, method = wilson_interval(sum(score.successes for score in scored), len(scored)), "Wilson"
        else:
            interval, method = bootstrap_mean(values, draw), "bootstrap over tasks"
        passes.append(PassAtK(k, sum(values) / len(values), interval, method))
        k *= 2
    return passes
