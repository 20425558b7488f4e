"""What guards a run: rates that rise where they should not, environments that were shut, writers that came too late.

Invariant: an alarm names its stratum, both rates with their counts, and the bound that was passed; no alarm is raised by
fewer than `MIN_EACH` cases on either side.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from headrace.algorithms.intervals import wilson_interval
from headrace.records.events import Event
from headrace.records.run import AnswerRefused, BreakerChanged, LateWriteRefused
from headrace.reporting.folds.index import RunIndex
from headrace.reporting.folds.lives import TranscriptLife
from headrace.reporting.quantities import ratio

MIN_EACH = 20
"""Attempts before and after that are compared at least."""
NONE_LATE: Mapping[str, int] = {}
_PLACES: Mapping[str, str] = {
    "task_drawn": "ledger",
    "group_admitted": "ledger",
    "group_rejected": "ledger",
    "batch_selected": "ledger",
    "batch_refilled": "ledger",
    "batch_scored": "ledger",
    "batch_planned": "ledger",
    "update_completed": "ledger",
    "weights_staged": "weight store",
    "weights_prepared": "weight store",
    "canary_checked": "weight store",
    "weights_committed": "weight store",
    "weights_activated": "weight store",
}
_NEWEST_SHARE = 4
"""The newest quarter of a stratum's attempts is held against all before it."""


class RateAlarm(msgspec.Struct, frozen=True):
    """A rate that rose beyond its bound.

    Attributes:
        stratum: difficulty.
        what: `no verdict` or `infrastructure failure`.
        before: cases so far.
        before_of: attempts so far.
        after: cases among the newest attempts.
        after_of: the newest attempts.
        bound: upper end of the 95% interval of the rate before; the lower end of the one after lies above it.
    """

    stratum: str
    what: str
    before: int
    before_of: int
    after: int
    after_of: int
    bound: float


class BreakerFigures(msgspec.Struct, frozen=True):
    """The circuit breaker of one environment.

    Attributes:
        environment: name.
        openings: how often it was shut.
        shut_s: seconds in which no attempt started, or one at a time.
        is_shut: whether it is at the end.
    """

    environment: str
    openings: int
    shut_s: float
    is_shut: bool


class Guards(msgspec.Struct, frozen=True):
    """The section.

    Attributes:
        alarms: rates that rose, by stratum.
        watched: strata with enough attempts to be compared.
        breakers: environments that were shut, by name.
        refused: late writes that were refused, by where: `executor`, `ledger` (draws, consumption, the data frontier),
            `weight store` (publication) or `journal` (anything else).
        answers: answers to something else than was asked, by boundary.
    """

    alarms: tuple[RateAlarm, ...]
    watched: int
    breakers: tuple[BreakerFigures, ...]
    refused: dict[str, int]
    answers: dict[str, int]


@dataclasses.dataclass
class _Shut:
    openings: int = 0
    shut_ns: int = 0
    since_ns: int | None = None


class GuardFold:
    """Takes events in order; the rates come from the index at the end.

    Args:
        index: of the run.
        late: events by kind that writers which had been taken over were refused; no event of theirs says it.
    """

    def __init__(self, index: RunIndex, late: Mapping[str, int] = NONE_LATE) -> None:
        self._index = index
        self._shut: dict[str, _Shut] = {}
        self._refused: Counter[str] = Counter()
        self._answers: dict[str, int] = {}
        for kind, count in late.items():
            self._refused[_PLACES.get(kind, "journal")] += count

    def observe(self, event: Event) -> None:
        match event.payload:
            case BreakerChanged(state=state):
                shut = self._shut.setdefault(event.key, _Shut())
                if state != "closed" and shut.since_ns is None:
                    shut.openings += 1
                    shut.since_ns = event.t_ns
                elif state == "closed" and shut.since_ns is not None:
                    shut.shut_ns += event.t_ns - shut.since_ns
                    shut.since_ns = None
            case LateWriteRefused(where=where):
                self._refused[where] += 1
            case AnswerRefused(boundary=boundary):
                self._answers[boundary] = self._answers.get(boundary, 0) + 1
            case _:
                pass

    def result(self) -> Guards:
        """The section so far."""
        by_stratum: dict[str, list[TranscriptLife]] = {}
        for life in self._index.transcripts.values():
            group = self._index.groups.get(life.episode.group)
            if group is not None and group.difficulty:
                by_stratum.setdefault(group.difficulty, []).append(life)
        alarms: list[RateAlarm] = []
        for stratum, lives in sorted(by_stratum.items()):
            lives.sort(key=lambda life: life.sealed_ns)
            failed = [life.sealed.terminal.startswith("infra_error:") for life in lives]
            graded = [life for life, is_failed in zip(lives, failed, strict=True) if not is_failed]
            unscored = [life.reward is None for life in graded if life.verdict_ns is not None]
            for what, cases in (("infrastructure failure", failed), ("no verdict", unscored)):
                alarm = rise(stratum, what, cases)
                if alarm is not None:
                    alarms.append(alarm)
        watched = sum(len(lives) >= 2 * MIN_EACH for lives in by_stratum.values())
        return Guards(
            tuple(alarms),
            watched,
            self._breakers(),
            dict(sorted(self._refused.items())),
            dict(sorted(self._answers.items())),
        )

    def _breakers(self) -> tuple[BreakerFigures, ...]:
        now_ns = self._index.now_ns
        return tuple(
            BreakerFigures(
                name,
                shut.openings,
                (shut.shut_ns + (0 if shut.since_ns is None else now_ns - shut.since_ns)) / 1e9,
                shut.since_ns is not None,
            )
            for name, shut in sorted(self._shut.items())
        )


def rise(stratum: str, what: str, cases: Sequence[bool]) -> RateAlarm | None:
    """The alarm when the newest attempts are cases at a rate above the bound of all before; oldest first."""
    newest = max(MIN_EACH, len(cases) // _NEWEST_SHARE)
    before, after = cases[:-newest], cases[-newest:]
    if len(before) < MIN_EACH:
        return None
    bound = wilson_interval(sum(before), len(before)).high
    if wilson_interval(sum(after), len(after)).low <= bound:
        return None
    return RateAlarm(stratum, what, sum(before), len(before), sum(after), len(after), bound)


def rate_text(alarm: RateAlarm) -> str:
    """One line for people."""
    before, after = ratio(alarm.before, alarm.before_of), ratio(alarm.after, alarm.after_of)
    assert before is not None and after is not None
    return (
        f"ALARM {alarm.what} rises in stratum {alarm.stratum}: {after:.1%} of the newest {alarm.after_of} attempts, "
        f"{before:.1%} of the {alarm.before_of} before (bound {alarm.bound:.1%})"
    )
