"""Policies that need no weights, for `headrace check` alone: one that knows, one that says nothing, one that guesses.

Invariant: an answer is looked up here and in the grader's process, and nowhere else; no training run builds any of
this.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.config import Config, decode_options
from headrace.errors import ConfigError
from headrace.extend.problems import Turn
from headrace.harness import WritingHarness
from headrace.records.arrays import IntArray, as_int32, int32_bytes
from headrace.records.harness import ToolSchema
from headrace.records.streams import stream
from headrace.records.task import Task

Script = Callable[[Task, int], IntArray]
"""Ids of turn `step` of the episode on a task."""

Oracle = Callable[[Task], Sequence[Turn] | None]
"""Turns of a perfect policy on a task; None when nobody knows any."""

_RANDOM_CALL_SHARE = 0.5
_RANDOM_TOKENS = 24


class NoOracle(ConfigError):
    """Nobody knows how a perfect policy would go about the task."""


def open_oracle(config: Config) -> Oracle:
    """The oracle of the configured task set. Raises ConfigError."""
    if config.tasks.kind not in ORACLES:
        raise ConfigError(f"tasks.kind is {config.tasks.kind!r}; an oracle is known for {', '.join(sorted(ORACLES))}")
    return ORACLES[config.tasks.kind](config)


def oracle_script(harness: WritingHarness, oracle: Oracle) -> Script:
    """Says the oracle's turns; an episode that goes on after the last one gets silence."""

    def speak(task: Task, step: int) -> IntArray:
        turns = oracle(task)
        if turns is None:
            raise NoOracle(f"{task.family}[{task.index}] has no oracle")
        if step >= len(turns):
            return harness.turn_ids("", ())
        return harness.turn_ids(turns[step].text, [call.text for call in turns[step].calls])

    return speak


def silent_script(harness: WritingHarness) -> Script:
    """Ends its first turn at once."""
    return lambda _task, _step: harness.turn_ids("", ())


def random_script(harness: WritingHarness, tools: Sequence[ToolSchema], seed: int) -> Script:
    """Tokens at random, calls with arguments at random, short answers at random; a function of the seed and the task."""
    vocabulary = np.array(sorted(harness.codec.known_ids), dtype=np.int32)

    def speak(task: Task, step: int) -> IntArray:
        draw = stream(seed, "check", "random", task.address, step)
        if tools and draw.random() < _RANDOM_CALL_SHARE:
            tool = tools[int(draw.integers(len(tools)))]
            arguments = _random_value(json.loads(tool.parameters), draw)
            return harness.turn_ids("", [json.dumps({"name": tool.name, "arguments": arguments})])
        if draw.random() < _RANDOM_CALL_SHARE:
            return harness.turn_ids(str(int(draw.integers(10_000))), ())
        size = int(draw.integers(1, _RANDOM_TOKENS))
        return as_int32(int32_bytes([*map(int, draw.choice(vocabulary, size)), harness.stop_ids[0]]))

    return speak


def _random_value(schema: Mapping[str, Any], draw: np.random.Generator) -> Any:
    """A value that often fits a schema."""
    if "enum" in schema:
        return schema["enum"][int(draw.integers(len(schema["enum"])))]
    match schema.get("type"):
        case "object":
            return {name: _random_value(of_name, draw) for name, of_name in schema.get("properties", {}).items()}
        case "array":
            return [_random_value(schema.get("items", {}), draw) for _ in range(int(draw.integers(3)))]
        case "integer":
            return int(draw.integers(100))
        case "number":
            return round(float(draw.random()) * 100, 2)
        case "boolean":
            return bool(draw.integers(2))
        case _:
            return str(int(draw.integers(10_000)))


def _python_oracle(config: Config) -> Oracle:
    from headrace.extend.task_sets import TaskSet, TaskSetOptions

    problems = TaskSet(decode_options(config.tasks.options, TaskSetOptions, "tasks.options"))
    return lambda task: problems.problem_of(task).oracle


def _reasoning_gym_oracle(config: Config) -> Oracle:
    del config
    import reasoning_gym

    def turns(task: Task) -> Sequence[Turn] | None:
        dataset = reasoning_gym.create_dataset(task.family, seed=task.seed, **json.loads(task.parameters))
        answer = dataset[task.index].get("answer")
        return None if answer is None else (Turn(str(answer)),)

    return turns


ORACLES: Mapping[str, Callable[[Config], Oracle]] = {
    "python": _python_oracle,
    "reasoning_gym": _reasoning_gym_oracle,
}
