"""C2, consumption: each (transcript, use) is in at most one plan, and a plan is what its event and its selection say.

A group that trains again is named apart with its use, which is later than its last, and every row of it says that use.
Rows stand in the order (ordinal, member, path), never in that of arrival; an episode has one for each path on which it
sampled, so that every sampled token is trained once. Without access to rows only the events' own statements are compared.
"""

from headrace.checkers.law import Bounds, Violation
from headrace.records.batch import BatchPlan, BatchPlanned, BatchRefilled, BatchSelected
from headrace.records.compaction import read_outline
from headrace.records.events import Event
from headrace.records.experience import ReplayedGroup
from headrace.records.ids import Address, GroupId
from headrace.records.provenance import Read, read_record
from headrace.records.trajectory import TranscriptSealed


class Consumption:
    """Checks C2.

    Args:
        bounds: how often a transcript may be used.
        read: looks up batch plans.
    """

    def __init__(self, bounds: Bounds, read: Read | None = None) -> None:
        self._bounds = bounds
        self._read = read
        self._selected: dict[int, frozenset[GroupId]] = {}
        self._replayed: dict[int, frozenset[ReplayedGroup]] = {}
        self._uses: dict[GroupId, int] = {}
        self._last_update = 0
        self._sealed: set[Address] = set()
        self._used: dict[tuple[Address, int, int], int] = {}

    def observe(self, event: Event) -> list[Violation]:
        match event.payload:
            case BatchSelected(update=update, groups=groups, replayed=replayed):
                everyone = [*groups, *(item.group for item in replayed)]
                self._selected[update], self._replayed[update] = frozenset(groups), frozenset(replayed)
                problems = [] if len(set(everyone)) == len(everyone) else [f"update {update} selects a group twice"]
            case BatchRefilled(update=update, groups=groups):
                before = self._selected.get(update, frozenset())
                self._selected[update] = before.union(groups)
                problems = [f"update {update} selects {group} twice" for group in groups if group in before]
            case TranscriptSealed(transcript=transcript):
                self._sealed.add(transcript)
                return []
            case BatchPlanned():
                problems = self._plan(event.payload)
            case _:
                return []
        return [Violation("C2", event.seq, problem) for problem in problems]

    def _plan(self, planned: BatchPlanned) -> list[str]:
        problems: list[str] = []
        if planned.update <= self._last_update:
            problems.append(f"update {planned.update} is planned after update {self._last_update}")
        self._last_update = max(planned.update, self._last_update)
        selected = self._selected.pop(planned.update, None)
        if selected is None:
            problems.append(f"update {planned.update} is planned but was never selected")
        elif not selected.issuperset(planned.groups):
            extra = ", ".join(str(group) for group in planned.groups if group not in selected)
            problems.append(f"update {planned.update} plans {extra}, which it did not select")
        problems += self._again(planned)
        if self._read is not None:
            plan = read_record(self._read, planned.plan, BatchPlan)
            problems += self._rows(planned, plan) + self._missing_paths(plan, self._read)
        return problems

    def _again(self, planned: BatchPlanned) -> list[str]:
        """Groups that train again were selected for it, and each use is later than the one before."""
        selected = self._replayed.pop(planned.update, frozenset())
        problems = [
            f"update {planned.update} replays {item.group} for the {item.use}-th time, which it did not select"
            for item in planned.replayed
            if item not in selected
        ]
        for item in planned.replayed:
            last = self._uses.get(item.group, 0)
            if item.use <= last:
                problems.append(
                    f"update {planned.update} replays {item.group} for the {item.use}-th time; it had {last} uses"
                )
            self._uses[item.group] = max(item.use, last)
        self._uses.update(dict.fromkeys(planned.groups, 1))
        return problems

    def _rows(self, planned: BatchPlanned, plan: BatchPlan) -> list[str]:
        problems: list[str] = []
        if plan.update != planned.update or len(plan.rows) != planned.rows:
            problems.append(
                f"the plan is of update {plan.update} with {len(plan.rows)} rows; "
                f"its event says update {planned.update} with {planned.rows}"
            )
        uses = dict.fromkeys(planned.groups, 1) | {item.group: item.use for item in planned.replayed}
        strangers = {row.group for row in plan.rows} - uses.keys()
        if strangers:
            problems.append(f"the plan trains {min(strangers)}, which its event does not name")
        order = [(row.group, row.member, row.path) for row in plan.rows]
        if order != sorted(order):
            problems.append(f"the rows of update {plan.update} are not in the order of ordinal, member and path")
        for row in plan.rows:
            if not 1 <= row.use <= self._bounds.max_uses:
                problems.append(
                    f"{row.group}.{row.member} is used for the {row.use}-th time; the bound is {self._bounds.max_uses}"
                )
            if row.use != uses.get(row.group, row.use):
                problems.append(
                    f"{row.group}.{row.member} is planned for the {row.use}-th time; its event says {uses[row.group]}"
                )
            earlier = self._used.setdefault((row.transcript, row.path, row.use), plan.update)
            if earlier != plan.update or order.count((row.group, row.member, row.path)) > 1:
                problems.append(
                    f"use {row.use} of {row.group}.{row.member} ({row.transcript}) is in update {plan.update} "
                    f"and in update {earlier}"
                )
        return problems

    def _missing_paths(self, plan: BatchPlan, read: Read) -> list[str]:
        """Planned episodes whose rows are not the paths on which they sampled."""
        planned: dict[Address, set[int]] = {}
        for row in plan.rows:
            planned.setdefault(row.transcript, set()).add(row.path)
        problems: list[str] = []
        for address, paths in planned.items():
            sampled = set(read_outline(read, address).sampled_paths) if address in self._sealed else paths
            if paths != sampled:
                problems.append(
                    f"update {plan.update} trains paths {sorted(paths)} of {address}, which sampled on {sorted(sampled)}"
                )
        return problems
