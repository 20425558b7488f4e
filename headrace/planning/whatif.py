"""The what-if planner: replays a fitted run, says how far the replay is off, then sweeps layouts and recommends one.

Invariant: a recommendation is never printed without the error of the replay of the run itself and the spread over seeds;
both bound how far a prediction may be believed.
It predicts scheduling from measured durations, not what other hardware would do.
"""

import concurrent.futures
import multiprocessing
import os
import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.config import Config
from headrace.planning.bottleneck import Demands, bottleneck_of, demands_of
from headrace.planning.fit import Fitted
from headrace.planning.outcome import Outcome, OutcomeFold
from headrace.runtime.simulated import Simulation, simulate
from headrace.simulation.costs import TrainerCost
from headrace.simulation.laws import Quantiles
from headrace.simulation.scenario import Scenario

REPLAY_SEEDS = (101, 102, 103, 104, 105)
_STUDENT = 2.776
"""97.5% quantile of Student's distribution with four degrees of freedom, one fewer than there are replays."""
SWEEP_SEEDS = (101, 102)
SWEEP_UPDATES = 16
_WITHIN = 0.02
"""Of the layouts within this of the best throughput, the one with the least lag is recommended."""


class Margins(msgspec.Struct, frozen=True):
    """Half widths of intervals, each in the unit of its figure.

    Attributes:
        groups_per_ks: of the throughput.
        trainer_idle: of the idle share.
        token_lag: of the token-weighted lag.
        oldest_lag: of the lag of the oldest token.
    """

    groups_per_ks: float
    trainer_idle: float
    token_lag: float
    oldest_lag: float


class Figures(msgspec.Struct, frozen=True):
    """The three figures that are compared.

    Attributes:
        groups_per_ks: groups trained per 1000 s, over the steady updates, as all here.
        trainer_idle: share of time in which the trainer had nothing to do.
        token_lag: token-weighted lag, updates.
        oldest_lag: lag of a group's oldest token, mean, updates.
        spread: largest deviation of one seed from the mean throughput, relative; 0 for a measurement.
    """

    groups_per_ks: float
    trainer_idle: float
    token_lag: float
    oldest_lag: float
    spread: float = 0.0


class Layout(msgspec.Struct, frozen=True):
    """One way to lay the run out.

    Attributes:
        name: for people.
        schedule: overrides of the run's schedule.
        slots: factor on the slots of the engine.
        engines: copies of the engine.
        trainers: trainers that share an update ideally.
    """

    name: str
    schedule: dict[str, Any]
    slots: float = 1.0
    engines: int = 1
    trainers: int = 1


class Prediction(msgspec.Struct, frozen=True):
    """What a layout would give.

    Attributes:
        layout: which.
        figures: mean over seeds.
        bottleneck: the resource that limits it.
        demands: seconds of each resource per update.
    """

    layout: Layout
    figures: Figures
    bottleneck: str
    demands: Demands


class Plan(msgspec.Struct, frozen=True):
    """Everything that the planner says about a run.

    Attributes:
        fitted: what was fitted.
        measured: the run's own figures.
        replayed: the same from the replay, mean over its seeds.
        plain: the run's own layout without its evaluations, as all predictions are.
        margins: half widths of the 95% prediction intervals of one run around them, by the spread over the seeds.
        bottleneck: of the run as it is.
        demands: of the run as it is.
        predictions: of every layout swept.
        recommended: the layout to use.
    """

    fitted: Fitted
    measured: Figures
    replayed: Figures
    plain: Figures
    margins: Margins
    bottleneck: str
    demands: Demands
    predictions: tuple[Prediction, ...]
    recommended: Prediction

    @property
    def replay_error(self) -> float:
        """Relative error of the replayed throughput."""
        return self.replayed.groups_per_ks / self.measured.groups_per_ks - 1.0

    @property
    def outside(self) -> tuple[str, ...]:
        """Names of the figures whose measured value chance in the draws does not explain: what the fit does not know."""
        return tuple(
            name
            for name in Margins.__struct_fields__
            if abs(getattr(self.measured, name) - getattr(self.replayed, name)) > getattr(self.margins, name)
        )


def plan_run(fitted: Fitted) -> Plan:
    """The plan of a fitted run; simulations run in one process per core."""
    workers = max(1, len(os.sched_getaffinity(0)))
    context = multiprocessing.get_context("spawn")
    layouts = sweep(fitted)
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        replays = [pool.submit(replay, fitted, seed) for seed in REPLAY_SEEDS]
        plain = [pool.submit(try_layout, fitted, Layout("as it is", {}), seed) for seed in SWEEP_SEEDS]
        tries = [[pool.submit(try_layout, fitted, layout, seed) for seed in SWEEP_SEEDS] for layout in layouts]
        replayed = [future.result() for future in replays]
        outcomes = [[future.result() for future in futures] for futures in tries]
        own = figures_of([future.result() for future in plain])
    predictions = [_prediction(fitted, layout, found) for layout, found in zip(layouts, outcomes, strict=True)]
    demands = demands_of(fitted.scenario, fitted.cpu_s_per_episode, fitted.cores)
    return Plan(
        fitted=fitted,
        measured=figures_of([fitted.measured]),
        replayed=figures_of(replayed),
        plain=own,
        margins=margins_of(replayed),
        bottleneck=bottleneck_of(demands, replayed[0], fitted.scenario),
        demands=demands,
        predictions=tuple(predictions),
        recommended=recommend(predictions),
    )


def replay(fitted: Fitted, seed: int) -> Outcome:
    """The run itself on simulated workers: its configuration, its evaluations, fitted laws."""
    run = msgspec.structs.replace(fitted.config.run, updates=fitted.updates)
    config = msgspec.structs.replace(fitted.config, run=run)
    return _simulate(config, fitted.scenario, seed, (fitted.updates, fitted.num_held_out))


