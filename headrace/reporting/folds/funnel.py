"""The stage funnel: what entered each stage, and with what reason everything else left.

Invariant: drawn = trained + filtered + abandoned + open, and the result says whether it held.
"""

from collections import Counter

import msgspec

from headrace.records.action import ActionCommitted, ActionIntended
from headrace.records.batch import GroupAdmitted, GroupClosed
from headrace.records.checkpoint import RecordQuarantined
from headrace.records.events import Event
from headrace.records.execution import EpisodeClaimed
from headrace.records.ids import EpisodeId, GroupId
from headrace.records.observation import ActionObserved
from headrace.records.segment import TurnGenerated
from headrace.records.task import TaskDrawn
from headrace.records.trajectory import EpisodeStarted, TranscriptSealed
from headrace.records.verdict import VerdictDisputed, VerdictSealed
from headrace.reporting.folds.index import RunIndex

STAGES = (
    ("tasks drawn", "tasks"),
    ("groups admitted", "groups"),
    ("episodes started", "episodes"),
    ("policy turns", "turns"),
    ("tool calls intended", "calls"),
    ("tool calls committed", "calls"),
    ("observations shown", "calls"),
    ("transcripts sealed", "episodes"),
    ("transcripts scored", "episodes"),
    ("groups closed", "groups"),
    ("groups trained", "groups"),
    ("trajectories trained", "episodes"),
)
"""Stages in order, with what is counted."""


class StageCount(msgspec.Struct, frozen=True):
    """What reached a stage.

    Attributes:
        stage: name.
        unit: what is counted.
        counts: by purpose.
    """

    stage: str
    unit: str
    counts: dict[str, int]


class Outcome(msgspec.Struct, frozen=True):
    """What happened at a stage, by reason.

    Attributes:
        stage: where.
        reason: label.
        counts: by purpose.
    """

    stage: str
    reason: str
    counts: dict[str, int]


class Frontier(msgspec.Struct, frozen=True):
    """The data frontier at the end of the log. Unit: tasks.

    Attributes:
        drawn: taken from the source.
        trained: consumed by a committed version.
        filtered: rejected by a rule on the data.
        abandoned: could not be finished.
        open: still under way.
    """

    drawn: int
    trained: int
    filtered: int
    abandoned: int
    open: int

    @property
    def is_conserved(self) -> bool:
        return self.drawn == self.trained + self.filtered + self.abandoned + self.open


class Funnel(msgspec.Struct, frozen=True):
    """The funnel of a run.

    Attributes:
        purposes: in the order of the columns.
        stages: counts by stage.
        outcomes: what happened at each stage, by reason.
        frontier: states of the drawn tasks.
        is_conserved: whether the states add up.
    """

    purposes: tuple[str, ...]
    stages: tuple[StageCount, ...]
    outcomes: tuple[Outcome, ...]
    frontier: Frontier
    is_conserved: bool


