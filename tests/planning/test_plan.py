"""`headrace plan`: a fit gives back the laws that made a log, a replay gives back its figures, and a plan says how far."""

import msgspec
import numpy as np
import pytest

from headrace.config import decode_config
from headrace.errors import ConfigError
from headrace.planning.bottleneck import bottleneck_of, demands_of
from headrace.planning.decode_rate import TurnSample, decode_points, engine_rates
from headrace.planning.fit import Fitted, fit_events, fit_run, law_of, steps_of
from headrace.planning.plan_text import render_plan
from headrace.planning.whatif import (
    REPLAY_SEEDS,
    Figures,
    Layout,
    Plan,
    Prediction,
    figures_of,
    margins_of,
    recommend,
    replay,
    scenario_of,
    sweep,
)
from headrace.records.segment import TurnCompute
from headrace.runtime.simulated import SimulatedDisk, Simulation, simulate
from headrace.simulation.laws import Quantiles
from headrace.simulation.scenario import Scenario, load_scenario
from headrace.store.memory import MemoryJournal

SCHEDULES = {
    "sync": {"mode": "sync", "credit_batches": 0},
    "asynchronous": {"mode": "separate_async", "credit_batches": 1},
    "taking turns": {"mode": "colocate_async", "credit_batches": 1},
}


def known() -> Scenario:
    """A multi-turn scenario whose laws are known, without failures."""
    base = load_scenario("small_mixed")
    names = ("malformed", "tool_error", "open_failure", "tool_failure", "grade_failure", "grade_invalid", "claim_error")
    strata = tuple(msgspec.structs.replace(s, scale=2.0 if s.name == "hard" else 1.0) for s in base.workload.strata)
    workload = msgspec.structs.replace(base.workload, **dict.fromkeys(names, 0.0), strata=strata)
    engine = msgspec.structs.replace(base.engine, turn_start_s=0.05)
    trainer = msgspec.structs.replace(base.trainer, update_s_per_token=0.0)
    return msgspec.structs.replace(base, workload=workload, engine=engine, trainer=trainer)


def fitted(mode: str, seed: int = 3) -> Fitted:
    """A run of the known scenario, fitted from its log alone."""
    scenario = known()
    tree = {
        "run": {"seed": seed, "updates": 36},
        "schedule": {"group_size": 4, "batch_groups": 4, **SCHEDULES[mode]},
        "evaluation": {"every_updates": 0},
        "checkpoint": {"every_updates": 0},
        "inference": {"kind": "embedded", "options": {"slots": scenario.engine.slots}},
    }
    disk = SimulatedDisk()
    simulate(Simulation(decode_config(tree, "known"), scenario, is_checked=False), disk=disk)
    journal = MemoryJournal(disk.storage)
    return fit_events(journal.events, journal.read, "known")


@pytest.fixture(scope="module")
def runs() -> dict[str, Fitted]:
    return {mode: fitted(mode) for mode in SCHEDULES}


def full_rate(scenario: Scenario) -> float:
    """Tokens per second with every slot running."""
    return scenario.engine.request_rates()[-1] * scenario.engine.slots


def test_what_shared_devices_gave_to_the_trainer_is_no_decoding(runs: dict[str, Fitted]) -> None:
    assert full_rate(runs["taking turns"].scenario) == pytest.approx(400.0, rel=0.1)


def test_a_fit_gives_back_the_laws_that_made_the_log(runs: dict[str, Fitted]) -> None:
    truth, found = known(), runs["sync"].scenario
    assert found.trainer.update_s.mean == pytest.approx(truth.trainer.update_s.mean, rel=0.02)
    assert found.trainer.canary_s == pytest.approx(truth.trainer.canary_s, abs=0.01)
    assert found.engine.stage_s.mean == pytest.approx(truth.engine.stage_s.mean, rel=0.02)
    assert found.engine.swap_pause_s == pytest.approx(truth.engine.swap_pause_s, abs=0.01)
    assert found.workload.turns.mean == pytest.approx(2.3, abs=0.3)
    assert full_rate(found) == pytest.approx(400.0, rel=0.1)
    scales = {stratum.name: stratum.scale for stratum in found.workload.strata}
    assert scales["hard"] / scales["easy"] == pytest.approx(2.0, rel=0.2)


