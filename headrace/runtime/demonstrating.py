"""Demonstrations for a warm start: generated sloppy ones for reasoning-gym tasks, the oracle's turns for a user's own.

Invariant: what a demonstrated call shows is what the tool really answers.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.config import Config, decode_options
from headrace.environments.calculator import CalculatorError, calculate
from headrace.environments.tools import CALCULATOR, SCHEMAS, BadArguments, calculator_expression
from headrace.errors import ConfigError
from headrace.extend.problems import Call
from headrace.harness.demonstrations import DemonstratedTurn
from headrace.records.harness import ToolSchema
from headrace.records.task import Task
from headrace.runtime.adapters import open_tasks
from headrace.runtime.oracles import open_oracle
from headrace.runtime.parts import PYTHON
from headrace.runtime.policy import WarmStartOptions

STREAM = "demonstrations"


class ShownTurn(NamedTuple):
    """One turn with what its calls gave."""

    text: str
    calls: Sequence[str]
    outputs: Sequence[bytes]


def offered_tools(config: Config) -> tuple[ToolSchema, ...]:
    """Schemas of the environment's tools. Raises ConfigError."""
    if config.environment.kind == PYTHON:
        return _Part(config).tools
    from headrace.environments.sandbox.options import SandboxOptions

    names = decode_options(config.environment.options, SandboxOptions, "environment.options").tools
    return tuple(SCHEMAS[name] for name in names)


def demonstrations(
    config: Config, options: WarmStartOptions, seed: int
) -> Iterator[tuple[Task, Sequence[DemonstratedTurn]]]:
    """Tasks of a stream of their own, each with the turns to learn.

    Raises:
        ConfigError: when a task has no oracle, or its calls cannot be run.
    """
    tasks = open_tasks(config, seed)
    drawn = (tasks.task(STREAM, ordinal) for ordinal in range(options.demonstrations))
    if config.tasks.kind != PYTHON:
        from headrace.tasks.demonstrations import demonstrate

        for task in drawn:
            yield task, demonstrate(task, _calculated, seed=seed, sloppiness=options.sloppiness)
        return
    oracle, part = open_oracle(config), _Part(config) if config.environment.kind == PYTHON else None
    for task in drawn:
        turns = oracle(task)
        if turns is None:
            raise ConfigError(f"{task.family}[{task.index}] has no oracle, and a warm start learns from oracles")
        answer = _calculator_answer if part is None else part.opened(task)
        yield task, [ShownTurn(turn.text, [c.text for c in turn.calls], [*map(answer, turn.calls)]) for turn in turns]


class _Part:
    """The user's tools, in this process."""

    def __init__(self, config: Config) -> None:
        from headrace.environments.parts.environment import PythonEnvironmentOptions
        from headrace.environments.parts.host import hello_of
        from headrace.environments.parts.messages import PartSettings
        from headrace.extend.loading import load_part

        options = decode_options(config.environment.options, PythonEnvironmentOptions, "environment.options")
        self._part = load_part(options)
        self._settings = PartSettings(options.name, options.file, options.module, options.output_bytes, 0)
        self.tools = hello_of(self._part).tools

    def opened(self, task: Task) -> Any:
        """A function that answers calls on a fresh instance for the task."""
        from headrace.environments.parts.messages import Answer, Ask, Method
        from headrace.environments.parts.worker import EpisodeWorker
        from headrace.processes.frames import Frame, Kind

        worker = EpisodeWorker(self._part, self._settings)

        def ask(method: Method, request: Ask) -> bytes:
            frame = worker.answer(Frame(Kind.CALL, 1, method.value, msgspec.msgpack.encode(request)))
            if frame.kind is Kind.FAIL:
                raise ConfigError(f"{task.family}[{task.index}]: its oracle breaks the environment: {frame.text}")
            return msgspec.msgpack.decode(frame.payload, type=Answer).output

        data = msgspec.json.decode(task.parameters, type=dict[str, Any])
        ask(Method.OPEN, Ask("oracle", 0.0, question=task.question, difficulty=task.difficulty, data=data))

        def answer(call: Call) -> bytes:
            arguments = msgspec.json.encode(call.arguments).decode()
            return ask(Method.CALL, Ask("oracle", 0.0, text=call.tool, arguments=arguments))

        return answer


def _calculator_answer(call: Call) -> bytes:
    if call.tool != CALCULATOR.name:
        raise ConfigError(f"the oracle calls {call.tool}; of the sandbox's tools only {CALCULATOR.name} can be shown")
    try:
        return _calculated(calculator_expression(msgspec.json.encode(call.arguments).decode())).encode()
    except BadArguments as error:
        return f"error: {error}".encode()


def _calculated(expression: str) -> str:
    try:
        return calculate(expression)
    except CalculatorError as error:
        return f"error: {error}"
