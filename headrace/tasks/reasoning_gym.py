"""Tasks of any reasoning-gym generator: an unlimited training stream and a held-out set, disjoint by question.

Invariant: task i of a stream is a function of (seed, stream name, i) alone, whatever was drawn before; no task of any stream
asks a held-out question. A draw that would is made again and counted. The answer that a generator returns together with a
question is dropped at once: a `Task` holds only what makes the entry again.

A stratum is a (generator, level). Each block of as many tasks as there are strata holds every stratum as often as its weight
says, up to rounding, in an order of its own; with equal weights that is once each.
"""

import bisect
import functools
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.config import decode_options
from headrace.errors import ConfigError
from headrace.records.streams import stream
from headrace.records.task import Budget, Task
from headrace.tasks.families import ReasoningGymOptions

DATASET_SEED = 0
INDEX_SPACE = 2**31
"""Entries of one generator. Entry i is drawn from seed + i, which some generators pass to numpy: it takes 32 bits."""

MAX_REDRAWS = 1000
_CACHED_BLOCKS = 64


class _Stratum:
    """One generator at one level."""

    def __init__(self, family: str, difficulty: str, config: dict[str, Any]) -> None:
        self.family = family
        self.difficulty = difficulty
        import reasoning_gym  # more than a second: not for whoever only reads options

        self.parameters = json.dumps({**config, "size": INDEX_SPACE}, sort_keys=True, separators=(",", ":"))
        try:
            # Made from the text that the grader will read, so that both make the same entries.
            self._dataset = reasoning_gym.create_dataset(family, seed=DATASET_SEED, **json.loads(self.parameters))
            self.question(0)
        except Exception as error:  # boundary: third-party generators raise what they like
            raise ConfigError(f"tasks: {family}/{difficulty} {config}: {type(error).__name__}: {error}") from error

    def __str__(self) -> str:
        return f"{self.family}/{self.difficulty}"

    def question(self, index: int) -> str:
        """What entry `index` asks."""
        return str(self._dataset[index]["question"])


class ReasoningGymTasks:
    """Implements `ports.TaskSource`.

    Attributes:
        cursor: ordinal of the next training task.
        num_redrawn: draws of this object that hit a held-out question.
    """

    def __init__(self, options: ReasoningGymOptions, *, seed: int, budget: Budget, environment: str) -> None:
        self.cursor = 0
        self.num_redrawn = 0
        self._options = options
        self._seed = seed
        self._budget = budget
        self._environment = environment
        self._strata, weights = _strata(options)
        self._cumulative = list(itertools.accumulate(weight / sum(weights) for weight in weights))
        self._block = functools.lru_cache(_CACHED_BLOCKS)(self._make_block)
        self._held_out_questions: set[str] = set()
        places = itertools.product(self._strata, range(options.held_out_per_stratum))
        self._held_out = tuple(self._draw_held_out(stratum, place) for stratum, place in places)

    def next(self) -> Task | None:
        if self._options.num_training is not None and self.cursor >= self._options.num_training:
            return None
        task = self.task("train", self.cursor)
        self.cursor += 1
        return task

    def held_out(self) -> Sequence[Task]:
        return self._held_out

    def task(self, name: str, ordinal: int) -> Task:
        """Task `ordinal` of the named stream; never a held-out one.

        Raises:
            ConfigError: when a stratum asks hardly anything but held-out questions.
        """
        block, place = divmod(ordinal, len(self._strata))
        stratum = self._strata[self._block(name, block)[place]]
        draw = stream(self._seed, "tasks", name, ordinal)
        for _ in range(MAX_REDRAWS):
            index = int(draw.integers(INDEX_SPACE))
            question = stratum.question(index)
            if question not in self._held_out_questions:
                return self._as_task(stratum, index, question)
            self.num_redrawn += 1
        raise ConfigError(f"tasks: {MAX_REDRAWS} draws of {stratum} were all held out; lower held_out_per_stratum")

    def _make_block(self, name: str, block: int) -> list[int]:
        """Strata of one block in order: systematic sampling of the weights, then a permutation."""
        draw = stream(self._seed, "tasks", name, "block", block)
        num = len(self._strata)
        points = (np.arange(num) + draw.random()) / num
        chosen = [min(bisect.bisect_right(self._cumulative, point), num - 1) for point in points.tolist()]
        return [chosen[place] for place in draw.permutation(num).tolist()]

    def _draw_held_out(self, stratum: _Stratum, place: int) -> Task:
        # Independent of the run's seed, so that runs with other seeds are measured on the same tasks.
        draw = stream(self._options.held_out_seed, "tasks", "held_out", str(stratum), stratum.parameters, place)
        for _ in range(MAX_REDRAWS):
            index = int(draw.integers(INDEX_SPACE))
            question = stratum.question(index)
            if question not in self._held_out_questions:
                self._held_out_questions.add(question)
                return self._as_task(stratum, index, question)
        raise ConfigError(
            f"tasks: {stratum} has too few questions for {self._options.held_out_per_stratum} held-out ones"
        )

    def _as_task(self, stratum: _Stratum, index: int, question: str) -> Task:
        return Task(
            family=stratum.family,
            difficulty=stratum.difficulty,
            seed=DATASET_SEED,
            index=index,
            question=question,
            budget=self._budget,
            environment=self._environment,
            parameters=stratum.parameters,
        )


def open_tasks(kind: str, options: dict[str, Any], *, seed: int, budget: Budget, environment: str) -> ReasoningGymTasks:
    """The task source of a configuration. Raises ConfigError."""
    if kind != "reasoning_gym":
        raise ConfigError(f"tasks.kind is {kind!r}; known: reasoning_gym")
    own = decode_options(options, ReasoningGymOptions, "tasks.options")
    return ReasoningGymTasks(own, seed=seed, budget=budget, environment=environment)


def _strata(options: ReasoningGymOptions) -> tuple[list[_Stratum], list[float]]:
    """All strata in order of their names, and their weights: a family's weight is shared evenly by its levels."""
    strata: list[_Stratum] = []
    weights: list[float] = []
    for family in sorted(options.families, key=lambda family: family.generator):
        for difficulty, config in sorted(family.levels.items()):
            strata.append(_Stratum(family.generator, difficulty, config))
            weights.append(family.weight / len(family.levels))
    return strata, weights