@pytest.mark.parametrize("mode", list(SCHEDULES))
def test_the_replay_of_a_run_is_within_a_tenth_of_it(runs: dict[str, Fitted], mode: str) -> None:
    run = runs[mode]
    measured, replayed = figures_of([run.measured]), figures_of([replay(run, seed) for seed in (11, 12, 13)])
    assert replayed.groups_per_ks == pytest.approx(measured.groups_per_ks, rel=0.1)
    assert replayed.trainer_idle == pytest.approx(measured.trainer_idle, abs=0.1)
    assert replayed.token_lag == pytest.approx(measured.token_lag, abs=0.25)


def test_the_decode_rate_is_the_tokens_of_each_number_of_running_turns() -> None:
    points = decode_points([TurnSample(0.0, 1.0, 10, None), TurnSample(0.0, 2.0, 10, None)])
    assert points == [(1, pytest.approx(5.0)), (2, pytest.approx(15.0))]
    capped = decode_points([TurnSample(0.0, 1.0, 10, None)] * 3, slots=2)
    assert capped == [(2, pytest.approx(30.0))]


def test_prefill_has_a_rate_of_its_own_and_is_no_time_of_decoding() -> None:
    turns = [TurnSample(0.0, 2.0, 10, TurnCompute(tokens, 0.1 + tokens / 100, 0.5)) for tokens in (10, 20, 30)]
    rates = engine_rates(turns)
    assert (rates.prefill_tokens_per_s, rates.turn_start_s) == (pytest.approx(100.0), pytest.approx(0.1))
    assert rates.decode == [(3, pytest.approx(30 / (2.0 - 0.9)))]
    unknown = engine_rates([*turns, TurnSample(0.0, 2.0, 10, None)])
    assert unknown == ([(4, pytest.approx(40 / 2.0))], None, 0.0)


def test_a_fitted_law_keeps_the_mean_and_the_order_of_what_it_was_made_of() -> None:
    values = np.random.Generator(np.random.Philox(5)).lognormal(1.0, 1.0, 500)
    law = law_of(values.tolist())
    assert isinstance(law, Quantiles)
    assert law.mean == pytest.approx(float(values.mean()), rel=1e-9)
    assert law.at(1.0) > law.at(0.0) > law.at(-1.0)
    steps = steps_of([1] * 60 + [2] * 30 + [4] * 10)
    drawn = [round(steps.at(z)) for z in np.random.Generator(np.random.Philox(6)).standard_normal(4000)]
    assert {n: drawn.count(n) / 4000 for n in (1, 2, 4)} == pytest.approx({1: 0.6, 2: 0.3, 4: 0.1}, abs=0.03)
    assert set(drawn) == {1, 2, 4}


def test_a_bottleneck_is_the_resource_that_one_update_keeps_busy(runs: dict[str, Fitted]) -> None:
    run = runs["asynchronous"]
    slow = msgspec.structs.replace(
        run.scenario,
        trainer=msgspec.convert({"update_s": {"law": "constant", "value": 99.0}}, type(run.scenario.trainer)),
    )
    demands = demands_of(slow, None, None)
    outcome = msgspec.structs.replace(run.measured, steady_groups_per_ks=1e3 * 4 / 100.0)
    assert bottleneck_of(demands, outcome, slow).startswith("trainer: 99%")
    publishes = msgspec.structs.replace(run.measured, steady_groups_per_ks=1e3 * 4 / 150.0, steady_trainer_idle=0.0)
    assert bottleneck_of(demands, publishes, slow).startswith("trainer: never idle (66% of")
    idle = msgspec.structs.replace(run.measured, steady_groups_per_ks=1e3 * 4 / 1000.0)
    assert bottleneck_of(demands, idle, slow).startswith("no resource is full (trainer 10%)")


