"""A workload and costs fitted from a run's own event log.

Invariant: everything in the fitted scenario is a quantile, a mean or a count of what the log says; nothing is assumed that a
note does not name.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from headrace.config import Config
from headrace.errors import ConfigError
from headrace.planning.decode_rate import engine_rates
from headrace.planning.outcome import Outcome, OutcomeFold, steady_from
from headrace.planning.samples import EpisodeSample, Samples
from headrace.records.events import Event
from headrace.records.provenance import Read
from headrace.records.update import UpdateCompleted
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
    samples, outcome = Samples(read, first), OutcomeFold(updates, first)
    for event in events():
        samples.observe(event)
        outcome.observe(event)
    if samples.config is None or len(samples.episodes) < _LEAST_EPISODES or not samples.update_s:
        raise ConfigError(
            f"{name}: {len(samples.episodes)} finished episodes and {len(samples.update_s)} updates; a fit needs a "
            f"configuration, {_LEAST_EPISODES} episodes and 1 update"
        )
    schedule = samples.config.schedule
    scenario = Scenario(
        workload=_workload(samples, name),
        engine=_engine(samples),
        trainer=_trainer(samples),
        group_size=schedule.group_size,
        batch_groups=schedule.batch_groups,
        updates=samples.config.run.updates,
        external_calls_per_s=samples.config.environment.calls_per_s,
        grader_slots=1 if samples.has_one_grader else None,
        placement="shared" if samples.switch_s else "separate",
        switch_s=float(np.mean(samples.switch_s)) if samples.switch_s else 0.0,
    )
    return Fitted(
        name=name,
        scenario=scenario,
        config=samples.config,
        measured=outcome.outcome(),
        updates=updates,
        num_held_out=samples.num_held_out,
        cores=samples.cores,
        cpu_s_per_episode=samples.cpu_s / len(samples.episodes) if samples.cpu_s else None,
        notes=_notes(samples),
    )


def _workload(samples: Samples, name: str) -> Workload:
    is_by_turn = _grows_with_turns(samples.episodes)
    scales, strata = _strata(samples, is_by_turn)
    difficulty = samples.difficulty
    lengths = [(e.group, n) for e in samples.episodes for n in (e.turns if is_by_turn else (e.tokens,))]
    scaled = [tokens / scales[difficulty[group]] for group, tokens in lengths]
    gaps = [gap_s / scales[difficulty[group]] for group, gap_s in samples.gaps if group in difficulty]
    observations = [count for episode in samples.episodes for count in episode.observations]
    return Workload(
        name=name,
        source=f"fitted from the event log of {name}: {len(samples.episodes)} episodes, {len(samples.update_s)} updates",
        strata=strata,
        tokens=law_of(scaled),
        tokens_of="turn" if is_by_turn else "episode",
        group_correlation=_correlation(scaled, [group for group, _ in lengths]),
        prompt_tokens=law_of([episode.prompt for episode in samples.episodes]),
        turns=steps_of([len(episode.turns) for episode in samples.episodes]),
        observation_tokens=law_of(observations),
        tool_s=law_of(gaps),
        open_s=law_of(samples.open_s),
        grade_s=law_of(samples.grade_alone_s if samples.has_one_grader else samples.grade_s),
    )


def _grows_with_turns(episodes: Sequence[EpisodeSample]) -> bool:
    """Whether an episode's tokens follow its turns, so that a length belongs to a turn rather than to the episode."""
    turns = np.array([len(episode.turns) for episode in episodes], dtype=float)
    tokens = np.array([episode.tokens for episode in episodes], dtype=float)
    if turns.std() == 0.0 or tokens.std() == 0.0:
        return False
    return bool(np.corrcoef(turns, tokens)[0, 1] > _FOLLOWS)


def _strata(samples: Samples, is_by_turn: bool) -> tuple[dict[str, float], tuple[Stratum, ...]]:
    """Scale of each difficulty, relative to the mean turn or episode, and the strata."""
    tokens: dict[str, list[int]] = defaultdict(list)
    solved: dict[str, list[float]] = defaultdict(list)
    for episode in samples.episodes:
        tokens[samples.difficulty[episode.group]] += episode.turns if is_by_turn else (episode.tokens,)
    assert samples.config is not None
    for group, rewards in samples.rewards.items():
        if group in samples.difficulty:
            solved[samples.difficulty[group]] += [float(r >= samples.config.evaluation.success_bound) for r in rewards]
    groups = Counter(samples.difficulty.values())
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


def _engine(samples: Samples) -> EngineCost:
    assert samples.config is not None
    slots = samples.config.inference.options.get("slots")
    rates = engine_rates(samples.turns, slots if isinstance(slots, int) else None)
    return EngineCost(
        slots=slots if isinstance(slots, int) else rates.decode[-1][0],
        decode=tuple(rates.decode),
        prefill_tokens_per_s=rates.prefill_tokens_per_s,
        turn_start_s=rates.turn_start_s,
        swap_pause_s=float(np.mean(samples.pause_s)),
        stage_s=law_of(samples.load_s),
    )


def _trainer(samples: Samples) -> TrainerCost:
    return TrainerCost(
        update_s=law_of(samples.update_s), score_s=law_of(samples.score_s), canary_s=float(np.mean(samples.canary_s))
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


def _notes(samples: Samples) -> tuple[str, ...]:
    notes: list[str] = []
    if any(turn.compute is None for turn in samples.turns):
        notes.append("prefill is part of the decode rate: the engine does not tell them apart")
    if samples.unfinished:
        notes.append(f"{samples.unfinished} episodes that a boundary failed are left out: the fit has no failures")
    if not samples.cpu_s:
        notes.append("no environment CPU was metered")
    if len(samples.update_s) < 10:
        notes.append(f"only {len(samples.update_s)} updates: a mean of so few durations is uncertain")
    return tuple(notes)
