"""A task source that follows a workload: the task at an index is the same whenever it is asked for."""

from collections.abc import Sequence

from headrace.records.task import Budget, Task
from headrace.simulation.workload import HELD_OUT, Draws

ROOMY_BUDGET = Budget(
    turns=1_000,
    episode_tokens=1 << 30,
    turn_tokens=1 << 29,
    observation_tokens=1 << 20,
    wall_s=1e9,
    environment_cpu_s=1e9,
    malformed_calls=1_000,
)
"""A budget that no published workload reaches."""


class SimulatedTasks:
    """`TaskSource`. Training tasks have indices from 0, held-out ones from `HELD_OUT`, so that no content is in both.

    Attributes:
        cursor: index of the next training task.
    """

    def __init__(
        self, draws: Draws, *, budget: Budget = ROOMY_BUDGET, num_train: int | None = None, num_held_out: int = 0
    ) -> None:
        """A source at its start.

        Args:
            draws: the workload under its seed.
            budget: limits of every episode.
            num_train: training tasks; None never ends.
            num_held_out: held-out tasks.
        """
        self.cursor = 0
        self._draws = draws
        self._budget = budget
        self._num_train = num_train
        self._held_out = tuple(self.task(HELD_OUT + position) for position in range(num_held_out))

    def next(self) -> Task | None:
        if self._num_train is not None and self.cursor >= self._num_train:
            return None
        task = self.task(self.cursor)
        self.cursor += 1
        return task

    def held_out(self) -> Sequence[Task]:
        return self._held_out

    def task(self, index: int) -> Task:
        """The task at an index."""
        workload = self._draws.workload
        split = "held-out" if index >= HELD_OUT else "training"
        return Task(
            family=workload.name,
            difficulty=self._draws.task(index).stratum.name,
            seed=self._draws.seed,
            index=index,
            question=f"{split} task {index % HELD_OUT}",
            budget=self._budget,
            environment="simulated",
        )
