"""Worked examples of lag, admission, selection and bounds."""

import pytest
from planning.traces import oracle, run_trace, trace_scenario

from headrace.planning import bounds
from headrace.planning.outcome import outcome_of
from headrace.records.batch import BatchPlanned
from headrace.scheduling.admission import Admission, AdmissionState
from headrace.scheduling.cutoff import Cutoff
from headrace.scheduling.staleness import Sampled, lag_of


def test_span_and_lag_are_two_figures_and_lag_has_three() -> None:
    case = oracle("staleness")["spans"]
    segments, expected = case["inputs"]["segments"], case["expected"]
    lag = lag_of([Sampled(tuple(map(tuple, segments)))], case["inputs"]["trainer_version"])
    assert (lag.oldest, lag.newest) == (expected["staleness_oldest"], expected["staleness_newest"])
    assert lag.mean == pytest.approx(expected["token_weighted_mean_lag"], abs=1e-6)
    # A span counts the steps between versions: 4 versions, one of them skipped, are a span of 3.
    assert lag.span == expected["span"] - 1
    assert len(segments) == expected["versions_used"]


@pytest.mark.parametrize("name", ["admission_gate", "admission_after_restore_bug"])
def test_credit_admits_as_many_as_the_published_gate_also_after_a_restore(name: str) -> None:
    case = oracle("staleness")[name]
    given = case["inputs"]
    accepted = 80 if name.endswith("bug") else given["accepted"]
    expected = case["expected"].get("capacity", case["expected"].get("correct_capacity_accepted_set_to_80"))
    # Slots come back at the version bump: outstanding is what was accepted or runs, less what the versions consumed.
    outstanding = accepted + given["running"] - given["version"] * given["batch"]
    admission = Admission((given["eta"] + 1) * given["batch"], needed=10_000)
    admitted = 0
    while admission.hold_reason(AdmissionState(outstanding + admitted, 0, False)) is None:
        admitted += 1
    assert min(admitted, given["max_concurrent"] - given["running"]) == expected


def test_mean_lag_follows_from_the_counts_at_version_bumps() -> None:
    case = oracle("staleness")["mean_lag_identity"]
    given = case["inputs"]
    found = bounds.mean_lag(given["not_handed_over_at_each_bump"], given["groups_per_step"])
    assert found == pytest.approx(case["expected"]["mean_lag_steps"])


def test_credit_bounds_throughput_by_residence() -> None:
    case = oracle("staleness")["throughput_under_gate"]
    given = case["inputs"]
    found = bounds.credit_bound(1e9, given["eta"], given["batch"], given["mean_residence_s"])
    assert found == pytest.approx(case["expected"]["max_groups_per_s"])


def test_unequal_acceptance_shifts_the_mix_and_the_success_that_is_read_off_it() -> None:
    case = oracle("selection_bias")["mix_shift"]
    given, expected = case["inputs"], case["expected"]
    mix, distance = bounds.trained_mix(given["offered"], given["accept_prob"])
    assert mix == pytest.approx(expected["admitted_mix"], abs=1e-6)
    assert distance == pytest.approx(expected["tv"], abs=1e-6)
    naive = sum(share * given["success"][name] for name, share in mix.items())
    assert naive == pytest.approx(expected["naive_success"], abs=1e-6)


def test_a_class_that_outlasts_the_bound_never_trains_under_a_rule_that_ends_stale_work() -> None:
    given = oracle("selection_bias")["never_trained_class"]["inputs"]
    durations = [given["step_s"] / 4.0] * 9 + [float(given["service_s"])]
    scenario = trace_scenario(durations * 6, slots=8, batch=4, update_s=float(given["step_s"]))
    schedule = {"mode": "separate_async", "credit_batches": 1}
    result = run_trace(scenario, schedule, 60, cutoff=Cutoff(given["max_lag"]))
    planned = [event.payload for event in result.events if isinstance(event.payload, BatchPlanned)]
    trained = {group.ordinal for plan in planned for group in plan.groups}
    # The last one is trained when nothing else is left, and no version goes by.
    assert [ordinal for ordinal in sorted(trained) if ordinal % 10 == 9] == [59]


def test_keeping_the_first_to_end_keeps_the_fast_ones() -> None:
    case = oracle("selection_bias")["oversampling_bias"]
    given, expected = case["inputs"], case["expected"]
    fast = bounds.oversampled_short_share(given["n"], given["k"], given["share_slow"])
    kept = fast * given["p_fast"] + (1.0 - fast) * given["p_slow"]
    assert kept == pytest.approx(expected["kept_success"], abs=1e-6)


def test_the_fluid_bound_names_its_bottleneck_and_credit_lowers_it() -> None:
    case = oracle("scheduling")["fluid_bottleneck"]
    given, expected = case["inputs"], case["expected"]
    rate, bottleneck = bounds.fluid_bound(given["q"], given["demand_s"], given["capacity"])
    assert (bottleneck, rate) == (expected["bottleneck"], pytest.approx(expected["x_max"], abs=1e-6))
    gated = oracle("scheduling")["fluid_with_gate"]
    given = gated["inputs"]
    found = bounds.credit_bound(given["x_max"], given["eta"], given["B"], given["mean_T"])
    assert found == pytest.approx(gated["expected"]["x_bound"], abs=1e-6)


def test_waiting_for_the_slowest_of_a_batch_costs_what_order_statistics_say() -> None:
    case = oracle("scheduling")["sync_efficiency_two_point"]
    given = case["inputs"]
    found = [bounds.waiting_efficiency(n, given["p_long"], given["short"], given["long"]) for n in given["n"]]
    assert found == pytest.approx(case["expected"]["efficiency"], abs=1e-6)


def test_littles_law_holds_in_a_run_whose_residence_is_known() -> None:
    case = oracle("scheduling")["little"]
    # One task every 5 s that takes 65 s: 13 in the engine. A batch of one on 13 slots keeps the rate.
    assert case["inputs"]["lambda_per_s"] * case["inputs"]["W_s"] == pytest.approx(case["expected"]["L"])
    scenario = trace_scenario([65.0], slots=13, batch=1, update_s=1e-3)
    result = run_trace(scenario, {"mode": "separate_async", "credit_batches": 12}, 390, checked=False)
    outcome = outcome_of(result.events, 380, result.slot_seconds)
    assert 1e-3 * outcome.steady_groups_per_ks == pytest.approx(case["inputs"]["lambda_per_s"], rel=0.03)
    assert outcome.identities.little.residual < 1e-9
    assert outcome.identities.little.left == pytest.approx(case["expected"]["L"], rel=0.05)
