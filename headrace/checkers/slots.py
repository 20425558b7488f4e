"""C12, the gate: outstanding groups <= (credit_batches + 1) * batch_groups at every instant, and no lag beyond its bound.

A slot is charged at admission and comes back at the version bump that consumed the group, or by a recorded rejection;
the count that an admission carries is compared with a recount. A bump takes a while, from the commit of the version to
its last activation: until the next batch is selected, the groups that it consumed may be counted either way.
"""

from headrace.checkers.law import Bounds, Violation
from headrace.checkers.tasks import Bumps
from headrace.records.batch import BatchPlan, BatchPlanned, BatchSelected, CapacityDecided, GroupAdmitted, GroupRejected
from headrace.records.events import Event
from headrace.records.ids import Address, GroupId, Purpose
from headrace.records.provenance import Read, read_record
from headrace.records.trajectory import TranscriptSealed


class Slots:
    """Checks C12.

    Args:
        bounds: credit, batch size and largest lag.
        read: looks up batch plans; without it the lag that a plan's event states is taken as it is.
    """

    def __init__(self, bounds: Bounds, read: Read | None = None) -> None:
        self._bounds = bounds
        self._read = read
        self._holders: set[GroupId] = set()
        self._oldest: dict[Address, int] = {}
        self._limit = bounds.max_outstanding
        self._returning = 0
        self._bumps = Bumps()

    @property
    def outstanding(self) -> int:
        """Groups that hold a slot."""
        return len(self._holders)

    def observe(self, event: Event) -> list[Violation]:
        problems: list[str] = []
        for group in self._bumps.consumed(event):
            if group not in self._holders:
                problems.append(f"the slot of {group} comes back, but it holds none")
            self._holders.discard(group)
            self._returning += 1
        match event.payload:
            case GroupAdmitted(outstanding=outstanding):
                problems += self._admit(GroupId.parse(event.key), outstanding)
            case GroupRejected():
                self._holders.discard(GroupId.parse(event.key))
            case TranscriptSealed(transcript=transcript, versions=versions) if versions:
                self._oldest[transcript] = min(versions)
            case CapacityDecided():
                problems += self._move(event.payload)
            case BatchSelected():
                self._returning = 0
            case BatchPlanned():
                problems += self._lag(event.payload)
            case _:
                pass
        return [Violation("C12", event.seq, problem) for problem in problems]

    def _admit(self, group: GroupId, outstanding: int) -> list[str]:
        if group.purpose != Purpose.TRAIN.value:
            return [f"{group} takes a slot; only training does"]
        problems = [f"{group} takes a second slot"] if group in self._holders else []
        self._holders.add(group)
        if not len(self._holders) <= outstanding <= len(self._holders) + self._returning:
            problems.append(f"{group} is admitted as number {outstanding}; {len(self._holders)} groups hold a slot")
        limit = self._limit
        if limit is not None and len(self._holders) > limit:
            problems.append(f"{len(self._holders)} groups hold a slot; the bound is {limit}")
        return problems

    def _move(self, decided: CapacityDecided) -> list[str]:
        """A credit that is found while the run goes on binds admissions; it never exceeds the configured bound."""
        self._limit = decided.max_outstanding
        bound = self._bounds.max_outstanding
        if bound is not None and decided.max_outstanding > bound:
            return [f"version {decided.version} allows {decided.max_outstanding} groups a slot; the bound is {bound}"]
        return []

    def _lag(self, planned: BatchPlanned) -> list[str]:
        problems: list[str] = []
        limit, again = self._bounds.max_lag, self._bounds.max_replay_lag
        oldest_again = max((item.oldest_lag for item in planned.replayed), default=0)
        if again is not None and oldest_again > again:
            problems.append(f"update {planned.update} replays a token {oldest_again} updates old; the bound is {again}")
        if limit is not None and planned.oldest_lag > max(limit, oldest_again):
            problems.append(
                f"update {planned.update} trains a token {planned.oldest_lag} updates old; the bound is {limit}"
            )
        if self._read is None:
            return problems
        plan = read_record(self._read, planned.plan, BatchPlan)
        for row in plan.rows:
            oldest = self._oldest.get(row.transcript)
            if oldest is None:
                continue
            lag = plan.base_version - oldest
            if lag < 0:
                problems.append(
                    f"{row.group}.{row.member} was sampled by version {oldest}, after base {plan.base_version}"
                )
            bound = limit if row.use == 1 else again
            if lag > planned.oldest_lag or (bound is not None and lag > bound):
                problems.append(
                    f"{row.group}.{row.member} holds a token {lag} updates old; the plan states {planned.oldest_lag}, "
                    f"the bound is {bound}"
                )
        return problems
