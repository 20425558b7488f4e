"""What tasks, policy, environment and grader would do, drawn in advance.

Invariant: every draw is a pure function of (seed, task, episode, step), by named streams. So two policies of scheduling
see the same workload, whatever order they run it in, and a second attempt draws anew.

The lengths within a group correlate: the score of a turn is sqrt(c) * (prompt effect) + sqrt(1 - c) * (sample noise).
"""

import bisect
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from headrace.config import Section
from headrace.records.ids import EpisodeId
from headrace.records.streams import Streams
from headrace.simulation.laws import Constant, Law, drawn, score_of, upper_tail

HELD_OUT = 1 << 30
"""Indices of held-out tasks start here, those of training tasks at 0."""

_CACHED_DRAWS = 1 << 15
_CENTRE = (0.0, 0.0, 0.0)
"""Scores that stand for a draw whose laws have one value."""
_CERTAIN = (1.0, 1.0, 1.0)
"""Uniform numbers that no probability lies above."""
_PROBABILITIES = (
    "group_correlation",
    "malformed",
    "tool_error",
    "open_failure",
    "tool_failure",
    "grade_failure",
    "grade_invalid",
    "verdict_flip",
    "claim_error",
)


class Stratum(Section, frozen=True):
    """Tasks of one difficulty.

    Attributes:
        name: difficulty of its tasks.
        share: fraction of tasks, > 0.
        scale: multiplies tokens and tool latency, > 0.
        success: probability that an answered episode is solved.
    """

    name: str
    share: float = 1.0
    scale: float = 1.0
    success: float = 0.5


class Workload(Section, frozen=True):
    """Laws of everything that a run meets and does not decide.

    Attributes:
        name: family of its tasks.
        source: where the figures come from, for people.
        strata: shares sum to 1.
        tokens: policy tokens of a turn or of an episode, before the stratum's scale. Any real number: an engine at one
            token per second and slot makes them seconds, exactly.
        tokens_of: what `tokens` is the length of; an episode's are spread evenly over its turns.
        trace: tokens of the n-th task, scale included, in place of the law; after the last it begins again. Empty draws.
        mix_block: in every so many tasks in a row the shares hold as exactly as whole tasks allow, in random order; None
            draws the stratum of each task by itself, so that a run's mix differs from the stated one by chance.
        group_correlation: correlation of the length scores of two members of a group.
        prompt_tokens: length of the prompt.
        turns: policy turns, rounded, at least 1; all but the last call one tool.
        observation_tokens: length of what a tool returns.
        tool_s: seconds of one tool call, before the stratum's scale.
        tool_cpu_share: CPU seconds per second of a tool call.
        open_s: seconds to open an environment.
        grade_s: seconds to grade one episode.
        success_spread: standard deviation between tasks of the probit of success; the stratum's mean is kept.
        malformed: probability that a turn cannot be parsed.
        tool_error: probability that a tool raises, which the policy sees.
        open_failure: probability that an environment cannot be created.
        tool_failure: probability that the answer to a tool call is lost although the tool ran.
        grade_failure: probability that one grading delivers nothing.
        grade_invalid: probability that one grading delivers something unusable.
        verdict_flip: probability that one grading is wrong.
        claim_error: probability that the environment's claim is wrong.
    """

    name: str
    strata: tuple[Stratum, ...]
    tokens: Law
    source: str = ""
    tokens_of: Literal["turn", "episode"] = "turn"
    trace: tuple[float, ...] = ()
    mix_block: int | None = None
    group_correlation: float = 0.5
    prompt_tokens: Law = Constant(value=32.0)
    turns: Law = Constant(value=1.0)
    observation_tokens: Law = Constant(value=16.0)
    tool_s: Law = Constant(value=0.0)
    tool_cpu_share: float = 1.0
    open_s: Law = Constant(value=0.0)
    grade_s: Law = Constant(value=0.0)
    success_spread: float = 0.0
    malformed: float = 0.0
    tool_error: float = 0.0
    open_failure: float = 0.0
    tool_failure: float = 0.0
    grade_failure: float = 0.0
    grade_invalid: float = 0.0
    verdict_flip: float = 0.0
    claim_error: float = 0.0

    def __post_init__(self) -> None:
        total = math.fsum(stratum.share for stratum in self.strata)
        if not math.isclose(total, 1.0, abs_tol=1e-9):
            raise ValueError(f"workload {self.name}: shares of strata sum to {total}; they must sum to 1")
        if len({stratum.name for stratum in self.strata}) != len(self.strata):
            raise ValueError(f"workload {self.name}: two strata have the same name")
        for stratum in self.strata:
            if not (stratum.share > 0.0 and stratum.scale > 0.0 and 0.0 <= stratum.success <= 1.0):
                raise ValueError(f"workload {self.name}: {stratum}: share and scale > 0, success in [0, 1]")
        for name in _PROBABILITIES:
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"workload {self.name}: {name} is {getattr(self, name)}; it must lie in [0, 1]")
        if self.mix_block is not None and self.mix_block < 1:
            raise ValueError(f"workload {self.name}: mix_block is {self.mix_block}; it must be at least 1 or absent")
        if self.tool_cpu_share < 0.0 or self.success_spread < 0.0:
            raise ValueError(f"workload {self.name}: tool_cpu_share and success_spread must be >= 0")

    @property
    def mean_tokens(self) -> float:
        """Expected value of `tokens` over all strata."""
        return self.tokens.mean * math.fsum(stratum.share * stratum.scale for stratum in self.strata)


