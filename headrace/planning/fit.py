"""A workload and costs fitted from a run's own event log.

Invariant: everything in the fitted scenario is a quantile, a mean or a count of what the log says; nothing is assumed that a
note does not name. Prefill is not told apart from decoding in a log, so it is part of the decode rate.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from headrace.config import Config
from headrace.errors import ConfigError
from headrace.planning.decode_rate import decode_points
from headrace.planning.outcome import Outcome, OutcomeFold, steady_from
from headrace.records.batch import BatchSelected, GroupClosed
from headrace.records.events import Event
from headrace.records.ids import EpisodeId, Purpose
from headrace.records.provenance import Read, read_record
from headrace.records.run import RunStarted
from headrace.records.segment import Origin, TokenSegment, TurnGenerated
from headrace.records.task import TaskDrawn
from headrace.records.trajectory import EpisodeStarted, SideRecord, Transcript, TranscriptSealed
from headrace.records.update import (
    BatchScored,
    CanaryChecked,
    GenerationPaused,
    GenerationResumed,
    UpdateCompleted,
    WeightsActivated,
    WeightsCommitted,
    WeightsPrepared,
)
from headrace.records.verdict import VerdictSealed
from headrace.simulation.costs import EngineCost, TrainerCost
from headrace.simulation.laws import Constant, Law, Quantiles, score_of
from headrace.simulation.scenario import Scenario
from headrace.simulation.workload import Stratum, Workload
from headrace.store.reader import open_reader

_QUANTILES = 33
_LEAST_EPISODES = 16
_FOLLOWS = 0.5
"""Correlation of turns and tokens above which lengths are fitted by turn."""


class Fitted(msgspec.Struct, frozen=True):
    """A run as the simulator can replay it.

    Attributes:
        name: of the run.
        scenario: fitted laws and costs.
        config: the run's own configuration.
        measured: what the run itself gave.
        updates: that it made.
        num_held_out: held-out tasks of one evaluation round.
        cores: that the run could use; None when it does not say.
        cpu_s_per_episode: metered CPU of environments; None when nothing metered it.
        notes: what the fit could not know, for people.
    """

    name: str
    scenario: Scenario
    config: Config
    measured: Outcome
    updates: int
    num_held_out: int
    cores: float | None
    cpu_s_per_episode: float | None
    notes: tuple[str, ...]


def fit_run(folder: Path) -> Fitted:
    """The fitted run of a folder.

    Raises:
        ConfigError: when there is no journal, or too little in it.
    """
    if not (folder / "journal.db").is_file():
        raise ConfigError(f"{folder} holds no journal.db; name a run's folder")
    with open_reader(folder) as reader:
        return fit_events(reader.events, reader.read, folder.name)


def fit_events(events: Callable[[], Iterable[Event]], read: Read, name: str) -> Fitted:
    """The fitted run of a log; its first third is neither fitted nor compared.

    Args:
        events: gives them in order, from the first, each time that it is called.
        read: bytes of a sealed row.
        name: of the run.

    Raises:
        ConfigError: when the log holds too little.
    """
    updates = sum(isinstance(event.payload, UpdateCompleted) for event in events())
    first = steady_from(updates)
    log, outcome = _Log(read, first), OutcomeFold(updates, first)
    for event in events():
        log.observe(event)
        outcome.observe(event)
    if log.config is None or len(log.episodes) < _LEAST_EPISODES or not log.update_s:
        raise ConfigError(
            f"{name}: {len(log.episodes)} finished episodes and {len(log.update_s)} updates; a fit needs a configuration, "
            f"{_LEAST_EPISODES} episodes and 1 update"
        )
    schedule = log.config.schedule
    scenario = Scenario(
        workload=_workload(log, name),
        engine=_engine(log),
        trainer=_trainer(log),
        group_size=schedule.group_size,
        batch_groups=schedule.batch_groups,
        updates=log.config.run.updates,
        placement="shared" if log.switch_s else "separate",
        switch_s=float(np.mean(log.switch_s)) if log.switch_s else 0.0,
    )
    return Fitted(
        name=name,
        scenario=scenario,
        config=log.config,
        measured=outcome.outcome(),
        updates=updates,
        num_held_out=len(log.held_out),
        cores=log.cores,
        cpu_s_per_episode=log.cpu_s / len(log.episodes) if log.cpu_s else None,
        notes=_notes(log),
    )


@dataclasses.dataclass
class _Episode:
    """One sealed training episode."""

    group: str
    turns: tuple[int, ...]
    prompt: int
    observations: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return sum(self.turns)


class _Log:
    """Everything that the laws are made of."""

    def __init__(self, read: Read, first: int) -> None:
        self._read = read
        self._first = first
        self._version = 0
        self.config: Config | None = None
        self.cores: float | None = None
        self.cpu_s = 0.0
        self.difficulty: dict[str, str] = {}
        self.rewards: dict[str, list[float]] = defaultdict(list)
        self.episodes: list[_Episode] = []
        self.held_out: set[int] = set()
        self.turns: list[tuple[float, float, int]] = []
        self.gaps: list[tuple[str, float]] = []
        self.open_s: list[float] = []
        self.grade_s: list[float] = []
        self.score_s: list[float] = []
        self.update_s: list[float] = []
        self.load_s: list[float] = []
        self.canary_s: list[float] = []
        self.pause_s: list[float] = []
        self.switch_s: list[float] = []
        self.unfinished = 0
        self._last: dict[str, float] = {}
        self._started: set[str] = set()
        self._sealed: dict[str, float] = {}
        self._marks: dict[str, float] = {}

    def observe(self, event: Event) -> None:
        """Takes the next event."""
        t_s = event.t_ns / 1e9
        match event.payload:
            case RunStarted(config=address, resources=resources):
                self.config = read_record(self._read, address, Config)
                self.cores = resources.get("cores")
            case TaskDrawn(difficulty=difficulty):
                self.difficulty[event.key] = difficulty
            case EpisodeStarted():
                self._last[event.key] = t_s
                self._started.add(event.key)
            case TurnGenerated():
                self._turn(event.payload, t_s)
            case TranscriptSealed():
                self._seal(event.key, event.payload, t_s)
            case VerdictSealed(transcript=transcript) if transcript in self._sealed:
                grade_s = t_s - self._sealed.pop(transcript)
                if self._is_steady:
                    self.grade_s.append(grade_s)
            case GroupClosed(members=members):
                known = [member.reward for member in members if member.reward is not None]
                self.rewards[event.key] += known
            case _:
                self._observe_update(event, t_s)

    def _observe_update(self, event: Event, t_s: float) -> None:
        marks = self._marks
        match event.payload:
            case BatchSelected():
                marks["selected"] = t_s
            case BatchScored():
                marks["scored"] = t_s
            case UpdateCompleted():
                marks["completed"] = t_s
            case WeightsPrepared():
                marks["prepared"] = t_s
            case CanaryChecked():
                marks["checked"] = t_s
            case WeightsCommitted():
                marks["committed"] = t_s
            case GenerationPaused(switch_s=switch_s) | GenerationResumed(switch_s=switch_s):
                self.switch_s.append(switch_s)
            case WeightsActivated(policy=policy, pause_s=pause_s):
                if self._is_steady and "completed" in marks:
                    self._measure_update(marks, t_s, pause_s)
                self._version = policy.version
            case _:
                pass

    @property
    def _is_steady(self) -> bool:
        return self._version >= self._first

    def _measure_update(self, marks: dict[str, float], t_s: float, pause_s: float) -> None:
        self.score_s.append(marks["scored"] - marks["selected"])
        self.update_s.append(marks["completed"] - marks["scored"])
        self.load_s.append(marks["prepared"] - marks["completed"])
        self.canary_s.append(marks["checked"] - marks["prepared"] + max(0.0, t_s - marks["committed"] - pause_s))
        self.pause_s.append(pause_s)

    def _turn(self, turn: TurnGenerated, t_s: float) -> None:
        key = str(turn.episode)
        count = sum(len(segment) for segment in turn.segments)
        if self._is_steady:
            self.turns.append((t_s - turn.generate_s, t_s, count))
        asked_s = t_s - turn.generate_s - turn.wait_s
        if key in self._last:
            gap_s = max(0.0, asked_s - self._last[key])
            is_first = key in self._started
            self._started.discard(key)
            if self._is_steady and is_first:
                self.open_s.append(gap_s)
            elif self._is_steady:
                self.gaps.append((str(turn.episode.group), gap_s))
        self._last[key] = t_s

    def _seal(self, key: str, sealed: TranscriptSealed, t_s: float) -> None:
        episode = EpisodeId.parse(key)
        last_s = self._last.pop(key, t_s)
        if episode.group.purpose != Purpose.TRAIN.value:
            self.held_out.add(episode.group.ordinal)
        elif sealed.sampled_tokens and self._is_steady:
            self.episodes.append(self._episode(sealed))
            self.cpu_s += read_record(self._read, sealed.side, SideRecord).metering.cpu_s
        if sealed.terminal.startswith("infra_error"):
            self.unfinished += 1
        else:
            self._sealed[sealed.transcript] = last_s

    def _episode(self, sealed: TranscriptSealed) -> _Episode:
        transcript = read_record(self._read, sealed.transcript, Transcript)
        segments = tuple(transcript.first_shown())
        origins = [segment.origin for segment in segments]
        first = origins.index(Origin.POLICY)
        return _Episode(
            group=str(transcript.episode.group),
            turns=_turn_tokens(segments),
            prompt=sum(len(segment) for segment in segments[:first]),
            observations=tuple(len(segment) for segment in segments[first:] if segment.origin is Origin.ENVIRONMENT),
        )


def _workload(log: _Log, name: str) -> Workload:
    is_by_turn = _grows_with_turns(log.episodes)
    scales, strata = _strata(log, is_by_turn)
    difficulty = log.difficulty
    lengths = [(e.group, n) for e in log.episodes for n in (e.turns if is_by_turn else (e.tokens,))]
    scaled = [tokens / scales[difficulty[group]] for group, tokens in lengths]
    gaps = [gap_s / scales[difficulty[group]] for group, gap_s in log.gaps if group in difficulty]
    observations = [count for episode in log.episodes for count in episode.observations]
    return Workload(
        name=name,
        source=f"fitted from the event log of {name}: {len(log.episodes)} episodes, {len(log.update_s)} updates",
        strata=strata,
        tokens=law_of(scaled),
        tokens_of="turn" if is_by_turn else "episode",
        group_correlation=_correlation(scaled, [group for group, _ in lengths]),
        prompt_tokens=law_of([episode.prompt for episode in log.episodes]),
        turns=steps_of([len(episode.turns) for episode in log.episodes]),
        observation_tokens=law_of(observations),
        tool_s=law_of(gaps),
        open_s=law_of(log.open_s),
        grade_s=law_of(log.grade_s),
    )


def _turn_tokens(segments: Sequence[TokenSegment]) -> tuple[int, ...]:
    """Sampled tokens of each turn; a turn is cut into segments where weights changed, and ends with a finish."""
    turns, running = list[int](), 0
    for segment in segments:
        if segment.origin is Origin.POLICY:
            running += len(segment)
            if segment.finish is not None:
                turns.append(running)
                running = 0
    return tuple(turns)


def _grows_with_turns(episodes: Sequence[_Episode]) -> bool:
    """Whether an episode's tokens follow its turns, so that a length belongs to a turn rather than to the episode."""
    turns = np.array([len(episode.turns) for episode in episodes], dtype=float)
    tokens = np.array([episode.tokens for episode in episodes], dtype=float)
    if turns.std() == 0.0 or tokens.std() == 0.0:
        return False
    return bool(np.corrcoef(turns, tokens)[0, 1] > _FOLLOWS)


