"""Effective training information of a run, per hour and per resource-hour, with retention by difficulty.

What stands for each factor: groups trained are those whose version was committed; a second group of the same task counts
nothing; the reward range is [0, 1]; `e` is the effective sample size fraction of the group's difficulty in the batch that
trained it, or of the whole batch where the log carries no finer one; the verdict flip rate is disputed over repeated
gradings, and 0 where none was repeated, which the result says. A group rejected with fewer than two rewards has unknown
information: it is counted, not guessed.
"""

from collections.abc import Iterable

import msgspec

from headrace.algorithms.information import GroupSignal, effective_information, offered_information, retention
from headrace.records.events import Event
from headrace.records.ids import Address
from headrace.records.verdict import VerdictDisputed, VerdictSealed
from headrace.reporting.folds.index import RunIndex
from headrace.reporting.folds.lives import GroupLife
from headrace.reporting.folds.strata import is_cut_off
from headrace.reporting.quantities import ratio


class Resource(msgspec.Struct, frozen=True):
    """One resource that the run may use.

    Attributes:
        name: such as `cores`.
        amount: how much of it.
        hours: amount times hours of the run.
        information_per_hour: effective trajectories per resource-hour; None without time.
    """

    name: str
    amount: float
    hours: float
    information_per_hour: float | None


class StratumInformation(msgspec.Struct, frozen=True):
    """One difficulty.

    Attributes:
        difficulty: stratum.
        trained: effective trajectories that trained.
        offered: effective trajectories on offer, had every closed group been fresh and trained.
        retention: trained over offered; None when nothing was offered.
        groups: groups trained.
        unknown_groups: groups rejected with fewer than two rewards: what they had to offer is not known.
        flip_rate: disputed over repeated gradings; None when none was repeated.
        kappa: noise discount used.
    """

    difficulty: str
    trained: float
    offered: float
    retention: float | None
    groups: int
    unknown_groups: int
    flip_rate: float | None
    kappa: float


class Point(msgspec.Struct, frozen=True):
    """Information up to one update.

    Attributes:
        update: its number.
        t_s: commit of its version, seconds since the start.
        total: effective trajectories so far.
        per_hour: rate since the update before, effective trajectories per hour; None without time between them.
    """

    update: int
    t_s: float
    total: float
    per_hour: float | None


class Information(msgspec.Struct, frozen=True):
    """The figure, always beside the resources used.

    Attributes:
        total: effective trajectories trained.
        hours: of the run, first event to last.
        per_hour: total over hours; None without time.
        resources: what the run was given, with the rate per resource-hour.
        environment_cpu_s: CPU seconds of environments, from side records; None when nothing metered them.
        trainer_compute_s: seconds of forward, backward and step.
        strata: by difficulty.
        retention: overall; None when nothing was offered.
        worst: difficulty with the lowest retention; None when none has one.
        duplicate_groups: trained groups that count nothing because their task trained before.
        unweighted_groups: trained groups left out because their batch has no effective sample size.
        unknown_groups: groups rejected with fewer than two rewards, whose information is not known.
        regrades: gradings of transcripts that already had a score.
        disputes: those that came out differently.
        curve: by update.
    """

    total: float
    hours: float
    per_hour: float | None
    resources: tuple[Resource, ...]
    environment_cpu_s: float | None
    trainer_compute_s: float
    strata: tuple[StratumInformation, ...]
    retention: float | None
    worst: str | None
    duplicate_groups: int
    unweighted_groups: int
    unknown_groups: int
    regrades: int
    disputes: int
    curve: tuple[Point, ...]


class FlipRates:
    """Verdict flips by difficulty: disputed over repeated gradings of one transcript."""

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        self._scored: set[Address] = set()
        self._sealed: set[Address] = set()
        self.regrades: dict[str, int] = {}
        self.disputes: dict[str, int] = {}

    def observe(self, event: Event) -> None:
        """Takes the next event."""
        match event.payload:
            case VerdictSealed(transcript=transcript, verdict=verdict, is_scored=True):
                if transcript in self._scored:
                    self._add(self.regrades, transcript)
                self._scored.add(transcript)
                self._sealed.add(verdict)
            case VerdictDisputed(transcript=transcript, second=second):
                self._add(self.disputes, transcript)
                if second not in self._sealed:
                    self._add(self.regrades, transcript)
            case _:
                pass

    def rate(self, difficulty: str) -> float | None:
        """Disputed over repeated; None when none was repeated. Above 0.5 it is 0.5: nothing is left of the signal."""
        regrades = self.regrades.get(difficulty, 0)
        return min(0.5, self.disputes.get(difficulty, 0) / regrades) if regrades else None

    def _add(self, counts: dict[str, int], transcript: Address) -> None:
        life = self._index.transcripts.get(transcript)
        name = "" if life is None else self._index.group_of(life).difficulty
        counts[name] = counts.get(name, 0) + 1


