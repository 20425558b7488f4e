"""The port of the tasks: training tasks at a cursor, held-out ones apart."""

from collections.abc import Sequence
from typing import Protocol

from headrace.records.task import Task


class TaskSource(Protocol):
    """A cursor over training tasks, and the held-out set. The split is by task content."""

    def next(self) -> Task | None:
        """The task at the cursor, which moves on; None once exhausted."""
        ...

    def held_out(self) -> Sequence[Task]:
        """Tasks that never enter training, the same in every call."""
        ...
