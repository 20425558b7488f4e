"""Worked examples of lag, admission, selection and bounds."""

import itertools

import numpy as np
import pytest
from planning import expectations
from planning.traces import oracle, run_trace, trace_scenario

from headrace.algorithms.advantages import RewardTable, mean_only
from headrace.algorithms.bounds import fluid_bound
from headrace.algorithms.corrections import correct, interpolated_logprobs
from headrace.algorithms.selection import NoAcceptanceError, acceptance_weights
from headrace.planning.outcome import outcome_of
from headrace.records.batch import BatchPlanned
from headrace.records.learning.corrections import SequenceTis
from headrace.scheduling.admission import Admission, AdmissionState
from headrace.scheduling.ordering import BatchOrder, OpenGroup
from headrace.scheduling.staleness import Sampled, lag_of


def test_span_and_lag_are_two_figures_and_lag_has_three() -> None:
    case = oracle("staleness")["spans"]
    segments, expected = case["inputs"]["segments"], case["expected"]
    lag = lag_of([Sampled(tuple(map(tuple, segments)))], case["inputs"]["trainer_version"])
    assert (lag.oldest, lag.newest) == (expected["staleness_oldest"], expected["staleness_newest"])
    assert lag.mean == pytest.approx(expected["token_weighted_mean_lag"], abs=1e-6)
    # A span counts the steps between versions: 4 versions, one of them skipped, are a span of 3.
    assert lag.span == expected["span"] - 1
    assert len(segments) == expected["versions_used"] == case["wrong"]["versions_used_as_span"] != expected["span"]


@pytest.mark.parametrize("name", ["admission_gate", "admission_after_restore_bug"])
def test_credit_admits_as_many_as_the_published_gate_also_after_a_restore(name: str) -> None:
    case = oracle("staleness")[name]
    given = case["inputs"]
    accepted = 80 if name.endswith("bug") else given["accepted"]
    expected = case["expected"].get("capacity", case["expected"].get("correct_capacity_accepted_set_to_80"))
    # Slots come back at the version bump: outstanding is what was accepted or runs, less what the versions consumed.
    outstanding = accepted + given["running"] - given["version"] * given["batch"]
    limit = (given["eta"] + 1) * given["batch"]
    admitted = 0
    while Admission(10_000, 1).hold_reason(AdmissionState(outstanding + admitted, limit, 0, False)) is None:
        admitted += 1
    assert min(admitted, given["max_concurrent"] - given["running"]) == expected
    if name.endswith("bug"):
        # A counter that starts from 0 beside a version that does not takes all consumed groups for free slots.
        forgotten = (given["eta"] + 1 + given["version"]) * given["batch"]
        assert forgotten == case["expected"]["buggy_capacity"] > 2 * expected


def test_a_version_label_of_another_sampler_multiplies_into_the_sequence_weight() -> None:
    case = oracle("staleness")["wrong_version"]
    given = case["inputs"]
    log_ratio = np.full(given["tokens"], given["log_ratio_per_token"])
    rows, no_cut = np.zeros(len(log_ratio), dtype=np.int64), SequenceTis(bound=1e300)
    wrong, right = (
        correct((no_cut,), ratio, rows, num_rows=1, advantages_N=np.ones(len(rows))).weights_N
        for ratio in (log_ratio, 0.0 * log_ratio)
    )
    assert wrong == pytest.approx(case["expected"]["sequence_weight"], abs=1e-6)
    assert set(right) == {1.0}


def test_an_interpolated_anchor_mixes_probabilities_and_not_their_logs() -> None:
    case = oracle("staleness")["interpolated_anchor"]
    given = case["inputs"]
    ends = [np.array([given[name]]) for name in ("behavior", "policy")]
    found = interpolated_logprobs(*ends, np.array([given["share"]]))[0]
    assert found == pytest.approx(case["expected"]["anchor"], abs=1e-6)
    assert found != pytest.approx(case["wrong"]["mean_of_logs"], abs=1e-3)
    assert [interpolated_logprobs(*ends, np.array([share]))[0] for share in (0.0, 1.0)] == [-1.2, -0.8]


def test_a_window_bounds_the_lag() -> None:
    case = oracle("staleness")["window_bound"]
    found = [expectations.windowed_lag_bound(*given) for given in case["inputs"]["credit_batch_window"]]
    assert found == case["expected"]["largest_lag"]