def _strata(log: _Log, is_by_turn: bool) -> tuple[dict[str, float], tuple[Stratum, ...]]:
    """Scale of each difficulty, relative to the mean turn or episode, and the strata."""
    tokens: dict[str, list[int]] = defaultdict(list)
    solved: dict[str, list[float]] = defaultdict(list)
    for episode in log.episodes:
        tokens[log.difficulty[episode.group]] += episode.turns if is_by_turn else (episode.tokens,)
    assert log.config is not None
    for group, rewards in log.rewards.items():
        if group in log.difficulty:
            solved[log.difficulty[group]] += [float(r >= log.config.evaluation.success_bound) for r in rewards]
    groups = Counter(log.difficulty.values())
    known = {name: count for name, count in groups.items() if name in tokens}
    total = sum(known.values())
    mean = float(np.mean([count for counts in tokens.values() for count in counts]))
    scales = {name: float(np.mean(values)) / mean for name, values in tokens.items()}
    shares = {name: count / total for name, count in sorted(known.items())}
    strata = [
        Stratum(name=name, share=share, scale=scales[name], success=float(np.mean(solved[name] or [0.0])))
        for name, share in shares.items()
    ]
    return scales, tuple(strata)


def _engine(log: _Log) -> EngineCost:
    assert log.config is not None
    slots = log.config.inference.options.get("slots")
    points = decode_points(log.turns, slots if isinstance(slots, int) else None)
    return EngineCost(
        slots=slots if isinstance(slots, int) else points[-1][0],
        decode=tuple(points),
        swap_pause_s=float(np.mean(log.pause_s)),
        stage_s=law_of(log.load_s),
    )


