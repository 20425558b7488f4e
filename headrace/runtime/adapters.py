"""Which adapter a `kind` stands for: one table per port, from the name to the function that builds it.

Invariant: a kind that no table names is a `ConfigError` that lists the known ones; nothing heavy is imported for a kind that
is not used.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from headrace.config import Config, decode_options
from headrace.environments.sandbox.options import Isolation
from headrace.errors import ConfigError
from headrace.graders.service import GraderCore
from headrace.harness import WritingHarness
from headrace.ports import Environment, TaskSource
from headrace.processes.child import Child
from headrace.records.harness import ToolSchema
from headrace.records.task import Task
from headrace.runtime.folders import WORKSPACES
from headrace.runtime.workers.settings import command

START_TIMEOUT_S = 120.0
T = TypeVar("T")


class LocalEnvironment(Environment, Protocol):
    """An environment with a life of its own."""

    @property
    def isolation(self) -> Isolation:
        """How strong its walls are; known after `start`."""
        ...

    async def start(self) -> None:
        """Returns once it can open episodes. Raises ConfigError or EnvironmentFault."""
        ...

    async def stop(self) -> None:
        """Frees everything."""
        ...


class NamedTasks(TaskSource, Protocol):
    """A task source whose streams have names."""

    def task(self, name: str, ordinal: int) -> Task:
        """Task `ordinal` of the named stream; never a held-out one."""
        ...


def open_environment(config: Config, folder: Path | None = None) -> LocalEnvironment:
    """The environment of a configuration, not yet started; `folder` is the run's, for what outlives this process.

    Raises:
        ConfigError: for a kind that does not exist, or options that it does not have.
    """
    return _known(ENVIRONMENTS, config.environment.kind, "environment.kind")(config, folder)


def open_tasks(config: Config, seed: int | None = None) -> NamedTasks:
    """The task source of a configuration; `seed` takes the place of the run's. Raises ConfigError."""
    build = _known(TASKS, config.tasks.kind, "tasks.kind")
    return build(config, config.run.seed if seed is None else seed)


def open_grader_core(kind: str, options: dict[str, Any]) -> GraderCore:
    """The core of a configured grader, for the process that may hold answers. Raises ConfigError."""
    return _known(GRADERS, kind, "grader.kind")(options)


def open_harness(config: Config, tools: tuple[ToolSchema, ...], folder: Path | None = None) -> WritingHarness:
    """The harness of a configuration; `folder` holds the policy's tokenizer.json. Raises ConfigError."""
    return _known(HARNESSES, config.harness.kind, "harness.kind")(config, tools, folder)


async def start_worker(name: str, argv: list[str]) -> Child:
    """A worker of ours that has said hello. Raises ProcessError."""
    return await Child.start(name, argv, start_timeout_s=START_TIMEOUT_S, env={"OMP_NUM_THREADS": "1"})


def _sandbox(config: Config, _folder: Path | None) -> LocalEnvironment:
    from headrace.environments.sandbox.environment import SandboxEnvironment
    from headrace.environments.sandbox.options import SandboxOptions

    return SandboxEnvironment(decode_options(config.environment.options, SandboxOptions, "environment.options"))


def _workspace(config: Config, folder: Path | None) -> LocalEnvironment:
    from headrace.environments.workspace.environment import WorkspaceEnvironment
    from headrace.environments.workspace.options import WorkspaceOptions

    options = decode_options(config.environment.options, WorkspaceOptions, "environment.options")
    return WorkspaceEnvironment(options, None if folder is None else folder / WORKSPACES)


def _python_environment(config: Config, _folder: Path | None) -> LocalEnvironment:
    from headrace.environments.parts.environment import PythonEnvironment, PythonEnvironmentOptions
    from headrace.environments.parts.messages import PartSettings

    options = decode_options(config.environment.options, PythonEnvironmentOptions, "environment.options")
    settings = PartSettings(options.name, options.file, options.module, options.output_bytes, options.memory_bytes)
    return PythonEnvironment(options, lambda: start_worker("environment", command("environment", settings)))


def _reasoning_gym_tasks(config: Config, seed: int) -> NamedTasks:
    from headrace.tasks.reasoning_gym import open_tasks as open_reasoning_gym

    return open_reasoning_gym(
        config.tasks.kind,
        config.tasks.options,
        seed=seed,
        budget=config.budget,
        environment=config.environment.kind,
    )


def _python_tasks(config: Config, seed: int) -> NamedTasks:
    from headrace.extend.task_sets import TaskSetOptions
    from headrace.tasks.parts import PythonTasks

    options = decode_options(config.tasks.options, TaskSetOptions, "tasks.options")
    return PythonTasks(options, seed=seed, budget=config.budget, environment=config.environment.kind)


def _reasoning_gym_grader(options: dict[str, Any]) -> GraderCore:
    from headrace.graders.reasoning_gym import ReasoningGymGrader, ReasoningGymGraderOptions

    return ReasoningGymGrader(decode_options(options, ReasoningGymGraderOptions, "grader.options"))


def _reward_model(options: dict[str, Any]) -> GraderCore:
    from headrace.graders.reward_model import RewardModelGrader, RewardModelOptions

    return RewardModelGrader(decode_options(options, RewardModelOptions, "grader.options"))


def _python_grader(options: dict[str, Any]) -> GraderCore:
    from headrace.graders.parts import PythonGrader, PythonGraderOptions

    return PythonGrader(decode_options(options, PythonGraderOptions, "grader.options"))


def _chatml(config: Config, tools: tuple[ToolSchema, ...], folder: Path | None) -> WritingHarness:
    from headrace.harness import open_harness as open_chatml

    return open_chatml(config.harness.kind, config.harness.options, tools, folder)


def _renderers(config: Config, tools: tuple[ToolSchema, ...], folder: Path | None) -> WritingHarness:
    from headrace.harness.rendered import RenderedHarness, RenderersOptions

    if folder is None:
        raise ConfigError(
            "harness.kind is 'renderers', which takes the tokenizer of the policy's folder; policy.kind has to be `folder` "
            f"or `gguf`, not {config.policy.kind!r}"
        )
    return RenderedHarness(decode_options(config.harness.options, RenderersOptions, "harness.options"), tools, folder)


ENVIRONMENTS: Mapping[str, Callable[[Config, Path | None], LocalEnvironment]] = {
    "sandbox": _sandbox,
    "workspace": _workspace,
    "python": _python_environment,
}
TASKS: Mapping[str, Callable[[Config, int], NamedTasks]] = {
    "reasoning_gym": _reasoning_gym_tasks,
    "python": _python_tasks,
}
GRADERS: Mapping[str, Callable[[dict[str, Any]], GraderCore]] = {
    "reasoning_gym": _reasoning_gym_grader,
    "python": _python_grader,
    "reward_model": _reward_model,
}
HARNESSES: Mapping[str, Callable[[Config, tuple[ToolSchema, ...], Path | None], WritingHarness]] = {
    "chatml": _chatml,
    "renderers": _renderers,
}


def _known(table: Mapping[str, T], kind: str, where: str) -> T:
    if kind not in table:
        raise ConfigError(f"{where} is {kind!r}; known: {', '.join(sorted(table))}")
    return table[kind]
