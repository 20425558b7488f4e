"""Waiting per stage: how long, over time, and Little's law L = lambda W beside the measured queue.

Invariant: L is the time average of a counted queue, lambda counts arrivals, W is the mean over departures; the three are
measured apart, so their residual says something. A stage is *not stationary* when arrivals and departures in the window
differ by more than 5% and by more than one.
"""

from collections.abc import Iterable

import msgspec

from headrace.records.action import ActionCommitted, ActionIntended
from headrace.records.batch import BatchRefilled, BatchSelected, GroupClosed, GroupRejected
from headrace.records.events import Event
from headrace.records.ids import ActionId, Address, EpisodeId, GroupId
from headrace.records.segment import TurnGenerated
from headrace.records.trajectory import TranscriptSealed
from headrace.records.update import UpdateCompleted
from headrace.records.verdict import VerdictSealed
from headrace.reporting.folds.index import RunIndex
from headrace.reporting.folds.spans import Bins, Spans, overlap_ns
from headrace.reporting.quantities import mean, quantile

IMBALANCE_BOUND = 0.05
_WAIT_BINS = 24
"""Stretches of the run over which waits are averaged; with more, most hold nothing of most stages."""

STAGES = {
    "engine slot": "turns",
    "generation": "turns",
    "external service": "calls",
    "tool": "calls",
    "grading": "gradings",
    "group completion": "members",
    "ready queue": "groups",
    "training": "updates",
    "publication": "updates",
}
"""Stages in the order of a group's life, with what waits there; the external service only where it has a rate limit."""


class StageWait(msgspec.Struct, frozen=True):
    """Time in one stage, seconds, over everything that left it.

    Attributes:
        stage: name.
        unit: what waits.
        left: how many left.
        inside: how many are still there.
        mean_s: mean; None when none left.
        p50_s: median, exact, linear between order statistics.
        p95_s: 95% quantile, likewise.
        max_s: longest.
        total_s: sum.
    """

    stage: str
    unit: str
    left: int
    inside: int
    mean_s: float | None
    p50_s: float | None
    p95_s: float | None
    max_s: float | None
    total_s: float


class Little(msgspec.Struct, frozen=True):
    """Little's law of one stage in the window.

    Attributes:
        stage: name.
        arrivals: that entered in the window.
        departures: that left in the window.
        arrival_rate: lambda, per second.
        mean_wait_s: W over departures, seconds; None when none left.
        expected: lambda times W; None when none left.
        measured: L, time average of the number inside.
        residual: (measured - expected) / measured; None when nothing was measured.
        is_stationary: arrivals and departures agree within the bound.
    """

    stage: str
    arrivals: int
    departures: int
    arrival_rate: float
    mean_wait_s: float | None
    expected: float | None
    measured: float
    residual: float | None
    is_stationary: bool


class QueueAge(msgspec.Struct, frozen=True):
    """Time from ready to selected of the groups of one update, seconds.

    Attributes:
        update: its number.
        t_s: when they were selected, seconds since the start.
        p50_s: median.
        p95_s: 95% quantile.
        max_s: oldest.
    """

    update: int
    t_s: float
    p50_s: float
    p95_s: float
    max_s: float


class Series(msgspec.Struct, frozen=True):
    """One line of a plot.

    Attributes:
        name: what it shows.
        values: by bin; None where nothing was measured.
    """

    name: str
    values: tuple[float | None, ...]


class EngineTime(msgspec.Struct, frozen=True):
    """What turns of one purpose took of the engines that tell it; seconds add up to those of the engines' passes.

    Attributes:
        purpose: `train` or `eval`.
        turns: that told.
        prefill_tokens: computed before first tokens, rebuilt caches included.
        sampled_tokens: by decoding.
        prefill_s: engine seconds of prefill.
        decode_s: engine seconds of decoding.
    """

    purpose: str
    turns: int = 0
    prefill_tokens: int = 0
    sampled_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Stages(msgspec.Struct, frozen=True):
    """Waiting per stage.

    Attributes:
        waits: by stage, over the run.
        window_s: window of Little's law, seconds since the start: first to last commit of a version, else the run.
        little: by stage.
        queue_ages: by update.
        queue_age_p50_s: over all selected groups; None when none was.
        queue_age_p95_s: likewise.
        bins_s: middles of the bins, seconds since the start.
        mean_waits: mean seconds in each stage of what left it in the bin.
        engine: prefill and decoding apart, by purpose; empty where no engine tells.
    """

    waits: tuple[StageWait, ...]
    window_s: tuple[float, float]
    little: tuple[Little, ...]
    queue_ages: tuple[QueueAge, ...]
    queue_age_p50_s: float | None
    queue_age_p95_s: float | None
    bins_s: tuple[float, ...]
    mean_waits: tuple[Series, ...]
    engine: tuple[EngineTime, ...] = ()