def _trainer(log: _Log) -> TrainerCost:
    return TrainerCost(
        update_s=law_of(log.update_s), score_s=law_of(log.score_s), canary_s=float(np.mean(log.canary_s))
    )


def law_of(values: Sequence[float]) -> Law:
    """The measured distribution by its quantiles, with the measured mean; a constant for fewer than two values."""
    if not len(values):
        return Constant(value=0.0)
    found = np.sort(np.asarray(values, dtype=float))
    if len(found) < 2 or found[0] == found[-1]:
        return Constant(value=float(found.mean()))
    probabilities = np.linspace(0.0, 1.0, min(_QUANTILES, len(found)))
    points = np.quantile(found, probabilities)
    # Linear interpolation overrates a long tail; the mean is what throughput depends on.
    middle = np.trapezoid(points, probabilities)
    points *= found.mean() / middle if middle > 0 else 1.0
    return Quantiles(points=tuple(zip(probabilities.tolist(), points.tolist(), strict=True)))


def steps_of(counts: Sequence[int]) -> Law:
    """The measured distribution of whole numbers, as steps."""
    values, numbers = np.unique(np.asarray(counts), return_counts=True)
    if len(values) == 1:
        return Constant(value=float(values[0]))
    edges = np.cumsum(numbers) / len(counts)
    points = [(0.0, float(values[0]))]
    for value, following, edge in zip(values[:-1], values[1:], edges[:-1], strict=True):
        points += [(float(edge) - 1e-9, float(value)), (float(edge), float(following))]
    return Quantiles(points=(*points, (1.0, float(values[-1]))))


