"""The statistical gate: alone on scores, and in whole runs on virtual time."""

import bisect
import math
from collections import Counter

import msgspec
import pytest
from recovery.crashes import MortalStorage, all_events, broken_laws, run_until
from simulated_runs import config, faultless, kinds, payloads, run
from test_learning_signal import run_with_plans

from headrace.control.gating import StatisticalGate, breaches
from headrace.control.scoring import signal_figures
from headrace.errors import ConfigError
from headrace.records.batch import BatchPlanned, BatchRefilled, BatchSelected, GroupRejected
from headrace.records.gate import BatchGated, Gate
from headrace.records.ids import Address
from headrace.records.task import TaskDrawn
from headrace.records.update import BatchScored, RowScore
from headrace.reporting.folds.index import RunIndex
from headrace.reporting.folds.signal import learning_signal
from headrace.runtime.simulated import SimulatedDisk, Simulation, simulate
from headrace.store.memory import MemoryStorage

OFF = dict.fromkeys(
    ("max_p95", "max_p99", "max_weight", "max_largest_share", "max_outside", "max_kl", "min_ess_share", "max_mean_z"),
    0.0,
)
ASYNC = {"mode": "separate_async", "credit_batches": 3}


def scores_of(log_weights, outside=0):
    return [
        RowScore(
            Address(f"{index:064x}"), 0, 10, value, abs(value), None, value**2 / 20, value**2 / 20, outside=outside
        )
        for index, value in enumerate(log_weights)
    ]


def judge(log_weights, **gate):
    """(decision, factors by position)."""
    scores = scores_of(log_weights)
    decision = StatisticalGate(Gate(**{**OFF, **gate})).judge(scores, signal_figures(scores))
    return decision, [decision.factor((score.transcript, 0)) for score in scores]


def test_a_batch_that_holds_its_bounds_passes_untouched():
    decision, factors = judge([0.0, 0.1, -0.1, 0.05], action="reject", max_weight=2.0, min_ess_share=0.5)
    assert (decision.action, decision.breaches, set(factors)) == ("pass", (), {1.0})


def test_the_fewest_furthest_rows_are_changed_and_the_others_hold_the_bounds():
    logs = [0.0, 0.1, -0.1, 0.05, 3.0, 1.0]
    decision, factors = judge(logs, action="mask", max_weight=2.0)
    assert factors == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    assert [item.figure for item in decision.breaches] == ["largest weight"]
    assert decision.breaches[0].value == pytest.approx(math.exp(3.0))
    left = [score for score, factor in zip(scores_of(logs), factors, strict=True) if factor]
    assert breaches(Gate(**{**OFF, "max_weight": 2.0}), signal_figures(left)) == ()
    _, one_more = judge(logs, action="mask", max_weight=3.0)
    assert one_more == [1.0, 1.0, 1.0, 1.0, 0.0, 1.0]


def test_rows_of_one_episode_are_one_weight_and_leave_together():
    """Two rows of 0.6 are a weight of exp(1.2), beyond a bound of 2 that neither of them reaches."""
    first, second, third = scores_of([0.6, 0.6, 0.0])
    second = msgspec.structs.replace(second, transcript=first.transcript, path=1)
    gate, scores = StatisticalGate(Gate(**{**OFF, "max_weight": 2.0, "action": "mask"})), [first, second, third]
    decision = gate.judge(scores, signal_figures(scores))
    assert decision.factors == {(first.transcript, 0): 0.0, (first.transcript, 1): 0.0}
    assert decision.breaches[0].value == pytest.approx(math.exp(1.2))


def test_a_down_weighted_row_counts_as_much_as_the_furthest_one_that_is_kept():
    decision, factors = judge([0.0, 0.5, -0.5, -2.5, 2.0], action="downweight", max_kl=0.005)
    assert decision.action == "downweight"
    assert factors == pytest.approx([1.0, 1.0, 1.0, math.exp(-2.0), math.exp(-1.5)])


@pytest.mark.parametrize(
    ("gate", "logs", "figure"),
    [
        ({"max_p95": 1.5}, [0.0] * 9 + [1.0], "p95"),
        ({"max_p99": 1.5}, [0.0] * 9 + [1.0], "p99"),
        ({"max_largest_share": 0.4}, [0.0, 0.0, 1.0], "share of the largest weight"),
        ({"max_kl": 0.001}, [0.5, -0.5], "KL k3"),
        ({"min_ess_share": 0.9}, [1.0, -1.0], "ESS share"),
        ({"max_mean_z": 4.0}, [-1.0, -1.01, -0.99, -1.0], "mean weight z"),
    ],
)
def test_each_figure_has_its_own_bound_and_name(gate, logs, figure):
    decision, _ = judge(logs, **gate)
    assert [item.figure for item in decision.breaches] == [figure]
    assert judge([0.0] * len(logs), **gate)[0].breaches == ()