def information(index: RunIndex, flips: FlipRates) -> Information:
    """The figure so far."""
    closed = [
        group
        for group in index.groups.values()
        if group.drawn_ns is not None and group.closed_ns is not None and not is_cut_off(group)
    ]
    difficulties = sorted({group.difficulty for group in index.groups.values() if group.drawn_ns is not None})
    flip_rates = {name: flips.rate(name) or 0.0 for name in difficulties}
    offered = dict.fromkeys(difficulties, 0.0) | offered_information(_signals(closed), flip_rates)
    tally = _trained(index, flip_rates)
    trained = dict.fromkeys(difficulties, 0.0) | tally.by_stratum
    kept = retention(trained, offered)
    counts = [group.difficulty for group in index.trained_groups()]
    unknown = [group.difficulty for group in index.groups.values() if _is_unknown(group)]
    hours = index.wall_ns / 3.6e12
    total = sum(trained.values())
    amounts = index.started.resources if index.started else {}
    return Information(
        total=total,
        hours=hours,
        per_hour=ratio(total, hours),
        resources=tuple(
            Resource(name, amount, amount * hours, ratio(total, amount * hours))
            for name, amount in sorted(amounts.items())
        ),
        environment_cpu_s=index.environment_cpu_s,
        trainer_compute_s=sum(life.result.compute_s for life in index.updates.values() if life.result),
        strata=tuple(
            StratumInformation(
                difficulty=name,
                trained=trained[name],
                offered=offered[name],
                retention=kept.by_stratum[name],
                groups=counts.count(name),
                unknown_groups=unknown.count(name),
                flip_rate=flips.rate(name),
                kappa=(1 - 2 * flip_rates[name]) ** 2,
            )
            for name in difficulties
        ),
        retention=kept.overall,
        worst=kept.worst,
        duplicate_groups=tally.duplicates,
        unweighted_groups=tally.unweighted,
        unknown_groups=len(unknown),
        regrades=sum(flips.regrades.values()),
        disputes=sum(flips.disputes.values()),
        curve=tuple(tally.curve),
    )


def _is_unknown(group: GroupLife) -> bool:
    """Whether a rule rejected it before two rewards told what it could teach."""
    scored = sum(reward is not None for reward in group.rewards)
    return group.rejection is not None and scored < 2 and not is_cut_off(group)


class _Tally:
    def __init__(self) -> None:
        self.by_stratum: dict[str, float] = {}
        self.duplicates = 0
        self.unweighted = 0
        self.curve: list[Point] = []


def _trained(index: RunIndex, flip_rates: dict[str, float]) -> _Tally:
    """Information by stratum, summed over batches, each with its own effective sample size."""
    tally = _Tally()
    seen: set[str] = set()
    total, last_ns = 0.0, index.start_ns or 0
    for update in index.updates.values():
        groups = [index.groups[group] for group in update.groups if index.groups[group].trained_ns is not None]
        if not groups:
            continue
        fresh: list[GroupLife] = []
        for group in groups:
            if str(group.task) in seen:
                tally.duplicates += 1
            elif update.scored is None:
                tally.unweighted += 1
            else:
                fresh.append(group)
            seen.add(str(group.task))
        if update.scored is not None:
            fraction = dict.fromkeys((group.difficulty for group in fresh), update.scored.ess_fraction)
            fraction |= {item.difficulty: item.figures.ess_fraction for item in update.scored.strata}
            for name, value in effective_information(_signals(fresh), fraction, flip_rates).items():
                tally.by_stratum[name] = tally.by_stratum.get(name, 0.0) + value
        before, total = total, sum(tally.by_stratum.values())
        now_ns = max(group.trained_ns or 0 for group in groups)
        tally.curve.append(
            Point(update.update, now_ns / 1e9, total, ratio((total - before) * 3.6e12, now_ns - last_ns))
        )
        last_ns = now_ns
    return tally


def _signals(groups: Iterable[GroupLife]) -> list[GroupSignal]:
    return [GroupSignal(str(group.task), group.difficulty, group.rewards) for group in groups]
