"""What one simulated run gave, folded from its events: completed, accepted, rejected, lag by segment, idle, identities.

Invariant: every figure is a count or a sum over events, so two folds of one log agree exactly. Lag of a token is the version
that the gradient was taken at minus the version that sampled it; it splits into the *span* of versions that went by while
its group was generated, and the *wait* between the group's last token and its update.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from headrace.planning.identities import Identities, IdentityFold
from headrace.records.batch import BatchPlanned, BatchSelected, GroupAdmitted, GroupClosed, GroupRejected
from headrace.records.events import Event
from headrace.records.ids import GroupId, Purpose
from headrace.records.run import WorkerState, WorkerStateChanged
from headrace.records.segment import TurnGenerated
from headrace.records.task import TaskDrawn
from headrace.records.update import WeightsActivated


def steady_from(updates: int) -> int:
    """Updates that steady figures leave out: the first third, while pipelines fill and caches are cold."""
    return updates // 3


class StratumOutcome(msgspec.Struct, frozen=True):
    """What became of the tasks of one difficulty.

    Attributes:
        drawn: groups drawn.
        completed: groups whose members all ended.
        trained: groups that trained.
        rejected: groups that a rule ended.
        trained_share: share of the groups trained by steady updates.
    """

    drawn: int
    completed: int
    trained: int
    rejected: int
    trained_share: float

    @property
    def rejection_rate(self) -> float:
        """Rejected over decided; 0 when none is decided."""
        decided = self.trained + self.rejected
        return self.rejected / decided if decided else 0.0

    @property
    def retention(self) -> float:
        """Trained over decided; 1 when none is decided."""
        return 1.0 - self.rejection_rate


class Lags(msgspec.Struct, frozen=True):
    """Lag and its two parts, in updates.

    Attributes:
        tokens: trained tokens by lag: the lag of every segment, token-weighted; of steady updates, as all here.
        token_mean: their mean.
        token_p95: their 95% quantile.
        oldest_mean: of each trained group's oldest token.
        oldest_max: the largest.
        span_mean: versions that went by while a group was generated.
        span_max: the largest.
        wait_mean: versions between a group's last token and its update.
        wait_max: the largest.
    """

    tokens: dict[int, int]
    token_mean: float
    token_p95: int
    oldest_mean: float
    oldest_max: int
    span_mean: float
    span_max: int
    wait_mean: float
    wait_max: int


class Outcome(msgspec.Struct, frozen=True):
    """What one run gave.

    Attributes:
        makespan_s: virtual seconds from version 0 to the last version.
        updates: number of updates.
        completed_groups: groups whose members all ended, trained or not.
        accepted_groups: groups that trained.
        accepted_samples: members with a reward in trained groups.
        rejected_groups: groups that a rule ended.
        groups_per_ks: trained per 1000 virtual seconds.
        steady_groups_per_ks: the same over the steady updates.
        trainer_idle: share of time in which the trainer had nothing to do.
        steady_trainer_idle: the same over the steady updates.
        slot_waste: share of busy slot time whose tokens did not train, to the end of the log; None without any.
        lags: of trained tokens.
        strata: by difficulty.
        identities: sample-path identities of the run.
    """

    makespan_s: float
    updates: int
    completed_groups: int
    accepted_groups: int
    accepted_samples: int
    rejected_groups: int
    groups_per_ks: float
    steady_groups_per_ks: float
    trainer_idle: float
    steady_trainer_idle: float
    slot_waste: float | None
    lags: Lags
    strata: dict[str, StratumOutcome]
    identities: Identities


def outcome_of(
    events: Iterable[Event], updates: int, slot_seconds: float | None = None, first: int | None = None
) -> Outcome:
    """The outcome of a log.

    Args:
        events: in order, from the first.
        updates: what comes after so many updates is not measured.
        slot_seconds: busy slot time of the engine; None where nobody measured it.
        first: updates that steady figures leave out; None is a third.
    """
    fold = OutcomeFold(updates, first)
    for event in events:
        fold.observe(event)
    return fold.outcome(slot_seconds)


class OutcomeFold:
    """Takes the events of one run in order; usable as an observer, so that no log has to be kept.

    Args:
        updates: what comes after so many updates is not measured: towards its end a run admits nothing that it cannot use
            any more, and drains.
        first: updates that steady figures leave out; None is a third.
    """

    def __init__(self, updates: int, first: int | None = None) -> None:
        self._updates = updates
        self._first = steady_from(updates) if first is None else first
        self._identities = IdentityFold()
        self._difficulty: dict[str, str] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._members: dict[str, tuple[str, ...]] = {}
        self._samples: dict[str, int] = {}
        self._sampled: dict[str, list[tuple[int, int, float]]] = {}
        self._tokens: Counter[int] = Counter()
        self._groups: list[tuple[int, int, int]] = []
        self._num_samples = 0
        self._trained_slot_s = 0.0
        self._version = 0
        self._versions_ns: list[int] = []
        self._trained_by: list[int] = []
        self._idle = _IdleTime()

    def observe(self, event: Event) -> None:
        """Takes the next event."""
        self._identities.observe(event)
        match event.payload:
            case TurnGenerated(episode=episode, spans=spans, generate_s=generate_s):
                parts = self._sampled.setdefault(str(episode), [])
                for span in spans:
                    version = span.policy.version if span.policy else 0
                    parts.append((version, span.num_tokens, generate_s / len(spans)))
            case WorkerStateChanged(worker="trainer", state=state):
                self._idle.change(event.t_ns, state)
            case WeightsActivated(policy=policy):
                self._version = policy.version
                if len(self._versions_ns) <= self._updates:
                    self._versions_ns.append(event.t_ns)
                    self._idle.mark(event.t_ns)
            case TaskDrawn() | GroupAdmitted() | GroupClosed() | GroupRejected() | BatchPlanned() | BatchSelected():
                self._observe_group(event)
            case _:
                pass

    def _observe_group(self, event: Event) -> None:
        match event.payload:
            case TaskDrawn(difficulty=difficulty):
                self._difficulty[event.key] = difficulty
                self._count(event.key, "drawn")
            case GroupClosed(members=members) if event.key in self._difficulty:
                self._count(event.key, "completed")
                self._members[event.key] = tuple(str(member.episode) for member in members)
                self._samples[event.key] = sum(member.reward is not None for member in members)
            case GroupRejected(state=state):
                if state == "filtered":
                    self._count(event.key, "rejected")
                self._forget(event.key)
            case BatchPlanned(groups=groups):
                self._trained_by.append(len(groups))
                for group in groups:
                    if group.purpose == Purpose.TRAIN.value:
                        self._train(group)
            case _:
                pass

    def outcome(self, slot_seconds: float | None = None) -> Outcome:
        """The figures of the whole run. Raises ValueError when nothing trained."""
        if not self._groups:
            raise ValueError("no group trained, so there is nothing to measure")
        begin_ns, end_ns = self._versions_ns[0], self._versions_ns[-1]
        makespan_s = (end_ns - begin_ns) / 1e9
        trained_by = self._trained_by[: len(self._versions_ns) - 1]
        groups = sum(trained_by)
        steady_s = (end_ns - self._versions_ns[self._first]) / 1e9
        totals = [sum(counts[name] for counts in self._counts.values()) for name in ("completed", "rejected")]
        return Outcome(
            makespan_s=makespan_s,
            updates=len(trained_by),
            completed_groups=totals[0],
            accepted_groups=groups,
            accepted_samples=self._num_samples,
            rejected_groups=totals[1],
            groups_per_ks=1e3 * groups / makespan_s,
            steady_groups_per_ks=1e3 * sum(trained_by[self._first :]) / steady_s,
            trainer_idle=self._idle.share(0),
            steady_trainer_idle=self._idle.share(self._first),
            slot_waste=None if not slot_seconds else max(0.0, 1.0 - self._trained_slot_s / slot_seconds),
            lags=self._lags(),
            strata={
                name: StratumOutcome(
                    counts["drawn"],
                    counts["completed"],
                    counts["trained"],
                    counts["rejected"],
                    counts["steady"] / max(1, sum(other["steady"] for other in self._counts.values())),
                )
                for name, counts in sorted(self._counts.items())
            },
            identities=self._identities.result(slot_seconds),
        )

    def _lags(self) -> Lags:
        total = self._tokens.total()
        seen, p95 = 0, 0
        for lag, count in sorted(self._tokens.items()):
            seen += count
            p95 = lag
            if seen >= 0.95 * total:
                break
        oldest, span, wait = zip(*self._groups, strict=True)
        return Lags(
            tokens=dict(sorted(self._tokens.items())),
            token_mean=sum(lag * count for lag, count in self._tokens.items()) / max(1, total),
            token_p95=p95,
            oldest_mean=sum(oldest) / len(oldest),
            oldest_max=max(oldest),
            span_mean=sum(span) / len(span),
            span_max=max(span),
            wait_mean=sum(wait) / len(wait),
            wait_max=max(wait),
        )

    def _train(self, group: GroupId) -> None:
        key, update = str(group), len(self._trained_by)
        parts = [part for episode in self._members[key] for part in self._sampled.get(episode, ())]
        self._trained_slot_s += sum(seconds for _, _, seconds in parts)
        if update <= self._updates:
            self._count(key, "trained")
            self._num_samples += self._samples[key]
        if self._first < update <= self._updates:
            self._count(key, "steady")
            self._lag(parts)
        self._forget(key)

    def _lag(self, parts: list[tuple[int, int, float]]) -> None:
        for version, count, _ in parts:
            self._tokens[self._version - version] += count
        versions = [version for version, count, _ in parts if count] or [self._version]
        self._groups.append(
            (self._version - min(versions), max(versions) - min(versions), self._version - max(versions))
        )

    def _forget(self, key: str) -> None:
        for episode in self._members.pop(key, ()):
            self._sampled.pop(episode, None)
        self._samples.pop(key, None)

    def _count(self, key: str, name: str) -> None:
        if len(self._versions_ns) > self._updates:
            return
        self._counts.setdefault(self._difficulty[key], Counter())[name] += 1


class _IdleTime:
    """Idle time of the trainer up to each version."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, int]] = []
        self._idle_ns = 0
        self._since_ns: int | None = None

    def change(self, t_ns: int, state: WorkerState) -> None:
        self._settle(t_ns)
        self._since_ns = t_ns if state is WorkerState.IDLE else None

    def mark(self, t_ns: int) -> None:
        self._settle(t_ns)
        self._marks.append((t_ns, self._idle_ns))

    def share(self, first: int) -> float:
        (begin_ns, idle_before), (end_ns, idle) = self._marks[first], self._marks[-1]
        return (idle - idle_before) / (end_ns - begin_ns)

    def _settle(self, t_ns: int) -> None:
        if self._since_ns is not None:
            self._idle_ns += t_ns - self._since_ns
            self._since_ns = t_ns
