"""What became of groups by difficulty, length and duration: hard and long tasks are the first to be lost.

Invariant: a group is in exactly one row of each table. Lengths and durations are cut at powers of two. Groups that were
closed by the end of the run, and by no rule, are counted apart and are in no share.
"""

import math

import msgspec

from headrace.reporting.folds.index import RunIndex
from headrace.reporting.folds.lives import END_OF_RUN, GroupLife
from headrace.reporting.quantities import mean, ratio


class StratumFate(msgspec.Struct, frozen=True):
    """Groups of one stratum.

    Attributes:
        stratum: name.
        drawn: all of them.
        trained: consumed by a committed version.
        filtered: rejected by a rule on the data.
        abandoned: could not be finished.
        cut_off: open when the run ended.
        mean_reward: over members with a reward; None when none has one.
        absent_rewards: members without a reward.
    """

    stratum: str
    drawn: int
    trained: int
    filtered: int
    abandoned: int
    cut_off: int
    mean_reward: float | None
    absent_rewards: int

    @property
    def trained_share(self) -> float | None:
        """Trained over decided; None when none is decided."""
        return ratio(self.trained, self.trained + self.filtered + self.abandoned)


class Rejection(msgspec.Struct, frozen=True):
    """Groups rejected for one reason in one stratum.

    Attributes:
        state: `filtered` or `abandoned`.
        reason: rule or cause.
        difficulty: stratum.
        groups: how many.
        mean_tokens: mean length of their trajectories, tokens; None when none was sealed.
        mean_duration_s: admission to rejection, seconds.
        oldest_lag: largest lag, updates; None when nothing was sampled.
    """

    state: str
    reason: str
    difficulty: str
    groups: int
    mean_tokens: float | None
    mean_duration_s: float | None
    oldest_lag: int | None


class Strata(msgspec.Struct, frozen=True):
    """The tables.

    Attributes:
        difficulty: by stratum, fixed before the run.
        family: by task family.
        length: by mean length of the trajectories, tokens.
        duration: by time from admission to close or rejection, seconds.
        rejections: by reason and difficulty.
    """

    difficulty: tuple[StratumFate, ...]
    family: tuple[StratumFate, ...]
    length: tuple[StratumFate, ...]
    duration: tuple[StratumFate, ...]
    rejections: tuple[Rejection, ...]


def strata(index: RunIndex) -> Strata:
    """The tables of the training groups seen so far."""
    groups = [group for group in index.groups.values() if group.drawn_ns is not None]
    lengths = _mean_lengths(index)
    tables: dict[str, dict[tuple[float, str], list[GroupLife]]] = {"length": {}, "duration": {}}
    difficulties: dict[tuple[float, str], list[GroupLife]] = {}
    families: dict[tuple[float, str], list[GroupLife]] = {}
    for group in groups:
        difficulties.setdefault((0.0, group.difficulty), []).append(group)
        families.setdefault((0.0, group.family), []).append(group)
        tables["length"].setdefault(octave(lengths.get(str(group.id)), "tokens"), []).append(group)
        tables["duration"].setdefault(octave(_duration_s(group), "s"), []).append(group)
    return Strata(
        difficulty=_rows(difficulties),
        family=_rows(families),
        length=_rows(tables["length"]),
        duration=_rows(tables["duration"]),
        rejections=_rejections(groups),
    )


def is_cut_off(group: GroupLife) -> bool:
    """Whether the end of the run, and no rule, closed the group."""
    return group.rejection is not None and group.rejection.reason == END_OF_RUN


def _rows(table: dict[tuple[float, str], list[GroupLife]]) -> tuple[StratumFate, ...]:
    return tuple(_row(name, groups) for (_, name), groups in sorted(table.items(), key=lambda item: item[0]))


def _row(name: str, groups: list[GroupLife]) -> StratumFate:
    decided = [group for group in groups if not is_cut_off(group)]
    rewards = [reward for group in groups for reward in group.rewards]
    return StratumFate(
        stratum=name,
        drawn=len(groups),
        trained=sum(group.fate == "trained" for group in decided),
        filtered=sum(group.fate == "filtered" for group in decided),
        abandoned=sum(group.fate == "abandoned" for group in decided),
        cut_off=len(groups) - sum(group.fate != "open" for group in decided),
        mean_reward=mean([reward for reward in rewards if reward is not None]),
        absent_rewards=sum(reward is None for reward in rewards),
    )


def _rejections(groups: list[GroupLife]) -> tuple[Rejection, ...]:
    table: dict[tuple[str, str, str], list[GroupLife]] = {}
    for group in groups:
        if group.rejection is not None:
            reason = group.rejection
            table.setdefault((reason.state, reason.reason, reason.difficulty), []).append(group)
    return tuple(_rejection(*key, found) for key, found in sorted(table.items()))


def _rejection(state: str, reason: str, difficulty: str, groups: list[GroupLife]) -> Rejection:
    records = [group.rejection for group in groups if group.rejection is not None]
    return Rejection(
        state=state,
        reason=reason,
        difficulty=difficulty,
        groups=len(records),
        mean_tokens=mean([record.mean_tokens for record in records if record.mean_tokens > 0]),
        mean_duration_s=mean([record.duration_s for record in records]),
        oldest_lag=max((record.oldest_lag for record in records if record.oldest_lag >= 0), default=None),
    )


def _mean_lengths(index: RunIndex) -> dict[str, float]:
    """Mean tokens of each group's sealed trajectories."""
    totals: dict[str, list[float]] = {}
    for life in index.transcripts.values():
        totals.setdefault(str(life.episode.group), []).append(life.sealed.total_tokens)
    return {group: sum(tokens) / len(tokens) for group, tokens in totals.items()}


def _duration_s(group: GroupLife) -> float | None:
    end_ns = group.closed_ns if group.closed_ns is not None else group.rejected_ns
    if end_ns is None or group.admitted_ns is None:
        return None
    return (end_ns - group.admitted_ns) / 1e9


def octave(value: float | None, unit: str) -> tuple[float, str]:
    """Sorting key and name of the power-of-two interval that holds the value; unknown ones come last."""
    if value is None:
        return math.inf, "not finished"
    if value <= 0:
        return -math.inf, f"0 {unit}"
    low = 2.0 ** math.floor(math.log2(value))
    return low, f"{low:g} to {2 * low:g} {unit}"
