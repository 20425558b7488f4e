"""The admission loop: draws tasks while there is credit.

* consumes: tasks and credit.
* waits for: a slot.
* unblocked by: a version bump that gives slots back, or a rejection.
* produces: `TaskDrawn`, `GroupAdmitted`, running groups; `SourceExhausted` once.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from headrace.control.collecting import Collector
from headrace.control.context import RunContext
from headrace.control.past import RunPast
from headrace.control.recorder import sealed_row
from headrace.errors import ConfigError
from headrace.ports import Row, TaskSource
from headrace.records.ids import Address, GroupId
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
        *,
        is_held: Callable[[], str | None] = lambda: None,
    ) -> None:
        """A loop that admits while `admission` has no reason against it, and `is_held` none."""
        self._source = source
        self._collector = collector
        self._context = context
        self._admission = admission
        self._is_held = is_held
        self._again: deque[tuple[Task, GroupId]] = deque()
        self._max_outstanding = collector.max_outstanding
        self.is_exhausted = False

    def hold_reason(self) -> str | None:
        """Why nothing is admitted at present."""
        version, outstanding = self._context.versions.current, self._collector.outstanding
        state = AdmissionState(outstanding, self._max_outstanding, version, self.is_exhausted)
        return self._admission.hold_reason(state) or self._broken_reason()

    def _may_admit(self) -> bool:
        """Whether a group may start now."""
        return self.hold_reason() is None

    def _broken_reason(self) -> str | None:
        """Attempts of running groups try what is broken again; with none left a new group has to."""
        reason = self._is_held()
        return reason if reason is not None and self._collector.running() else None

    def limit(self, max_outstanding: int) -> None:
        """Groups that may hold a slot from now on; those that hold one keep it."""
        self._max_outstanding = max_outstanding
        self._context.changed.notify()

    def draw_again(self, task: Task, group: GroupId) -> None:
        """The task of a rejected group comes before any other, under a new ordinal."""
        self._again.append((task, group))
        self._context.changed.notify()

    def restore(self, past: RunPast) -> list[Row]:
        """Rows of open groups' tasks that were lost, once the cursor is where the run's earlier processes left it.

        Raises:
            ConfigError: when the source does not give the tasks that were drawn then.
        """
        rows: dict[Address, Row] = {}
        for ordinal, address in enumerate(past.tasks):
            task = self._source.next()
            row = None if task is None else sealed_row("task", task)
            if row is not None and row.address == address:
                rows[address] = row
            else:
                found = "nothing more" if task is None else f"{task.family} {task.question!r}"
                raise ConfigError(
                    f"task {ordinal} of the source is {found}, the run drew {address}; it cannot go on with other tasks "
                    "or code, start a new run"
                )
        self.is_exhausted = past.is_exhausted
        for group, address in past.requeued.items():
            self._again.append((msgspec.msgpack.decode(self._context.recorder.read(address), type=Task), group))
        return [rows[group.task] for group in past.groups.values() if group.task in past.lost]

    async def run(self) -> None:
        """Admits until the source is exhausted."""
        while not self.is_exhausted:
            await self._context.changed.wait_until(self._may_admit)
            task, group = self._again.popleft() if self._again else (self._source.next(), None)
            if task is None:
                self.is_exhausted = True
                drawn = self._collector.frontier.drawn
                self._context.recorder.record(SourceExhausted(drawn), key="source")
                self._context.changed.notify()
                return
            self._collector.admit(task, group)