def try_layout(fitted: Fitted, layout: Layout, seed: int) -> Outcome:
    """A layout on the fitted workload, without evaluations."""
    schedule = msgspec.structs.replace(fitted.config.schedule, **layout.schedule)
    quiet = msgspec.structs.replace(fitted.config.evaluation, every_updates=0)
    run = msgspec.structs.replace(fitted.config.run, updates=SWEEP_UPDATES + schedule.most_credit_batches)
    config = msgspec.structs.replace(fitted.config, schedule=schedule, evaluation=quiet, run=run)
    return _simulate(config, scenario_of(fitted.scenario, layout), seed, (SWEEP_UPDATES, 0))


def sweep(fitted: Fitted) -> list[Layout]:
    """The layouts to try: mode and credit, then slots, engines and trainers in both modes."""
    step = {"mode": "sync", "credit_batches": 0, "staleness": "pace"}

    def ahead(credit: int, mode: str = "separate_async") -> dict[str, Any]:
        return {"mode": mode, "credit_batches": credit, "staleness": "pace", "order": "ready"}

    return [
        Layout("sync", step),
        *(Layout(f"separate_async, credit {credit}", ahead(credit)) for credit in (1, 2, 4, 8)),
        *(Layout(f"colocate_async, credit {credit}", ahead(credit, "colocate_async")) for credit in (1, 2)),
        Layout("sync, half the slots", step, slots=0.5),
        Layout("sync, twice the slots", step, slots=2.0),
        Layout("separate_async, credit 2, half the slots", ahead(2), slots=0.5),
        Layout("separate_async, credit 2, twice the slots", ahead(2), slots=2.0),
        Layout("separate_async, credit 2, 2 engines", ahead(2), engines=2),
        Layout("separate_async, credit 2, 2 trainers", ahead(2), trainers=2),
    ]


def scenario_of(scenario: Scenario, layout: Layout) -> Scenario:
    """The scenario under a layout. More slots than the run had go on at the rate of the last measured level.

    Devices are shared in `colocate_async` alone, whatever they were in the run.
    """
    engine, trainer = scenario.engine, scenario.trainer
    slots = max(1, round(engine.slots * layout.slots)) * layout.engines
    decode = tuple((active * layout.engines, rate * layout.engines) for active, rate in engine.decode)
    return msgspec.structs.replace(
        scenario,
        placement="separate",
        engine=msgspec.structs.replace(engine, slots=slots, decode=decode),
        trainer=_share(trainer, layout.trainers),
    )


def recommend(predictions: Sequence[Prediction]) -> Prediction:
    """Of the layouts on the resources that the run had, the fastest; nearly equal ones by lag, then by credit."""
    own = [p for p in predictions if p.layout.engines == p.layout.trainers == 1]
    best = max(p.figures.groups_per_ks for p in own)
    near = [p for p in own if p.figures.groups_per_ks >= (1.0 - _WITHIN) * best]
    return min(near, key=lambda p: (round(p.figures.token_lag, 2), p.layout.schedule["credit_batches"], p.layout.slots))


def figures_of(outcomes: Sequence[Outcome]) -> Figures:
    """Means, with the spread of the throughput."""
    rates = [outcome.steady_groups_per_ks for outcome in outcomes]
    mean = statistics.fmean(rates)
    return Figures(
        groups_per_ks=mean,
        trainer_idle=statistics.fmean(outcome.steady_trainer_idle for outcome in outcomes),
        token_lag=statistics.fmean(outcome.lags.token_mean for outcome in outcomes),
        oldest_lag=statistics.fmean(outcome.lags.oldest_mean for outcome in outcomes),
        spread=max(abs(rate - mean) for rate in rates) / mean,
    )


def margins_of(outcomes: Sequence[Outcome]) -> Margins:
    """Half widths of the 95% prediction intervals of one more run: t s sqrt(1 + 1/n), s their standard deviation.

    Args:
        outcomes: as many as there are replay seeds.
    """
    assert len(outcomes) == len(REPLAY_SEEDS)
    figures = [figures_of([outcome]) for outcome in outcomes]
    scale = _STUDENT * (1.0 + 1.0 / len(figures)) ** 0.5
    return Margins(
        *(scale * statistics.stdev(getattr(figure, name) for figure in figures) for name in Margins.__struct_fields__)
    )


def _prediction(fitted: Fitted, layout: Layout, outcomes: Sequence[Outcome]) -> Prediction:
    scenario = scenario_of(fitted.scenario, layout)
    demands = demands_of(scenario, fitted.cpu_s_per_episode, fitted.cores)
    return Prediction(layout, figures_of(outcomes), bottleneck_of(demands, outcomes[0], scenario), demands)


def _simulate(config: Config, scenario: Scenario, seed: int, sizes: tuple[int, int]) -> Outcome:
    """The outcome of the first so many updates, with so many held-out tasks."""
    fold = OutcomeFold(sizes[0])
    config = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, seed=seed))
    simulation = Simulation(config, scenario, is_checked=False, keeps_log=False, num_held_out=sizes[1])
    result = simulate(simulation, observers=[fold.observe])
    return fold.outcome(result.slot_seconds)


def _share(trainer: TrainerCost, trainers: int) -> TrainerCost:
    def scaled(law: Any) -> Any:
        if isinstance(law, Quantiles):
            return Quantiles(points=tuple((probability, value / trainers) for probability, value in law.points))
        return type(law)(value=law.value / trainers)

    if trainers == 1:
        return trainer
    return msgspec.structs.replace(trainer, update_s=scaled(trainer.update_s), score_s=scaled(trainer.score_s))
