"""A user's own grader: a typed function that returns a number, named scores, or None for "not scored".

Invariant: the answer comes from the task set, which the grader's process asks again by (seed, index) and trusts only when it
asks the same question; nothing of it is in the submission. An exception of the function is the grader's fault, never a 0.
"""

import functools
import inspect
import json
import numbers
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from headrace.config import Section
from headrace.errors import ConfigError
from headrace.extend.loading import PartOptions, load_part, part_version
from headrace.extend.problems import Problem
from headrace.extend.task_sets import TaskSet, TaskSetOptions
from headrace.records.ids import Address
from headrace.records.task import Task
from headrace.records.verdict import Scored, Submission, Unscored, UnscoredCause, Verdict

_CACHED_PROBLEMS = 4096
_QUOTED_CHARS = 200
_OFFERED = ("answer", "problem", "artifact")


class PythonGraderOptions(PartOptions, Section, frozen=True):
    """Options of the `python` grader.

    Attributes:
        tasks: the task set whose answers it compares with; by default the configuration's own when that is `python` too.
    """

    tasks: TaskSetOptions | None = None


class PythonGrader:
    """The synchronous core around the function."""

    scope: Literal["episode"] = "episode"

    def __init__(self, options: PythonGraderOptions) -> None:
        """Raises ConfigError when there is no such function, or it asks for something that is not offered."""
        self._function: Callable[..., Any] = load_part(options)
        self._tasks = None if options.tasks is None else TaskSet(options.tasks)
        self._wanted = _wanted(options.name, self._function)
        self._problem = functools.lru_cache(_CACHED_PROBLEMS)(self._make_problem)
        tasks = "" if options.tasks is None else part_version(options.tasks)
        self.version: Address = part_version(options, tasks)

    def grade(self, submission: Submission) -> Verdict:
        """The function's verdict. What the function raises is raised: the caller makes an absent score of it."""
        problem = self._problem(submission.task)
        offered = {
            "answer": submission.final_text.strip(),
            "problem": problem,
            "artifact": submission.artifact,
        }
        returned = self._function(**{name: offered[name] for name in self._wanted})
        if returned is None:
            outcome: Scored | Unscored = Unscored(UnscoredCause.DECLINED, "the grader returned None: not scored")
        else:
            evidence = {"given": _quoted(offered["answer"]), "expected": _quoted(str(problem.answer))}
            outcome = Scored(_components(returned), json.dumps(evidence))
        return Verdict(submission.transcript, self.version, outcome)

    def _make_problem(self, task: Task) -> Problem:
        if self._tasks is not None:
            return self._tasks.problem_of(task)
        data = msgspec.json.decode(task.parameters, type=dict[str, Any])
        return Problem(task.question, difficulty=task.difficulty, data=data)


def _wanted(name: str, function: Callable[..., Any]) -> tuple[str, ...]:
    if not callable(function):
        raise ConfigError(f"grader {name} is a {type(function).__name__}; a function is needed")
    wanted = tuple(inspect.signature(function).parameters)
    unknown = [parameter for parameter in wanted if parameter not in _OFFERED]
    if unknown:
        raise ConfigError(f"grader {name} asks for {', '.join(unknown)}; it may ask for {', '.join(_OFFERED)}")
    return wanted


def _components(returned: Any) -> tuple[tuple[str, float], ...]:
    """Named scores. Raises TypeError for what is no number; bounds are checked where verdicts are."""
    named: Mapping[str, Any] = returned if isinstance(returned, Mapping) else {"score": returned}
    for name, value in named.items():
        if not isinstance(value, numbers.Real):
            raise TypeError(f"score {name} is {value!r}; return a number, named numbers, or None for not scored")
    return tuple((str(name), float(value)) for name, value in named.items())


def _quoted(text: str) -> str:
    return text if len(text) <= _QUOTED_CHARS else f"{text[:_QUOTED_CHARS]}… ({len(text)} characters)"