class StageTimes:
    """Times of everything in every stage."""

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        self._spans = {name: Spans() for name in STAGES}
        self._ages: list[QueueAge] = []
        self._acting: dict[EpisodeId, list[ActionId]] = {}
        self._completing: dict[GroupId, set[EpisodeId]] = {}
        self._judged_ns: dict[Address, int] = {}
        self._engine: dict[str, EngineTime] = {}

    def observe(self, event: Event) -> None:
        """Takes the next event."""
        self._observe_episode(event)
        self._observe_group(event)

    def _observe_episode(self, event: Event) -> None:
        t_ns, spans = event.t_ns, self._spans
        match event.payload:
            case TurnGenerated(wait_s=wait_s, generate_s=generate_s):
                slot_ns = t_ns - round(generate_s * 1e9)
                spans["engine slot"].add(slot_ns - round(wait_s * 1e9), slot_ns)
                spans["generation"].add(slot_ns, t_ns)
                self._compute(event.payload)
            case ActionIntended(action=action, wait_s=wait_s):
                if self._is_paced:
                    spans["external service"].add(t_ns - round(wait_s * 1e9), t_ns)
                spans["tool"].enter(action.id, t_ns)
                self._acting.setdefault(action.id.episode, []).append(action.id)
            case ActionCommitted(action_id=action_id):
                spans["tool"].leave(action_id, t_ns)
            case TranscriptSealed():
                self._seal(EpisodeId.parse(event.key), event.payload, t_ns)
            case VerdictSealed(transcript=transcript):
                self._judge(transcript, t_ns)
            case _:
                pass

    def _observe_group(self, event: Event) -> None:
        t_ns, spans = event.t_ns, self._spans
        match event.payload:
            case GroupClosed(members=members):
                for member in members:
                    spans["group completion"].leave(member.episode, t_ns)
                spans["ready queue"].enter(GroupId.parse(event.key), t_ns)
            case GroupRejected():
                self._reject(GroupId.parse(event.key), t_ns)
            case BatchSelected():
                self._select(event.payload, t_ns)
            case BatchRefilled(groups=groups):
                self._take(groups, t_ns)
            case UpdateCompleted(result=result):
                spans["training"].leave(result.update, t_ns)
            case _:
                pass

    def result(self) -> Stages:
        """The figures so far."""
        index = self._index
        start_ns, end_ns = index.start_ns or 0, index.now_ns
        commits = [life.committed_ns for life in index.versions.values() if life.update is not None]
        window = (commits[0], commits[-1]) if len(commits) > 1 else (start_ns, end_ns)
        bins = Bins(start_ns, end_ns, num=_WAIT_BINS)
        table = {**self._spans, "publication": self._publications()}
        if not self._is_paced:
            del table["external service"]
        ages = self._spans["ready queue"].waits_s()
        return Stages(
            waits=tuple(_wait(name, spans) for name, spans in table.items()),
            window_s=(window[0] / 1e9, window[1] / 1e9),
            little=tuple(_little(name, spans, window, end_ns) for name, spans in table.items()),
            queue_ages=tuple(self._ages),
            queue_age_p50_s=quantile(ages, 0.5),
            queue_age_p95_s=quantile(ages, 0.95),
            bins_s=bins.middles_s,
            mean_waits=tuple(
                Series(name, tuple(mean(found) for found in bins.groups(spans.departures())))
                for name, spans in table.items()
            ),
            engine=tuple(self._engine.values()),
        )

    @property
    def _is_paced(self) -> bool:
        config = self._index.config
        return config is not None and config.environment.calls_per_s is not None

    def _compute(self, turn: TurnGenerated) -> None:
        if turn.compute is None:
            return
        purpose = turn.episode.group.purpose
        known = self._engine.get(purpose) or EngineTime(purpose)
        self._engine[purpose] = EngineTime(
            purpose,
            known.turns + 1,
            known.prefill_tokens + turn.compute.prefill_tokens,
            known.sampled_tokens + turn.num_tokens,
            known.prefill_s + turn.compute.prefill_s,
            known.decode_s + turn.compute.decode_s,
        )

    def _publications(self) -> Spans:
        """From the optimizer's step to the last worker's switch."""
        spans = Spans()
        activated = {life.update: life.activated_ns for life in self._index.versions.values()}
        for life in self._index.updates.values():
            if life.completed_ns is not None:
                spans.enter(life.update, life.completed_ns)
                leave_ns = activated.get(life.update)
                if leave_ns is not None:
                    spans.leave(life.update, leave_ns)
        return spans

    def _seal(self, episode: EpisodeId, sealed: TranscriptSealed, t_ns: int) -> None:
        """An episode that a boundary failed never goes to the grader; a call that it left unfinished has no time."""
        for action in self._acting.pop(episode, ()):
            self._spans["tool"].drop(action)
        if not sealed.terminal.startswith("infra_error"):
            self._spans["grading"].enter(sealed.transcript, t_ns)

    def _judge(self, transcript: Address, t_ns: int) -> None:
        """Each grading is one stay, the repeated ones from the verdict before; the last verdict starts the wait."""
        last_ns = self._judged_ns.get(transcript)
        self._judged_ns[transcript] = t_ns
        if last_ns is None:
            self._spans["grading"].leave(transcript, t_ns)
        else:
            self._spans["grading"].add(last_ns, t_ns)
        life = self._index.transcripts.get(transcript)
        if life is not None and life.episode.group.purpose == "train":
            group = self._index.group_of(life)
            if group.closed_ns is None and group.rejection is None:
                self._spans["group completion"].drop(life.episode)
                self._spans["group completion"].enter(life.episode, t_ns)
                self._completing.setdefault(group.id, set()).add(life.episode)

    def _reject(self, group: GroupId, t_ns: int) -> None:
        """A ready group leaves the queue; one that closed without enough rewards was never in it."""
        for episode in self._completing.pop(group, ()):
            self._spans["group completion"].drop(episode)
        if self._index.groups[group].was_ready:
            self._spans["ready queue"].leave(group, t_ns)
        else:
            self._spans["ready queue"].drop(group)

    def _take(self, groups: Iterable[GroupId], t_ns: int) -> list[float]:
        """The groups leave the queue; how old they were, seconds."""
        ages: list[float] = []
        for group in groups:
            closed_ns = self._index.groups[group].closed_ns
            if closed_ns is not None:
                ages.append((t_ns - closed_ns) / 1e9)
            self._spans["ready queue"].leave(group, t_ns)
            self._completing.pop(group, None)
        return ages

    def _select(self, selected: BatchSelected, t_ns: int) -> None:
        ages = self._take(selected.groups, t_ns)
        self._spans["training"].enter(selected.update, t_ns)
        p50, p95 = quantile(ages, 0.5), quantile(ages, 0.95)
        if p50 is not None and p95 is not None:
            self._ages.append(QueueAge(selected.update, t_ns / 1e9, p50, p95, max(ages)))