def test_mean_lag_follows_from_the_counts_at_version_bumps() -> None:
    case = oracle("staleness")["mean_lag_identity"]
    given = case["inputs"]
    found = expectations.mean_lag(given["not_handed_over_at_each_bump"], given["groups_per_step"])
    assert found == pytest.approx(case["expected"]["mean_lag_steps"])


def test_credit_bounds_throughput_by_residence() -> None:
    case = oracle("staleness")["throughput_under_gate"]
    given = case["inputs"]
    found = expectations.credit_bound(1e9, given["eta"], given["batch"], given["mean_residence_s"])
    assert found == pytest.approx(case["expected"]["max_groups_per_s"])


def test_unequal_acceptance_shifts_the_mix_and_the_success_that_is_read_off_it() -> None:
    case = oracle("selection_bias")["mix_shift"]
    given, expected = case["inputs"], case["expected"]
    mix, distance = expectations.trained_mix(given["offered"], given["accept_prob"])
    assert mix == pytest.approx(expected["admitted_mix"], abs=1e-6)
    assert distance == pytest.approx(expected["tv"], abs=1e-6)
    naive = sum(share * given["success"][name] for name, share in mix.items())
    assert naive == pytest.approx(expected["naive_success"], abs=1e-6)


def worst_lag(credit: int, batch: int, window: int) -> int:
    """Largest lag of a group that ends last of all, wherever it stands, under the order and the admission of a run."""
    limit, worst = (credit + 1) * batch, 0
    order, admission = BatchOrder("ready", batch, None, overtaking=window - 1), Admission(10**9, batch)
    for last in range(3 * limit + window + 1):
        admitted: list[int] = []
        waiting: list[int] = []
        version = 0
        while True:
            while admission.hold_reason(AdmissionState(len(waiting), limit, version, False)) is None:
                waiting.append(len(admitted))
                admitted.append(version)
            groups = [OpenGroup(group, admitted[group], None if group == last else group) for group in waiting]
            chosen = order.choose(groups, version, is_last=False)
            if chosen is None:  # nothing else may train before it
                break
            waiting = [group for group in waiting if group not in chosen]
            version += 1
        worst = max(worst, version - admitted[last])
    return worst


def worst_lag_when_slots_come_back_early(credit: int, batch: int, window: int) -> int:
    """The same when a slot comes back with each group that a batch takes, as no run does."""
    limit, worst = (credit + 1) * batch, 0
    for last in range(3 * limit + window + 1):
        admission = Admission(10**9, batch)
        admitted: dict[int, int] = {}
        waiting: list[int] = []
        version = taken = given_back = 0
        while True:
            while admission.hold_reason(AdmissionState(len(admitted) - given_back, limit, 0, False)) is None:
                waiting.append(len(admitted))
                admitted[len(admitted)] = version
            others = [group for group in waiting if group != last and (waiting[0] != last or group < last + window)]
            if not others or others[0] not in waiting[:window]:
                break
            waiting.remove(others[0])
            taken += 1
            version = taken // batch
            given_back = taken
        worst = max(worst, version - admitted[last])
    return worst


def test_the_window_bound_is_reached_and_breaks_when_slots_come_back_too_early() -> None:
    rows = oracle("staleness")["window_worst"]["rows"]
    for credit, batch, window, bound, at_bump, early in rows:
        assert expectations.windowed_lag_bound(credit, batch, window) == bound >= at_bump
        assert bound == at_bump or (credit == 0 and window > 1)  # nothing newer is open that could overtake
        assert worst_lag(credit, batch, window) == at_bump
        assert worst_lag_when_slots_come_back_early(credit, batch, window) == early
    beyond = [early - bound for *_, bound, _, early in rows]
    assert (max(beyond), sum(value > 0 for value in beyond) > 25) == (1, True)


def test_members_dropped_for_being_slow_shift_the_baseline_of_those_that_stay() -> None:
    case = oracle("selection_bias")["group_baseline"]
    given = case["inputs"]
    whole, kept = ([1.0] * round(40 * given[name]) for name in ("success", "success_of_kept"))
    ours, theirs = (mean_only(RewardTable.of([wins + [0.0] * (40 - len(wins))])).lists()[0] for wins in (whole, kept))
    assert ours[0] - theirs[0] == pytest.approx(case["expected"]["bias"], abs=1e-6)
    assert ours[-1] - theirs[-1] == pytest.approx(case["expected"]["bias"], abs=1e-6)