def _correlation(values: Sequence[float], groups: Sequence[str]) -> float:
    """Correlation of the normal scores of two members of a group, in [0, 1]."""
    ranks = np.argsort(np.argsort(np.asarray(values), kind="stable"), kind="stable")
    scores = np.array([score_of((rank + 0.5) / len(values)) for rank in ranks.tolist()])
    members: dict[str, list[float]] = defaultdict(list)
    for group, score in zip(groups, scores.tolist(), strict=True):
        members[group].append(score)
    found = [np.array(scores) for scores in members.values() if len(scores) > 1]
    if not found:
        return 0.0
    # Within a group, sum^2 - sum of squares counts every ordered pair of members once.
    pairs = sum(float(s.sum() ** 2 - (s**2).sum()) for s in found)
    count = sum(len(s) * (len(s) - 1) for s in found)
    return float(min(1.0, max(0.0, pairs / count / float(scores.var()))))


def _notes(log: _Log) -> tuple[str, ...]:
    notes = ["prefill is part of the decode rate: a log does not tell them apart"]
    if log.unfinished:
        notes.append(f"{log.unfinished} episodes that a boundary failed are left out: the fit has no failures")
    if not log.cpu_s:
        notes.append("no environment CPU was metered")
    if len(log.update_s) < 10:
        notes.append(f"only {len(log.update_s)} updates: a mean of so few durations is uncertain")
    return tuple(notes)
