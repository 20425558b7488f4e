"""From ready groups to the batch of an update: stale ones leave, trained ones may fill it up.

Invariant: an update gets a full batch or waits; a group that may not train leaves with a record. A group that trained before
holds no slot, and is named apart from those that were drawn for the update.

* consumes: ready groups, and groups that trained.
* waits for: enough ready groups.
* unblocked by: a group becoming ready, or the source running dry.
* produces: a `Batch`; `GroupRejected`, `UpdateSkipped`.
"""

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence

from headrace.config import AlgorithmSection
from headrace.control.collecting import Collector, Group
from headrace.control.context import RunContext
from headrace.control.past import RunPast, UpdatePast
from headrace.control.shaping import BatchShaper, filter_reason
from headrace.control.source import SourceLoop
from headrace.control.trained import ReplayChoice, TrainedGroups
from headrace.errors import HeadraceError, IntegrityError
from headrace.records.batch import BatchSelected
from headrace.records.events import OrdinalState
from headrace.records.ids import Address, GroupId
from headrace.records.update import UpdateSkipped
from headrace.scheduling.ordering import BatchOrder
from headrace.scheduling.quotas import Quotas
from headrace.scheduling.replay import ReplayRule
from headrace.scheduling.staleness import StalenessRule

_MOST_REJECTED_BATCHES = 64
"""Batches' worth of groups that rules may reject between two updates."""


@dataclasses.dataclass(frozen=True)
class SelectionRules:
    """What selection goes by.

    Attributes:
        order: which ready groups come first.
        staleness: which may not train.
        quotas: places of a batch that strata hold.
        replay: which groups that trained fill it up.
    """

    order: BatchOrder
    staleness: StalenessRule
    quotas: Quotas
    replay: ReplayRule


@dataclasses.dataclass
class Batch:
    """What one update trains.

    Attributes:
        groups: drawn for it and still in it, by ordinal.
        again: those that trained before.
        shaper: rows and advantages of all groups that were ever in it.
        choice: what was replayed and retired for it.
    """

    groups: list[Group]
    again: list[Group]
    shaper: BatchShaper
    choice: ReplayChoice

    def selected(self, update: int) -> BatchSelected:
        """As it is recorded."""
        return BatchSelected(
            update, tuple(group.id for group in self.groups), self.choice.replayed, self.choice.retired
        )