def test_the_clip_fraction_is_named_and_absent_where_nobody_counted():
    gate = Gate(**{**OFF, "max_outside": 0.3})
    (found,) = breaches(gate, signal_figures(scores_of([0.0, 0.0], outside=4)))
    assert (found.figure, found.value) == ("clip fraction ratio_outside", pytest.approx(0.4))
    assert breaches(gate, signal_figures(scores_of([0.0, 0.0], outside=None))) == ()


def test_weights_of_one_but_for_rounding_are_on_policy_whatever_their_z():
    assert judge([1e-5, 1.1e-5, 0.9e-5, 1e-5], max_mean_z=4.0)[0].breaches == ()


def test_a_batch_of_which_nothing_would_be_left_is_masked():
    decision, factors = judge([5.0, -5.0, 5.0], action="reject", max_kl=1e-6)
    assert (decision.action, factors) == ("mask", [0.0, 0.0, 0.0])


def gated(action, **options):
    bounds = {**OFF, "max_weight": 1.3, "action": action}
    result, plans = run_with_plans(of=faultless(), updates=4, algorithm={"gate": bounds}, schedule=ASYNC, **options)
    return result, plans, payloads(result, BatchGated)


def test_by_default_every_batch_is_judged_and_none_changed():
    result = run(ASYNC, of=faultless(), updates=4)
    found = payloads(result, BatchGated)
    assert len(found) == kinds(result.events)["batch_scored"] == 4
    assert {item.decision for item in found} == {"pass"}
    assert config(ASYNC).algorithm.gate.action == "pass"


def test_masked_and_down_weighted_rows_stay_in_their_group_and_rejected_ones_leave_it():
    result, plans, found = gated("mask")
    assert found[0].decision == "pass"
    assert "mask" in {item.decision for item in found[1:]}
    for plan, item in zip(plans, found, strict=True):
        assert sum(row.weight == 0.0 for row in plan.rows) == sum(part.affected for part in item.strata)
    _, plans, found = gated("downweight")
    weights = {row.weight for plan in plans for row in plan.rows}
    assert any(0.0 < weight < 1.0 for weight in weights)
    result, plans, found = gated("reject")
    rejecting = [item for item in found if item.decision == "reject"]
    assert rejecting
    scored = {item.update: item.rows for item in payloads(result, BatchScored)}
    for plan, planned, item in zip(plans, payloads(result, BatchPlanned), found, strict=True):
        assert {row.weight for row in plan.rows} <= {1.0, 0.0}
        assert set(planned.groups) == {row.group for row in plan.rows}
        if item.decision == "reject":
            assert len(plan.rows) <= scored[item.update] - sum(part.affected for part in item.strata)
            assert any(part.filter == "statistical_gate" for part in planned.removed)
        for group in planned.groups:  # the baseline of those that stay is their own
            assert sum(row.advantage for row in plan.rows if row.group == group) == pytest.approx(0.0, abs=1e-9)
    filtered = [item.reason for item in payloads(result, GroupRejected) if item.state == "filtered"]
    assert all(reason.startswith("statistical gate") for reason in filtered)


def refilled(on_reject, updates=8, **rules):
    bounds = {**OFF, "max_weight": 1.1, "action": "reject", "on_reject": on_reject}
    schedule = {**ASYNC, "credit_batches": 6, "group_size": 2, **rules}
    result, plans = run_with_plans(of=faultless(), updates=updates, algorithm={"gate": bounds}, schedule=schedule)
    return result, plans