class TaskDraw(msgspec.Struct, frozen=True):
    """What is fixed by the task.

    Attributes:
        stratum: its difficulty.
        prompt_tokens: length of its prompt, >= 1.
        length_score: the prompt effect on lengths, standard normal; 0 where no length depends on it.
        success: probability that an answered episode of it is solved.
    """

    stratum: Stratum
    prompt_tokens: int
    length_score: float
    success: float


class EpisodeDraw(msgspec.Struct, frozen=True):
    """What is fixed by the attempt.

    Attributes:
        num_turns: policy turns, >= 1.
        tokens: tokens of the whole episode where the workload says so, else NaN.
        open_s: seconds to open its environment.
        fails_to_open: its environment cannot be created.
        is_solved: it is solved if it is answered.
        is_claimed: its environment says so.
    """

    num_turns: int
    tokens: float
    open_s: float
    fails_to_open: bool
    is_solved: bool
    is_claimed: bool


class StepDraw(msgspec.Struct, frozen=True):
    """What is fixed by the turn.

    Attributes:
        tokens: length of the turn, a real number > 0; the engine samples as many whole tokens as hold it.
        is_malformed: the turn cannot be parsed.
        tool_s: seconds of the tool call.
        raises: the tool raises.
        is_answer_lost: the answer of the tool call is lost.
        observation_tokens: length of what the tool returns.
    """

    tokens: float
    is_malformed: bool
    tool_s: float
    raises: bool
    is_answer_lost: bool
    observation_tokens: int


class GradingDraw(msgspec.Struct, frozen=True):
    """What is fixed by one grading of an attempt.

    Attributes:
        grade_s: seconds it takes.
        fails: nothing is delivered.
        is_invalid: what is delivered is unusable.
        is_flipped: the verdict is wrong.
    """

    grade_s: float
    fails: bool
    is_invalid: bool
    is_flipped: bool


