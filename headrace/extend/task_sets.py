"""A user's task set: a function of (seed, index) that makes problems without end, or one that returns all there are.

Invariant: a problem is made again from (seed, index) alone, and counts only when it asks what the task asks.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from headrace.config import Section
from headrace.errors import ConfigError
from headrace.extend.loading import PartOptions, load_part
from headrace.extend.problems import Problem
from headrace.records.task import Task


class TaskSetOptions(PartOptions, Section, frozen=True):
    """Options of the `python` task source.

    Attributes:
        held_out: number of held-out tasks.
        held_out_seed: chooses them, apart from the run's seed.
        num_training: length of the training stream; None for one without end, or one pass over a finite set.
    """

    held_out: int = 50
    held_out_seed: int = 0
    num_training: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.held_out < 0:
            raise ValueError(f"tasks.held_out is {self.held_out}; it must not be negative")
        if self.num_training is not None and self.num_training < 1:
            raise ValueError(f"tasks.num_training is {self.num_training}; it must be at least 1")


class TaskSet:
    """Problems by (seed, index).

    Attributes:
        name: family of its tasks.
        all: every problem of a finite set; None for one without end.
    """

    def __init__(self, options: TaskSetOptions) -> None:
        """Raises ConfigError when the function cannot be found or called, or yields no problems."""
        self.name = options.name
        self._function: Callable[..., Any] = load_part(options)
        if not callable(self._function):
            raise ConfigError(f"task set {self.name} is a {type(self._function).__name__}; a function is needed")
        wanted = set(inspect.signature(self._function).parameters)
        if wanted not in (set(), {"seed", "index"}):
            raise ConfigError(
                f"task set {self.name} has parameters {sorted(wanted)}; write {self.name}(seed, index) for one problem "
                f"each, or {self.name}() that returns them all"
            )
        self.all: Sequence[Problem] | None = None if wanted else self._collected()

    def problem(self, seed: int, index: int) -> Problem:
        """Problem `index`. Raises ConfigError when the function fails or gives something else."""
        if self.all is not None:
            if not 0 <= index < len(self.all):
                raise ConfigError(f"task set {self.name} has {len(self.all)} problems; there is none of index {index}")
            return self.all[index]
        return self._checked(self._called(seed=seed, index=index), index)

    def problem_of(self, task: Task) -> Problem:
        """The problem that the task was made of. Raises ConfigError when it asks something else by now."""
        problem = self.problem(task.seed, task.index)
        if problem.question != task.question:
            raise ConfigError(f"{self.name}[{task.index}] asks something else than the task of that name")
        return problem

    def _collected(self) -> list[Problem]:
        try:
            found = list(self._called())
        except TypeError as error:
            raise ConfigError(f"task set {self.name}: a list of problems is needed: {error}") from error
        if not found:
            raise ConfigError(f"task set {self.name} is empty")
        return [self._checked(problem, index) for index, problem in enumerate(found)]

    def _called(self, **arguments: int) -> Any:
        try:
            return self._function(**arguments)
        except Exception as error:  # boundary: a user's code raises what it likes
            raise ConfigError(f"task set {self.name} with {arguments}: {type(error).__name__}: {error}") from error

    def _checked(self, problem: Any, index: int) -> Problem:
        if not isinstance(problem, Problem):
            raise ConfigError(
                f"{self.name}[{index}] is a {type(problem).__name__}; a headrace.extend.Problem is needed"
            )
        return problem