def test_rejected_samples_are_replaced_from_ready_groups_or_the_step_is_smaller_by_choice():
    result, smaller = refilled("smaller")
    assert payloads(result, BatchRefilled) == []
    assert any(len(plan.rows) < 8 for plan in smaller)
    result, plans = refilled("replace")
    found = {item.update: item for item in payloads(result, BatchRefilled)}
    assert found
    gained = []
    scored = {item.update: item.rows for item in reversed(payloads(result, BatchScored))}  # of the first judging
    judged = Counter(item.update for item in payloads(result, BatchGated))
    for plan, planned in zip(plans, payloads(result, BatchPlanned), strict=True):
        came = found.get(plan.update)
        assert judged[plan.update] == (1 if came is None else 2)
        assert len(plan.rows) <= 8
        assert {row.group for row in plan.rows} == set(planned.groups)
        if came is not None:
            assert len(came.groups) <= came.rejected // 2
            gained.append(len(plan.rows) - (scored[plan.update] - came.rejected))
            assert gained[-1] <= sum(row.group in came.groups for row in plan.rows)
    assert max(gained) > 0
    assert result.summary.updates == 8


def test_replacements_keep_the_places_that_quotas_hold():
    result, _ = refilled("replace", updates=12, quotas={"easy": 0.5, "medium": 0.25})
    strata = {event.key: event.payload.difficulty for event in result.events if isinstance(event.payload, TaskDrawn)}
    selected = {item.update: item.groups for item in payloads(result, BatchSelected)}
    judged = {item.update: item.strata for item in reversed(payloads(result, BatchGated))}  # the first judging
    num_held = 0
    for item in payloads(result, BatchRefilled):
        if item.update == 11:  # the last: no easy group is still open, for which a place would be held
            continue
        lost = sum(part.affected for part in judged[item.update] if part.difficulty == "easy")
        left = sum(strata[str(group)] == "easy" for group in selected[item.update]) - lost / 2
        held = min(item.rejected // 2, max(0, math.ceil(2 - left)))
        others = sum(strata[str(group)] != "easy" for group in item.groups)
        assert others <= item.rejected // 2 - held
        num_held += held
    assert num_held > 1


def test_a_run_that_dies_around_a_replacement_breaks_no_law_and_replaces_once():
    bounds = {**OFF, "max_weight": 1.1, "action": "reject", "on_reject": "replace"}
    schedule = {**ASYNC, "credit_batches": 6, "group_size": 2}
    simulation = Simulation(config(schedule, updates=8, algorithm={"gate": bounds}), faultless())
    whole = SimulatedDisk()
    simulate(simulation, disk=whole)
    marks = [event.seq for event in all_events(whole) if isinstance(event.payload, BatchRefilled)]
    storage = MortalStorage(MemoryStorage())
    simulate(simulation, disk=SimulatedDisk(storage))
    near = sorted({bisect.bisect_left(storage.ends, seq) + later for seq in marks for later in (1, 2, 3)})
    assert near
    seen = 0
    for dies_at in near:
        disk = SimulatedDisk()
        run_until(simulation, disk, dies_at)
        seen += any(isinstance(event.payload, BatchRefilled) for event in all_events(disk))
        simulate(simulation, disk=disk)
        assert broken_laws(simulation.config, disk) == [], f"died at commit {dies_at}"
        refilled = [e.payload.update for e in all_events(disk) if isinstance(e.payload, BatchRefilled)]
        assert len(refilled) == len(set(refilled))
        planned = [e.payload.update for e in all_events(disk) if isinstance(e.payload, BatchPlanned)]
        assert planned == list(range(1, 9))
    assert seen


def test_replacement_is_refused_where_no_group_may_train_before_its_turn():
    gate = {"gate": {"action": "reject", "on_reject": "replace"}}
    with pytest.raises(ConfigError, match="no group may train before its turn"):
        config({}, algorithm=gate)
    with pytest.raises(ConfigError, match="order ordinal"):
        config({**ASYNC, "order": "ordinal"}, algorithm=gate)
    with pytest.raises(ConfigError, match="rejects nothing"):
        config(ASYNC, algorithm={"gate": {"on_reject": "replace"}})


def test_the_report_says_by_difficulty_what_the_gate_did():
    disk = SimulatedDisk()
    bounds = {**OFF, "max_weight": 1.3, "action": "mask"}
    simulation = Simulation(config(ASYNC, updates=4, algorithm={"gate": bounds}), faultless())
    result = simulate(simulation, disk=disk)
    found = payloads(result, BatchGated)
    index = RunIndex(disk.storage.read)
    for event in result.events:
        index.observe(event)
    signal = learning_signal(index)
    assert signal.judged == len(found)
    assert sum(row.gated for row in signal.strata) == sum(part.affected for item in found for part in item.strata) > 0
    assert {(item.figure, item.decision) for item in signal.gate} >= {("largest weight", "mask")}
