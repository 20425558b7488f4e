"""A user's task set behind the port: a training stream and a held-out set that share no question.

Invariant: task i of a stream is a function of (seed, stream name, i) alone; no training task asks a held-out question, and
the held-out set does not depend on the run's seed.
"""

from collections.abc import Sequence

import numpy as np

from headrace.errors import ConfigError
from headrace.extend.problems import Problem
from headrace.extend.task_sets import TaskSet, TaskSetOptions
from headrace.records.streams import stream
from headrace.records.task import Budget, Task

INDEX_SPACE = 2**31
MAX_REDRAWS = 1000


class PythonTasks:
    """Implements `ports.TaskSource`.

    Attributes:
        cursor: ordinal of the next training task.
    """

    def __init__(self, options: TaskSetOptions, *, seed: int, budget: Budget, environment: str) -> None:
        self.cursor = 0
        self._options = options
        self._set = TaskSet(options)
        self._seed = seed
        self._budget = budget
        self._environment = environment
        self._held_out_questions: set[str] = set()
        self._order: dict[str, list[int]] = {}
        self._held_out = tuple(self._draw_held_out())

    def next(self) -> Task | None:
        num = self._num_training()
        if num is not None and self.cursor >= num:
            return None
        task = self.task("train", self.cursor)
        self.cursor += 1
        return task

    def held_out(self) -> Sequence[Task]:
        return self._held_out

    def task(self, name: str, ordinal: int) -> Task:
        """Task `ordinal` of the named stream; a finite set goes round in an order of its own."""
        if self._set.all is not None:
            order = self._training_order(name)
            index = order[ordinal % len(order)]
            return self._as_task(0, index, self._set.all[index])
        draw = stream(self._seed, "tasks", name, ordinal)
        for _ in range(MAX_REDRAWS):
            index = int(draw.integers(INDEX_SPACE))
            problem = self._set.problem(self._seed, index)
            if problem.question not in self._held_out_questions:
                return self._as_task(self._seed, index, problem)
        raise ConfigError(
            f"tasks: {MAX_REDRAWS} draws of {self._set.name} were all held out; lower tasks.options.held_out"
        )

    def _num_training(self) -> int | None:
        if self._options.num_training is not None or self._set.all is None:
            return self._options.num_training
        return len(self._training_order("train"))

    def _training_order(self, name: str) -> list[int]:
        """Indices of a finite set that are not held out, in the stream's own order."""
        assert self._set.all is not None
        if name not in self._order:
            left = [i for i, problem in enumerate(self._set.all) if problem.question not in self._held_out_questions]
            if not left:
                raise ConfigError(
                    f"tasks: {self._set.name} has {len(self._set.all)} problems and held_out is {self._options.held_out}; "
                    "nothing is left to train on, lower tasks.options.held_out"
                )
            order = stream(self._seed, "tasks", name, "order").permutation(np.array(left))
            self._order[name] = [int(index) for index in order]
        return self._order[name]

    def _draw_held_out(self) -> list[Task]:
        """The held-out tasks, and their questions noted."""
        options, tasks = self._options, list[Task]()
        draw = stream(options.held_out_seed, "tasks", "held_out", options.name)
        if self._set.all is not None:
            indices = [int(index) for index in draw.permutation(len(self._set.all))]
        else:
            indices = [int(index) for index in draw.integers(INDEX_SPACE, size=options.held_out + MAX_REDRAWS)]
        seed = 0 if self._set.all is not None else options.held_out_seed
        for index in indices:
            if len(tasks) >= options.held_out:
                return tasks
            problem = self._set.problem(seed, index)
            if problem.question not in self._held_out_questions:
                self._held_out_questions.add(problem.question)
                tasks.append(self._as_task(seed, index, problem))
        if len(tasks) < options.held_out:
            raise ConfigError(
                f"tasks.options.held_out is {options.held_out}; {self._set.name} has {len(tasks)} different questions; "
                "lower held_out"
            )
        return tasks

    def _as_task(self, seed: int, index: int, problem: Problem) -> Task:
        return problem.as_task(
            family=self._set.name, seed=seed, index=index, budget=self._budget, environment=self._environment
        )