def test_a_class_that_outlasts_the_bound_never_trains_under_a_rule_that_ends_stale_work() -> None:
    given = oracle("selection_bias")["never_trained_class"]["inputs"]
    durations = [given["step_s"] / 4.0] * 9 + [float(given["service_s"])]
    scenario = trace_scenario(durations * 6, slots=8, batch=4, update_s=float(given["step_s"]))
    schedule = {"mode": "separate_async", "credit_batches": 1, "staleness": "drop", "max_lag": given["max_lag"]}
    result = run_trace(scenario, schedule, 60)
    planned = [event.payload for event in result.events if isinstance(event.payload, BatchPlanned)]
    trained = {group.ordinal for plan in planned for group in plan.groups}
    # The last one is trained when nothing else is left, and no version goes by.
    assert [ordinal for ordinal in sorted(trained) if ordinal % 10 == 9] == [59]
    accepted = {"short": sum(ordinal % 10 < 9 for ordinal in trained if ordinal < 50), "long": 0}
    assert accepted["short"] > 30
    with pytest.raises(NoAcceptanceError, match=r"acceptance of long is 0.*`pace` or `wait`"):
        acceptance_weights({"short": 45, "long": 5}, accepted)


def test_keeping_the_first_to_end_keeps_the_fast_ones() -> None:
    case = oracle("selection_bias")["oversampling_bias"]
    given, expected = case["inputs"], case["expected"]
    fast = expectations.oversampled_short_share(given["n"], given["k"], given["share_slow"])
    kept = fast * given["p_fast"] + (1.0 - fast) * given["p_slow"]
    assert kept == pytest.approx(expected["kept_success"], abs=1e-6)
    all_kept = expectations.oversampled_short_share(given["k"], given["k"], given["share_slow"])
    offered = all_kept * given["p_fast"] + (1.0 - all_kept) * given["p_slow"]
    assert offered == pytest.approx(expected["offered_success"], abs=1e-6)


def test_the_fluid_bound_names_its_bottleneck_and_credit_lowers_it() -> None:
    case = oracle("scheduling")["fluid_bottleneck"]
    given, expected = case["inputs"], case["expected"]
    rate, bottleneck = fluid_bound(given["q"], given["demand_s"], given["capacity"])
    assert (bottleneck, rate) == (expected["bottleneck"], pytest.approx(expected["x_max"], abs=1e-6))
    gated = oracle("scheduling")["fluid_with_gate"]
    given = gated["inputs"]
    found = expectations.credit_bound(given["x_max"], given["eta"], given["B"], given["mean_T"])
    assert found == pytest.approx(gated["expected"]["x_bound"], abs=1e-6)


def test_waiting_for_the_slowest_of_a_batch_costs_what_order_statistics_say() -> None:
    case = oracle("scheduling")["sync_efficiency_two_point"]
    given = case["inputs"]
    found = [expectations.waiting_efficiency(n, given["p_long"], given["short"], given["long"]) for n in given["n"]]
    assert found == pytest.approx(case["expected"]["efficiency"], abs=1e-6)
    # Every pair of a short and a long task once, each pair a batch on two slots.
    short, long = 10.0, 30.0
    pairs = [duration for pair in itertools.product((short, long), repeat=2) for duration in pair]
    result = run_trace(trace_scenario(pairs, 2, 2, 1e-6), {"mode": "sync", "credit_batches": 0}, len(pairs))
    busy = result.slot_seconds / (2.0 * result.makespan_s)
    assert busy == pytest.approx(expectations.waiting_efficiency(2, 0.5, short, long), abs=1e-5)


def test_littles_law_holds_in_a_run_whose_residence_is_known() -> None:
    case = oracle("scheduling")["little"]
    # One task every 5 s that takes 65 s: 13 in the engine. A batch of one on 13 slots keeps the rate.
    assert case["inputs"]["lambda_per_s"] * case["inputs"]["W_s"] == pytest.approx(case["expected"]["L"])
    scenario = trace_scenario([65.0], slots=13, batch=1, update_s=1e-3)
    result = run_trace(scenario, {"mode": "separate_async", "credit_batches": 12}, 390, checked=False)
    outcome = outcome_of(result.events, 380, result.slot_seconds)
    assert 1e-3 * outcome.steady_groups_per_ks == pytest.approx(case["inputs"]["lambda_per_s"], rel=0.03)
    assert expectations.credit_bound(1e9, 12, 1, 65.0) == pytest.approx(case["inputs"]["lambda_per_s"])
    assert outcome.identities.little.residual < 1e-9
    assert outcome.identities.little.left == pytest.approx(case["expected"]["L"], rel=0.05)