class StageFunnel:
    """Counts stages and outcomes by purpose."""

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        self._stages: Counter[tuple[str, str]] = Counter()
        self._outcomes: Counter[tuple[str, str, str]] = Counter()
        self._claimed: set[EpisodeId] = set()

    def observe(self, event: Event) -> None:
        """Takes the next event."""
        self._observe_group(event)
        self._observe_episode(event)

    def _observe_group(self, event: Event) -> None:
        match event.payload:
            case TaskDrawn():
                self._count("tasks drawn", GroupId.parse(event.key).purpose)
            case GroupAdmitted():
                self._count("groups admitted", GroupId.parse(event.key).purpose)
            case VerdictSealed() | VerdictDisputed():
                self._judge(event.payload)
            case GroupClosed():
                self._close(GroupId.parse(event.key).purpose, event.payload)
            case _:
                pass

    def _observe_episode(self, event: Event) -> None:
        match event.payload:
            case EpisodeClaimed():
                self._claim(EpisodeId.parse(event.key.partition("#")[0]))
            case EpisodeStarted():
                self._start(EpisodeId.parse(event.key))
            case TurnGenerated(episode=episode):
                self._count("policy turns", episode.group.purpose)
            case ActionIntended(action=action):
                self._count("tool calls intended", action.id.episode.group.purpose)
            case ActionCommitted(action_id=action_id):
                self._count("tool calls committed", action_id.episode.group.purpose)
            case ActionObserved(action_id=action_id, is_cut=is_cut):
                purpose = action_id.episode.group.purpose
                self._count("observations shown", purpose)
                self._note("observation", "cut to its budget", purpose, int(is_cut))
            case TranscriptSealed(terminal=terminal):
                purpose = EpisodeId.parse(event.key).group.purpose
                self._count("transcripts sealed", purpose)
                self._note("terminal", terminal, purpose)
            case RecordQuarantined(record=record, episode=episode):
                purpose = "train" if episode is None else episode.group.purpose
                self._note("transcript", f"{record} quarantined by a repair", purpose)
            case _:
                pass

    def result(self) -> Funnel:
        """The funnel so far."""
        stages, outcomes = self._stages.copy(), self._outcomes.copy()
        for life in self._index.transcripts.values():
            purpose = life.episode.group.purpose
            outcomes["turn", "malformed, shown to the policy", purpose] += life.malformed_turns
            outcomes["observation", "control literals neutralised", purpose] += life.side.neutralized
            outcomes["turn", "cache rebuilt or slot taken", purpose] += life.side.preemptions
            outcomes["transcript", "no sampled token", purpose] += life.sealed.sampled_tokens == 0
            for cause in life.forks:
                outcomes["path", f"forked: {cause.value}", purpose] += 1
            for status, count in life.statuses:
                outcomes["call", status.value, purpose] += count
            if life.num_scored:
                stages["transcripts scored", purpose] += 1
            elif life.cause is not None:
                outcomes["verdict", f"absent: {life.cause.value}", purpose] += 1
            elif life.sealed.terminal.startswith("infra_error"):
                outcomes["verdict", "not asked for: infrastructure failure, new attempt", purpose] += 1
            else:
                outcomes["verdict", "absent: not graded yet", purpose] += 1
        for group in self._index.groups.values():
            self._end_group(group.id.purpose, group.fate, group.rejection and group.rejection.reason, outcomes)
        trained = self._index.trained_groups()
        stages["groups trained", "train"] = len(trained)
        self._count_rows(stages, outcomes)
        purposes, frontier = _purposes(stages), self._frontier()
        return Funnel(
            purposes=purposes,
            stages=tuple(StageCount(s, unit, {p: stages[s, p] for p in purposes}) for s, unit in STAGES),
            outcomes=_outcome_rows(outcomes, purposes),
            frontier=frontier,
            is_conserved=frontier.is_conserved,
        )

    def _frontier(self) -> Frontier:
        fates = Counter(group.fate for group in self._index.groups.values() if group.drawn_ns is not None)
        drawn = sum(count for (stage, _), count in self._stages.items() if stage == "tasks drawn")
        return Frontier(drawn, fates["trained"], fates["filtered"], fates["abandoned"], fates["open"])

    def _count_rows(self, stages: Counter[tuple[str, str]], outcomes: Counter[tuple[str, str, str]]) -> None:
        """Rows of updates whose version exists; a transcript trained again is counted apart."""
        seen: set[str] = set()
        for update in self._index.updates.values():
            if not any(self._index.groups[group].trained_ns is not None for group in update.groups):
                continue
            of_update = {row.transcript: row.group.purpose for row in update.rows}
            for transcript, purpose in of_update.items():
                if transcript in seen:
                    outcomes["trajectory", "trained again", purpose] += 1
                else:
                    stages["trajectories trained", purpose] += 1
                seen.add(transcript)

    def _end_group(self, purpose: str, fate: str, reason: str | None, outcomes: Counter[tuple[str, str, str]]) -> None:
        if purpose == "train" and fate != "trained":
            outcomes["group", f"{fate}: {reason}" if reason else fate, purpose] += 1

    def _claim(self, episode: EpisodeId) -> None:
        if episode in self._claimed:
            self._note("episode", "taken over under a higher token", episode.group.purpose)
        self._claimed.add(episode)

    def _start(self, episode: EpisodeId) -> None:
        self._count("episodes started", episode.group.purpose)
        self._note(
            "episode", "new attempt after an infrastructure failure", episode.group.purpose, int(episode.attempt > 0)
        )

    def _judge(self, payload: VerdictSealed | VerdictDisputed) -> None:
        life = self._index.transcripts.get(payload.transcript)
        purpose = "train" if life is None else life.episode.group.purpose
        if isinstance(payload, VerdictDisputed):
            self._note("verdict", "second, different verdict (not used)", purpose)
            return
        self._note("verdict", "graded again", purpose, int(payload.try_number > 0))

    def _close(self, purpose: str, closed: GroupClosed) -> None:
        self._count("groups closed", purpose)
        self._note("group member", "reward absent", purpose, sum(m.reward is None for m in closed.members))
        self._note("group member", "reward 0", purpose, sum(m.reward == 0 for m in closed.members))

    def _count(self, stage: str, purpose: str) -> None:
        self._stages[stage, purpose] += 1

    def _note(self, stage: str, reason: str, purpose: str, count: int = 1) -> None:
        self._outcomes[stage, reason, purpose] += count


_ORDER = (
    "episode",
    "turn",
    "path",
    "call",
    "observation",
    "terminal",
    "transcript",
    "verdict",
    "group member",
    "group",
    "trajectory",
)


def _purposes(stages: Counter[tuple[str, str]]) -> tuple[str, ...]:
    found = {purpose for (_, purpose), count in stages.items() if count}
    return ("train", *sorted(found - {"train"}))


def _outcome_rows(outcomes: Counter[tuple[str, str, str]], purposes: tuple[str, ...]) -> tuple[Outcome, ...]:
    names = {(stage, reason) for (stage, reason, _), count in outcomes.items() if count}
    ordered = sorted(names, key=lambda name: (_ORDER.index(name[0]), name[1]))
    return tuple(Outcome(s, r, {p: outcomes[s, r, p] for p in purposes}) for s, r in ordered)