def test_an_external_service_s_rate_limit_bounds_throughput_and_is_named_as_the_bottleneck() -> None:
    free = known()
    calls = free.group_size * (free.workload.turns.mean - 1.0)
    limited = msgspec.structs.replace(free, external_calls_per_s=0.25 * free.fluid_groups_per_s * calls)
    assert limited.fluid_groups_per_s == pytest.approx(0.25 * free.fluid_groups_per_s)
    assert next(iter(demands_of(limited, None, None).table())) == "external service"
    schedule = {"group_size": limited.group_size, "batch_groups": limited.batch_groups, **SCHEDULES["asynchronous"]}
    tree = {"run": {"updates": 9}, "schedule": schedule, "evaluation": {"every_updates": 0}}
    disk = SimulatedDisk()
    simulate(Simulation(decode_config(tree, "limited"), limited, is_checked=False), disk=disk)
    journal = MemoryJournal(disk.storage)
    found = fit_events(journal.events, journal.read, "limited")
    assert 0.8 < found.measured.steady_groups_per_ks / (1e3 * limited.fluid_groups_per_s) < 1.15
    assert found.scenario.external_calls_per_s == limited.external_calls_per_s
    assert found.scenario.workload.tool_s.mean < 2 * free.workload.tool_s.mean, (
        "the queue is not part of the tools' time"
    )
    assert bottleneck_of(demands_of(found.scenario, None, None), found.measured, found.scenario).startswith(
        "external service"
    )


def test_more_engines_and_trainers_scale_what_they_are(runs: dict[str, Fitted]) -> None:
    run = runs["sync"].scenario
    twice = scenario_of(run, Layout("x", {}, engines=2, trainers=2))
    assert twice.engine.slots == 2 * run.engine.slots
    assert demands_of(twice, None, None).decode == pytest.approx(demands_of(run, None, None).decode / 2, rel=1e-6)
    assert twice.trainer.update_s.mean == pytest.approx(run.trainer.update_s.mean / 2, rel=1e-6)


def test_of_nearly_equal_layouts_the_one_with_the_least_lag_is_recommended_and_never_more_devices(
    runs: dict[str, Fitted],
) -> None:
    demands = demands_of(runs["sync"].scenario, None, None)
    tried = {
        "deep": (Layout("deep", {"credit_batches": 8}), 100.0, 6.0),
        "shallow": (Layout("shallow", {"credit_batches": 2}), 99.0, 1.8),
        "waiting": (Layout("waiting", {"credit_batches": 0}), 60.0, 0.0),
        "rich": (Layout("rich", {"credit_batches": 2}, engines=2), 200.0, 1.0),
    }
    predictions = [
        Prediction(layout, Figures(rate, 0.1, lag, lag), "", demands) for layout, rate, lag in tried.values()
    ]
    assert recommend(predictions).layout.name == "shallow"


def test_a_plan_never_goes_without_its_error_and_says_what_it_cannot_try(runs: dict[str, Fitted]) -> None:
    run = runs["sync"]
    demands = demands_of(run.scenario, None, None)
    measured = figures_of([run.measured])
    predictions = [Prediction(layout, measured, "trainer", demands) for layout in sweep(run)]
    margins = margins_of([run.measured] * len(REPLAY_SEEDS))
    plan = Plan(
        run, measured, measured, measured, margins, "trainer", demands, tuple(predictions), recommend(predictions)
    )
    text = render_plan(plan)
    assert "Believe it to about +-0%" in text
    assert "colocate_async is counted without the cost of switching" in text
    assert "predicted" in text
    assert "measured" in text
    assert "in every figure" in text
    off = msgspec.structs.replace(plan, measured=msgspec.structs.replace(measured, token_lag=3.0))
    assert "do not explain the difference in token lag:" in render_plan(off)


def test_a_margin_is_the_prediction_interval_of_one_more_run(runs: dict[str, Fitted]) -> None:
    rates = (1.0, 2.0, 3.0, 4.0, 5.0)
    margins = margins_of([msgspec.structs.replace(runs["sync"].measured, steady_groups_per_ks=rate) for rate in rates])
    # The deviation of 1 to 5 is 1.5811; the 97.5% quantile of Student's t with 4 degrees is 2.776.
    assert margins.groups_per_ks == pytest.approx(2.776 * 1.5811 * 1.2**0.5, rel=1e-4)
    assert margins.trainer_idle == margins.token_lag == 0.0


def test_a_folder_without_a_journal_is_refused_with_what_to_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(ConfigError, match=r"holds no journal\.db"):
        fit_run(tmp_path_factory.mktemp("empty"))