class BatchSelector:
    """Makes batches."""

    def __init__(
        self,
        collector: Collector,
        source: SourceLoop,
        context: RunContext,
        *,
        algorithm: AlgorithmSection,
        rules: SelectionRules,
    ) -> None:
        self._collector = collector
        self._source = source
        self._context = context
        self._algorithm = algorithm
        self._rules = rules
        self._trained = TrainedGroups(rules.replay)
        self._rejected_in_a_row = 0

    def restore(self, past: RunPast) -> None:
        """Takes over the groups that trained under earlier processes of the run.

        Raises:
            IntegrityError: when one is damaged and an update is under way that replays it.
        """
        under_way = {item.group for item in past.update.replayed} if past.update else set[GroupId]()
        for known in past.trained.values():
            group, damage = self._collector.recall_trained(known)
            if damage is not None and known.id in under_way:
                raise IntegrityError(
                    f"an update was begun that replays {known.id}, whose stored work is damaged: {damage}; restore the row "
                    "from a copy of the journal, the run cannot go on without it"
                )
            self._trained.recall(group, known.uses, damage)

    def again(self, past: UpdatePast) -> Batch:
        """The batch that was selected already."""
        open_ordinals = self._collector.frontier.open
        left = [group.ordinal for group in past.groups if group.ordinal in open_ordinals]
        return self._batch([self._collector.group(ordinal) for ordinal in left], ReplayChoice(past.replayed))

    async def next_batch(self, update: int) -> Batch | None:
        """A batch with at least one row; None when none can come any more."""
        while groups := await self._take():
            shaper = BatchShaper(groups, self._algorithm)
            if shaper.rows():
                return self._batch(groups, self._trained.choose(self._context.versions.current), shaper)
            reason = f"no row: none of {len(groups)} groups has a member with a reward and an advantage"
            self._context.recorder.record(UpdateSkipped(update, reason), key=f"{update}/{groups[0].id}")
            for group in groups:
                self.reject(group, "no member with a reward and an advantage")
        return None

    def refill(self, batch: Batch, rejected: Collection[Address]) -> tuple[GroupId, ...]:
        """Adds a ready group for each group's worth of rejected transcripts, as quotas and completion say; by ordinal."""
        taken, size = {group.id.ordinal for group in batch.groups}, self._collector.group_size
        ready = [
            (rank, group)
            for group in self._collector.ready()
            if (rank := group.ready_rank) is not None and group.id.ordinal not in taken and not self._drop_reason(group)
        ]
        left = Counter[str]()
        for group in batch.groups:
            left[group.task.difficulty] += sum(item.result.transcript not in rejected for item in group.outcomes)
        free = [group for _, group in sorted(ready, key=lambda item: item[0])]
        ordinals = self._rules.quotas.replace(
            [group.as_open() for group in free],
            {group.id.ordinal: group.task.difficulty for group in (*free, *self._collector.running())},
            {name: count / size for name, count in left.items()},
            size=self._rules.order.batch_groups,
            places=len(rejected) // size,
        )
        added = [self._collector.group(ordinal) for ordinal in ordinals]
        if added:
            batch.shaper = batch.shaper.extended(added)
            batch.groups.extend(added)
            batch.groups.sort(key=lambda group: group.id)
        return tuple(group.id for group in added)

    def consume(self, batch: Batch) -> None:
        """The version that the batch made exists: slots come back, and uses count."""
        self._rejected_in_a_row = 0
        self._collector.consume(batch.groups)
        self._trained.consume(batch.groups, batch.choice.replayed)

    def reject(self, group: Group, reason: str, *, is_requeued: bool = False) -> None:
        """Removes a group by a rule on its data; an exhausted source takes no task back."""
        is_requeued = is_requeued and not self._source.is_exhausted
        self._collector.reject(group, OrdinalState.FILTERED, reason, is_requeued=is_requeued)
        if is_requeued:
            self._source.draw_again(group.task, group.id)
        self._count_rejection(reason)

    def _batch(self, groups: Sequence[Group], choice: ReplayChoice, drawn: BatchShaper | None = None) -> Batch:
        again = [self._trained.group(item.group) for item in choice.replayed]
        if drawn is not None and not again:
            return Batch(list(groups), again, drawn, choice)
        uses = {item.group: item.use for item in choice.replayed}
        everyone = sorted([*groups, *again], key=lambda group: group.id)
        return Batch(list(groups), again, BatchShaper(everyone, self._algorithm, uses), choice)

    async def _take(self) -> list[Group]:
        """Groups of the next batch, by ordinal; empty when none can come any more."""
        chosen: list[Group] = []

        def can_go_on() -> bool:
            chosen[:] = self._choose()
            return bool(chosen) or (self._source.is_exhausted and self._collector.outstanding == 0)

        await self._context.changed.wait_until(can_go_on)
        return chosen

    def _choose(self) -> list[Group]:
        """A full batch of groups that may train now, or nothing; stale ones leave with a record."""
        version, rules = self._context.versions.current, self._rules
        if rules.staleness.cancels:
            self._cancel_stale(version)
        ready = self._collector.ready()
        num_ready = len(ready)
        for group in ready:
            if group.kept_at == version:
                continue
            reason = self._drop_reason(group)
            if reason is None:
                group.kept_at = version
            else:
                num_ready -= 1
                is_stale = rules.staleness.drop_reason(group.oldest_lag(version)) is not None
                self.reject(group, reason, is_requeued=is_stale and rules.staleness.requeues)
        is_last = self._source.is_exhausted
        if num_ready < max(1, rules.order.size(self._collector.outstanding, is_last)):
            return []  # asked at every change, so an answer that is plain costs no look at every open group
        if rules.quotas.shares or rules.order.asks_running:
            groups, strata = self._collector.open_groups(), self._collector.difficulties()
            ordinals = rules.quotas.choose(rules.order, groups, strata, version, is_last=is_last)
        else:
            groups = [group.as_open() for group in self._collector.ready()]
            ordinals = rules.order.choose(groups, version, is_last=is_last)
        return [self._collector.group(ordinal) for ordinal in ordinals or ()]

    def _drop_reason(self, group: Group) -> str | None:
        """Why a finished group may not train now; None when it may."""
        stale = self._rules.staleness.drop_reason(group.oldest_lag(self._context.versions.current))
        return stale or filter_reason(group, self._algorithm.filters)

    def _cancel_stale(self, version: int) -> None:
        for group in self._collector.running():
            reason = self._rules.staleness.cancel_reason(group.as_open().version, version)
            if reason is not None:
                self._collector.cancel(group, reason)
                self._count_rejection(reason)

    def _count_rejection(self, reason: str) -> None:
        """Raises HeadraceError when nothing else happens any more."""
        self._rejected_in_a_row += 1
        if self._rejected_in_a_row > _MOST_REJECTED_BATCHES * self._rules.order.batch_groups:
            raise HeadraceError(
                f"{self._rejected_in_a_row} groups in a row were filtered, the last for {reason!r}; the run makes no "
                "progress, look at the rewards of its groups"
            )
