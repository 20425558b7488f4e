"""The admission loop: draws tasks while there is credit.

* consumes: tasks and credit.
* waits for: a slot.
* unblocked by: a version bump that gives slots back, or a rejection.
* produces: `TaskDrawn`, `GroupAdmitted`, running groups; `SourceExhausted` once.
"""

from collections import deque

from headrace.control.collecting import Collector
from headrace.control.context import RunContext
from headrace.control.recorder import sealed_row
from headrace.control.recovery import RunPast
from headrace.errors import ConfigError
from headrace.ports import TaskSource
from headrace.records.ids import Address
from headrace.records.task import SourceExhausted, Task
from headrace.scheduling.admission import Admission, AdmissionState


class SourceLoop:
    """Draws and admits."""

    def __init__(
        self,
        source: TaskSource,
        collector: Collector,
        context: RunContext,
        admission: Admission,
    ) -> None:
        self._source = source
        self._collector = collector
        self._context = context
        self._admission = admission
        self._again: deque[Task] = deque()
        self.is_exhausted = False

    def hold_reason(self) -> str | None:
        """Why nothing is admitted at present."""
        collector = self._collector
        state = AdmissionState(collector.outstanding, collector.trained, self.is_exhausted)
        return self._admission.hold_reason(state)

    def draw_again(self, task: Task) -> None:
        """The task comes before any other, under a new ordinal; an exhausted source takes none back."""
        self._again.append(task)
        self._context.changed.notify()

    def restore(self, past: RunPast) -> None:
        """Moves the cursor to where the run's earlier processes left it.

        Raises:
            ConfigError: when the source does not give the tasks that were drawn then.
        """
        held: Task | None = None
        drawn: set[Address] = set()
        for ordinal, address in enumerate(past.tasks):
            held = held or self._source.next()
            if held is not None and sealed_row("task", held).address == address:
                held = None
            elif address not in drawn:  # a task that was drawn again did not move the source
                found = "nothing more" if held is None else f"{held.family} {held.question!r}"
                raise ConfigError(
                    f"task {ordinal} of the source is {found}, the run drew {address}; it cannot go on with other tasks "
                    "or code, start a new run"
                )
            drawn.add(address)
        if held is not None:
            self._again.append(held)
        self.is_exhausted = past.is_exhausted

    async def run(self) -> None:
        """Admits until the source is exhausted."""
        while not self.is_exhausted:
            await self._context.changed.wait_until(lambda: self.hold_reason() is None)
            task = self._again.popleft() if self._again else self._source.next()
            if task is None:
                self.is_exhausted = True
                drawn = self._collector.frontier.drawn
                self._context.recorder.record(SourceExhausted(drawn), key="source")
                self._context.changed.notify()
                return
            self._collector.admit(task)