def test_the_wait_at_one_server_goes_by_the_square_of_its_service_time() -> None:
    case = oracle("scheduling")["single_server_wait"]
    given, expected = case["inputs"], case["expected"]
    law = {float(seconds): share for share, seconds in given["service"]}
    assert expectations.single_server_wait_s(given["arrivals_per_s"], law) == pytest.approx(expected["wait"], abs=1e-6)
    constant = expectations.single_server_wait_s(given["arrivals_per_s"], {expected["ES"]: 1.0})
    assert constant == pytest.approx(expected["wait_if_deterministic"], abs=1e-6)
    # An exponential law has twice the square of its mean.
    assert 2.0 * constant == pytest.approx(expected["wait_if_exponential_same_mean"], abs=1e-6)
    with pytest.raises(ValueError, match="one server can take less than 1 s"):
        expectations.single_server_wait_s(1.0, law)


def test_launching_more_than_are_kept_helps_most_where_the_tail_is_heavy() -> None:
    thin, heavy = oracle("scheduling")["oversampled_exponential"], oracle("scheduling")["oversampled_pareto"]
    kept, shape = thin["inputs"]["k"], heavy["inputs"]["alpha"]
    found = [expectations.oversampled_exponential_s(n, kept) for n in thin["inputs"]["n"]]
    assert found == pytest.approx(thin["expected"]["mean_s"], abs=1e-6)
    found = [expectations.oversampled_pareto_s(n, kept, shape) for n in heavy["inputs"]["n"]]
    assert found == pytest.approx(heavy["expected"]["mean_s"], abs=1e-6)
    assert expectations.oversampled_pareto_s(8, 8, 1.0) == np.inf
    draws = np.random.default_rng(7).exponential(size=(20_000, 12))
    assert np.sort(draws)[:, 7].mean() == pytest.approx(expectations.oversampled_exponential_s(12, 8), rel=0.02)


def test_the_longest_first_ends_earlier_than_the_order_of_arrival_also_in_the_simulator() -> None:
    case = oracle("scheduling")["list_schedule"]
    jobs, servers, expected = case["inputs"]["durations"], case["inputs"]["servers"], case["expected"]
    found = [expectations.makespan_s(jobs, servers), expectations.makespan_s(jobs, servers, is_longest_first=True)]
    assert found == [expected["in_order"], expected["longest_first"]]
    for order, makespan in ((jobs, found[0]), (sorted(jobs, reverse=True), found[1])):
        # One batch of all tasks on as many slots as there are servers.
        scenario = trace_scenario(order, servers, len(jobs), 1e-3)
        result = run_trace(scenario, {"mode": "sync", "credit_batches": 0}, len(jobs))
        assert result.makespan_s == pytest.approx(makespan + 1e-3, abs=1e-6)
    worst_ratios = (2.0 - 1.0 / servers, 4.0 / 3.0 - 1.0 / (3.0 * servers))
    assert worst_ratios == pytest.approx(expected["worst_ratios"], abs=1e-6)
    for sample in itertools.product((1, 2, 5), repeat=5):
        optimum = min(expectations.makespan_s(order, 2) for order in itertools.permutations(sample))
        assert expectations.makespan_s(sample, 2) <= 1.5 * optimum + 1e-9
        assert expectations.makespan_s(sample, 2, is_longest_first=True) <= 7 / 6 * optimum + 1e-9


def test_the_response_ratio_puts_short_work_first_and_long_work_that_has_waited_before_it() -> None:
    case = oracle("scheduling")["response_ratio"]
    given = case["inputs"]
    found = [expectations.response_ratio(*pair) for pair in zip(given["wait_s"], given["expected_s"], strict=True)]
    assert found == pytest.approx(case["expected"]["ratios"], abs=1e-6)
    assert expectations.response_ratio(10_000, 300) > found[0] > found[2] > found[1]