class Draws:
    """The workload under one seed: what each task, attempt, turn and grading would do.

    What can come out in one way only is not drawn; each draw has a stream of its own, so no other draw notices.
    """

    def __init__(self, workload: Workload, seed: int) -> None:
        self.workload = workload
        self.seed = seed
        self._streams = Streams(seed)
        self._shares = list(itertools.accumulate(stratum.share for stratum in workload.strata))
        spread = math.sqrt(1.0 + workload.success_spread**2)
        self._bounds = {stratum.name: score_of(stratum.success) * spread for stratum in workload.strata}
        has_given_lengths = bool(workload.trace) or isinstance(workload.tokens, Constant)
        self._draws_tasks = not (
            len(workload.strata) == 1
            and has_given_lengths
            and isinstance(workload.prompt_tokens, Constant)
            and workload.success_spread == 0.0
        )
        self._draws_steps = not (
            (has_given_lengths or workload.tokens_of == "episode")
            and isinstance(workload.tool_s, Constant)
            and isinstance(workload.observation_tokens, Constant)
            and workload.malformed == workload.tool_error == workload.tool_failure == 0.0
        )
        self._draws_gradings = not (
            isinstance(workload.grade_s, Constant)
            and workload.grade_failure == workload.grade_invalid == workload.verdict_flip == 0.0
        )
        self._only_task = self._task_of(0.0, _CENTRE)
        self._only_grading = self._grading_of(_CERTAIN, 0.0)
        self._ranks = functools.lru_cache(64)(self._block_ranks)
        self.task = functools.lru_cache(_CACHED_DRAWS)(self._task)
        self.episode = functools.lru_cache(_CACHED_DRAWS)(self._episode)
        self.step = functools.lru_cache(_CACHED_DRAWS)(self._step)

    def _block_ranks(self, block: int, size: int) -> list[int]:
        """A random order of the tasks of a block."""
        return self._streams.at("workload", "mix", block).permutation(size).tolist()

    def _task(self, index: int) -> TaskDraw:
        """What is fixed by the task at an index."""
        if not self._draws_tasks:
            return self._only_task
        size = self.workload.mix_block
        # Before the task's own stream is set: there is one generator.
        rank = None if size is None else self._ranks(index // size, size)[index % size]
        generator = self._streams.at("workload", "task", index)
        place = float(generator.random())
        if rank is not None and size is not None:
            place = (rank + place) / size
        return self._task_of(place, generator.standard_normal(3).tolist())

    def _task_of(self, place: float, scores: Sequence[float]) -> TaskDraw:
        """The task at a place in [0, 1) among the strata, with its scores for prompt, lengths and success."""
        workload, (prompt_score, length_score, ability) = self.workload, scores
        position = bisect.bisect_right(self._shares, place * self._shares[-1])
        stratum = workload.strata[min(position, len(workload.strata) - 1)]
        # E[Phi(a + s X)] = Phi(a / sqrt(1 + s^2)) for standard normal X, so the mean stays the stratum's.
        bound = self._bounds[stratum.name] + workload.success_spread * ability
        return TaskDraw(
            stratum=stratum,
            prompt_tokens=max(1, round(workload.prompt_tokens.at(prompt_score))),
            length_score=length_score,
            success=upper_tail(-bound),
        )

    def _episode(self, index: int, episode: EpisodeId) -> EpisodeDraw:
        """What is fixed by an attempt at the task of an index."""
        # The task first: its own draw may set the shared generator elsewhere.
        workload, task = self.workload, self.task(index)
        generator = self._streams.at("workload", "episode", index, str(episode))
        turns_score, open_score, length_noise = generator.standard_normal(3).tolist()
        failure, success, claim = generator.random(3).tolist()
        is_solved = success < task.success
        tokens = math.nan
        if workload.tokens_of == "episode":
            tokens = self._tokens(index, task, length_noise)
        return EpisodeDraw(
            num_turns=max(1, round(workload.turns.at(turns_score))),
            tokens=tokens,
            open_s=workload.open_s.at(open_score),
            fails_to_open=failure < workload.open_failure,
            is_solved=is_solved,
            is_claimed=is_solved != (claim < workload.claim_error),
        )

    def _step(self, index: int, episode: EpisodeId, step: int) -> StepDraw:
        """What is fixed by a turn of an attempt at the task of an index."""
        workload, task = self.workload, self.task(index)
        (length_noise, tool_score, observation_score), (malformed, error, lost) = _CENTRE, _CERTAIN
        if self._draws_steps:
            generator = self._streams.at("workload", "step", index, str(episode), step)
            length_noise, tool_score, observation_score = generator.standard_normal(3).tolist()
            malformed, error, lost = generator.random(3).tolist()
        if workload.tokens_of == "episode":
            draw = self.episode(index, episode)
            tokens = draw.tokens / draw.num_turns
        else:
            tokens = self._tokens(index, task, length_noise)
        return StepDraw(
            tokens=max(tokens, 1e-6),
            is_malformed=malformed < workload.malformed,
            tool_s=workload.tool_s.at(tool_score) * task.stratum.scale,
            raises=error < workload.tool_error,
            is_answer_lost=lost < workload.tool_failure,
            observation_tokens=max(1, round(workload.observation_tokens.at(observation_score))),
        )

    def grading(self, index: int, episode: EpisodeId, try_number: int) -> GradingDraw:
        """What is fixed by the n-th grading, from 0, of an attempt at the task of an index."""
        if not self._draws_gradings:
            return self._only_grading
        generator = self._streams.at("workload", "grading", index, str(episode), try_number)
        return self._grading_of(generator.random(3).tolist(), float(generator.standard_normal()))

    def _grading_of(self, chances: Sequence[float], score: float) -> GradingDraw:
        """The grading of uniform numbers, for failure, invalid verdict and flip, and of the score of its time."""
        workload, (failure, invalid, flip) = self.workload, chances
        return GradingDraw(
            grade_s=workload.grade_s.at(score),
            fails=failure < workload.grade_failure,
            is_invalid=invalid < workload.grade_invalid,
            is_flipped=flip < workload.verdict_flip,
        )

    def drawn(self, law: Law, *names: str | int) -> float:
        """The value of somebody else's law, at the first number of a stream that they name."""
        return drawn(law, self._streams, *names)

    def _tokens(self, index: int, task: TaskDraw, noise: float) -> float:
        workload = self.workload
        if workload.trace:
            return workload.trace[index % HELD_OUT % len(workload.trace)]
        return workload.tokens.at(self._correlated(task, noise)) * task.stratum.scale

    def _correlated(self, task: TaskDraw, noise: float) -> float:
        shared = self.workload.group_correlation
        return math.sqrt(shared) * task.length_score + math.sqrt(1.0 - shared) * noise