def _wait(name: str, spans: Spans) -> StageWait:
    waits = spans.waits_s()
    return StageWait(
        stage=name,
        unit=STAGES[name],
        left=len(waits),
        inside=spans.num_open,
        mean_s=mean(waits),
        p50_s=quantile(waits, 0.5),
        p95_s=quantile(waits, 0.95),
        max_s=max(waits, default=None),
        total_s=sum(waits),
    )


def _little(name: str, spans: Spans, window: tuple[int, int], end_ns: int) -> Little:
    """L, lambda and W of the window, each measured on its own."""
    start_ns, stop_ns = window
    seconds = (stop_ns - start_ns) / 1e9
    intervals = spans.intervals(end_ns)
    arrivals = sum(start_ns <= enter < stop_ns for enter, _ in intervals)
    left = [wait for leave, wait in spans.departures() if start_ns <= leave < stop_ns]
    rate = arrivals / seconds if seconds > 0 else 0.0
    measured = overlap_ns(intervals, start_ns, stop_ns) / 1e9 / seconds if seconds > 0 else 0.0
    wait = mean(left)
    expected = None if wait is None else rate * wait
    gap = abs(arrivals - len(left))
    return Little(
        stage=name,
        arrivals=arrivals,
        departures=len(left),
        arrival_rate=rate,
        mean_wait_s=wait,
        expected=expected,
        measured=measured,
        residual=(measured - expected) / measured if expected is not None and measured > 0 else None,
        is_stationary=gap <= 1 or gap <= IMBALANCE_BOUND * max(arrivals, len(left)),
    )
