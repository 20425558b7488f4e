"""C1, task conservation: drawn = open + trained + filtered + abandoned after every event, and no ordinal twice.

An ordinal is *trained* once the version that its update made is committed: `BatchPlanned` names the groups of an update,
`UpdateCompleted` the version that it made, `WeightsCommitted` the moment from which that version exists. Planned groups
are open until then, so a crash before the commit loses none. Evaluation takes no ordinal.
"""

from collections import Counter

from headrace.checkers.law import Violation
from headrace.records.batch import BatchPlanned, BatchRefilled, BatchSelected, GroupAdmitted, GroupClosed, GroupRejected
from headrace.records.events import Event, OrdinalState, rejected_state
from headrace.records.ids import GroupId, PolicyRef, Purpose
from headrace.records.task import SourceExhausted, TaskDrawn
from headrace.records.update import UpdateCompleted, WeightsCommitted


class Bumps:
    """Which groups a commit of weights consumes. Shared by the laws that give something back at a version bump."""

    def __init__(self) -> None:
        self._planned: dict[int, tuple[GroupId, ...]] = {}
        self._made: dict[int, int] = {}

    def consumed(self, event: Event) -> tuple[GroupId, ...]:
        """Groups whose update becomes a version by this event; empty at any other."""
        match event.payload:
            case BatchPlanned(update=update, groups=groups):
                self._planned[update] = groups
            case UpdateCompleted(result=result):
                self._made[result.version] = result.update
            case WeightsCommitted(policy=PolicyRef(version=version)):
                update = self._made.pop(version, None)
                return () if update is None else self._planned.pop(update, ())
            case _:
                pass
        return ()


class TaskConservation:
    """Checks C1."""

    def __init__(self) -> None:
        self._states: dict[int, OrdinalState] = {}
        self._open: set[int] = set()
        self._counts: Counter[OrdinalState] = Counter()
        self._bumps = Bumps()
        self._requeued: set[GroupId] = set()

    @property
    def drawn(self) -> int:
        """Ordinals drawn so far."""
        return len(self._states)

    @property
    def counts(self) -> dict[OrdinalState, int]:
        """Ordinals by state; open ones included."""
        return {state: self._counts[state] for state in OrdinalState}

    def observe(self, event: Event) -> list[Violation]:
        problems = [*self._draw(event), *self._mention(event), *self._again(event)]
        for group in self._bumps.consumed(event):
            problems += self._end(group, OrdinalState.TRAINED)
        if isinstance(event.payload, GroupRejected):
            problems += self._reject(event.key, event.payload.state)
            if event.payload.is_requeued:
                self._requeued.add(GroupId.parse(event.key))
        accounted = sum(self._counts.values())
        if accounted != len(self._states) or self._counts[OrdinalState.OPEN] != len(self._open):
            problems.append(f"{len(self._states)} tasks drawn, {accounted} accounted for: {self._table()}")
        return [Violation("C1", event.seq, problem) for problem in problems]

    def _draw(self, event: Event) -> list[str]:
        if isinstance(event.payload, SourceExhausted) and event.payload.drawn != len(self._states):
            return [f"the source counts {event.payload.drawn} tasks drawn, the log {len(self._states)}"]
        if not isinstance(event.payload, TaskDrawn):
            return []
        group = GroupId.parse(event.key)
        if group.purpose != Purpose.TRAIN.value:
            return [f"{group} is drawn from the training source; only training takes an ordinal"]
        if group.ordinal in self._states:
            return [f"{group} is drawn a second time; it is {self._states[group.ordinal].value}"]
        problems: list[str] = []
        origin = event.payload.requeued_from
        if origin is not None and origin not in self._requeued:
            problems.append(
                f"{group} draws the task of {origin} again, which was not requeued, or was drawn again already"
            )
        self._requeued.discard(origin or group)
        if group.ordinal != len(self._states):
            problems.append(f"{group} is drawn after {len(self._states)} tasks; ordinals rise by one, so one is lost")
        self._states[group.ordinal] = OrdinalState.OPEN
        self._open.add(group.ordinal)
        self._counts[OrdinalState.OPEN] += 1
        return problems

    def _mention(self, event: Event) -> list[str]:
        """A group may be admitted, selected, planned or closed only while it is open."""
        match event.payload:
            case GroupAdmitted():
                groups: tuple[GroupId, ...] = (GroupId.parse(event.key),)
            case GroupClosed() if GroupId.parse(event.key).purpose == Purpose.TRAIN.value:
                groups = (GroupId.parse(event.key),)
            case BatchSelected(groups=selected) | BatchRefilled(groups=selected) | BatchPlanned(groups=selected):
                groups = selected
            case _:
                return []
        return [
            f"{event.kind} names {group}, which is {self._state_name(group)}"
            for group in groups
            if group.purpose != Purpose.TRAIN.value or group.ordinal not in self._open
        ]

    def _again(self, event: Event) -> list[str]:
        """Only a trained group may train again; it stays trained, and is counted once."""
        match event.payload:
            case BatchSelected(replayed=replayed) | BatchPlanned(replayed=replayed):
                groups = [item.group for item in replayed]
            case _:
                return []
        return [
            f"{event.kind} replays {group}, which is {self._state_name(group)}"
            for group in groups
            if group.purpose != Purpose.TRAIN.value or self._states.get(group.ordinal) is not OrdinalState.TRAINED
        ]

    def _reject(self, key: str, state: str) -> list[str]:
        try:
            found = rejected_state(state)
        except ValueError as error:
            return [f"{key}: {error}"]
        return self._end(GroupId.parse(key), found)

    def _end(self, group: GroupId, state: OrdinalState) -> list[str]:
        if group.purpose != Purpose.TRAIN.value or group.ordinal not in self._open:
            return [f"{group} becomes {state.value}, but it is {self._state_name(group)}"]
        self._open.remove(group.ordinal)
        self._states[group.ordinal] = state
        self._counts[OrdinalState.OPEN] -= 1
        self._counts[state] += 1
        return []

    def _state_name(self, group: GroupId) -> str:
        if group.purpose != Purpose.TRAIN.value:
            return f"for {group.purpose} and takes no ordinal"
        state = self._states.get(group.ordinal)
        return "not drawn" if state is None else f"{state.value} already"

    def _table(self) -> str:
        return ", ".join(f"{state.value} {self._counts[state]}" for state in OrdinalState)
