"""Samples of lengths and durations from a run's event log, for laws to be fitted to.

Invariant: nothing is estimated: a sample is a length or a difference of times that the log holds. Episodes, turns and
durations count from the version that is named first; difficulties, rewards and switches of shared devices from the start.
"""

import bisect
import dataclasses
import math
from collections import defaultdict
from statistics import variance

from headrace.config import Config
from headrace.planning.decode_rate import TurnSample
from headrace.records.action import ActionIntended
from headrace.records.batch import BatchSelected, GroupClosed
from headrace.records.compaction import read_outline
from headrace.records.evaluation import EvaluationStarted
from headrace.records.events import Event
from headrace.records.ids import Address, EpisodeId, Purpose
from headrace.records.provenance import Read, read_record
from headrace.records.run import RunStarted
from headrace.records.segment import TurnGenerated
from headrace.records.task import TaskDrawn
from headrace.records.trajectory import EpisodeStarted, SideRecord, TranscriptSealed
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


@dataclasses.dataclass
class EpisodeSample:
    """One sealed training episode.

    Attributes:
        group: whose member it is.
        turns: sampled tokens of each turn.
        prompt: tokens before the first turn.
        observations: tokens of each observation.
    """

    group: str
    turns: tuple[int, ...]
    prompt: int
    observations: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Sampled, over all turns."""
        return sum(self.turns)


class _Standstill:
    """Shared devices are the trainer's; `lost_s` is all that the engine stood still until the end of this one."""

    def __init__(self, from_s: float, lost_before_s: float) -> None:
        self.from_s = from_s
        self.lost_s = math.inf
        self._lost_before_s = lost_before_s

    def end(self, t_s: float) -> None:
        self.lost_s = self._lost_before_s + t_s - self.from_s

    def running_s(self, t_s: float) -> float:
        return max(self.from_s - self._lost_before_s, t_s - self.lost_s)


class Samples:
    """Everything that the laws are made of.

    Args:
        read: bytes of a sealed row.
        first: version from which samples are taken.

    Attributes:
        config: the run's own.
        cores: that it could use; None when it does not say.
        cpu_s: metered CPU of the episodes' environments.
        difficulty: by group.
        rewards: that are known, by group.
        episodes: of training, sealed with sampled tokens.
        num_held_out: held-out tasks of one evaluation round.
        turns: all of them, those of evaluations too: they share the engine.
        gaps: group, and seconds between a turn and the request for the next, less the wait for a turn at the service.
        grade_s: from the sealed episode to its verdict.
        grade_alone_s: the same from the verdict before on, if that came later: of a grader that grades one at a time.
        unfinished: episodes that a boundary failed.
    """

    def __init__(self, read: Read, first: int) -> None:
        self._read = read
        self._first = first
        self._version = 0
        self.config: Config | None = None
        self.cores: float | None = None
        self.cpu_s = 0.0
        self.difficulty: dict[str, str] = {}
        self.rewards: dict[str, list[float]] = defaultdict(list)
        self.episodes: list[EpisodeSample] = []
        self.num_held_out = 0
        self.turns: list[TurnSample] = []
        self.gaps: list[tuple[str, float]] = []
        self.open_s: list[float] = []
        self.grade_s: list[float] = []
        self.grade_alone_s: list[float] = []
        self.score_s: list[float] = []
        self.update_s: list[float] = []
        self.load_s: list[float] = []
        self.canary_s: list[float] = []
        self.pause_s: list[float] = []
        self.switch_s: list[float] = []
        self.unfinished = 0
        self._held: dict[str, float] = defaultdict(float)
        self._last: dict[str, float] = {}
        self._started: set[str] = set()
        self._sealed: dict[str, float] = {}
        self._is_in_order = True
        self._last_asked_s = self._judged_s = 0.0
        self._marks: dict[str, float] = {}
        self._stops: list[_Standstill] = []

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
            case ActionIntended(action=action, wait_s=wait_s):
                self._held[str(action.id.episode)] += wait_s
            case TurnGenerated():
                self._turn(event.payload, t_s)
            case TranscriptSealed():
                self._seal(event.key, event.payload, t_s)
            case EvaluationStarted(episodes=episodes):
                self.num_held_out = episodes
            case VerdictSealed(transcript=transcript):
                self._judge(transcript, t_s)
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
            case GenerationPaused() | GenerationResumed():
                self._observe_standstill(event.payload, t_s)
            case WeightsActivated(policy=policy, pause_s=pause_s):
                if self._is_steady and "completed" in marks:
                    self._measure_update(marks, t_s, pause_s)
                self._version = policy.version
            case _:
                pass

    def _observe_standstill(self, payload: GenerationPaused | GenerationResumed, t_s: float) -> None:
        self.switch_s.append(payload.switch_s)
        if isinstance(payload, GenerationPaused):
            self._stops.append(_Standstill(t_s, self._stops[-1].lost_s if self._stops else 0.0))
        elif self._stops:
            self._stops[-1].end(t_s)

    @property
    def has_one_grader(self) -> bool:
        """Whether verdicts look as though one was made after the other: in order, and alike but for their wait in line."""
        return self._is_in_order and len(self.grade_s) > 1 and variance(self.grade_alone_s) < variance(self.grade_s)

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
        if self._is_steady:
            begin_s, end_s = self._running_s(t_s - turn.generate_s), self._running_s(t_s)
            self.turns.append(TurnSample(begin_s, end_s, turn.num_tokens, turn.compute))
        asked_s = t_s - turn.generate_s - turn.wait_s
        if key in self._last:
            gap_s = max(0.0, asked_s - self._last[key] - self._held.pop(key, 0.0))
            is_first = key in self._started
            self._started.discard(key)
            if self._is_steady and is_first:
                self.open_s.append(gap_s)
            elif self._is_steady:
                self.gaps.append((str(turn.episode.group), gap_s))
        self._last[key] = t_s

    def _running_s(self, t_s: float) -> float:
        """Seconds until then in which the engine ran: what shared devices gave to the trainer is left out."""
        index = bisect.bisect_right(self._stops, t_s, key=lambda stop: stop.from_s) - 1
        return self._stops[index].running_s(t_s) if index >= 0 else t_s

    def _seal(self, key: str, sealed: TranscriptSealed, t_s: float) -> None:
        episode = EpisodeId.parse(key)
        self._last.pop(key, None)
        self._held.pop(key, None)
        if sealed.sampled_tokens and self._is_steady and episode.group.purpose == Purpose.TRAIN.value:
            self.episodes.append(self._episode(episode, sealed))
            self.cpu_s += read_record(self._read, sealed.side, SideRecord).metering.cpu_s
        if sealed.terminal.startswith("infra_error"):
            self.unfinished += 1
        else:
            self._sealed[sealed.transcript] = t_s

    def _judge(self, transcript: Address, t_s: float) -> None:
        """The first verdict of a transcript: what it took, and what it took since the grader had done the one before."""
        if transcript in self._sealed:
            asked_s = self._sealed.pop(transcript)
            self._is_in_order &= asked_s >= self._last_asked_s
            self._last_asked_s = max(asked_s, self._last_asked_s)
            if self._is_steady:
                self.grade_s.append(t_s - asked_s)
                self.grade_alone_s.append(t_s - max(asked_s, self._judged_s))
        self._judged_s = t_s

    def _episode(self, episode: EpisodeId, sealed: TranscriptSealed) -> EpisodeSample:
        outline = read_outline(self._read, sealed.transcript)
        return EpisodeSample(
            group=str(episode.group),
            turns=outline.turn_tokens,
            prompt=outline.prompt_tokens,
            observations=outline.observation_tokens,
        )
