"""Quotas and inverse-acceptance weights in whole runs on virtual time."""

import pytest
from simulated_runs import config, faultless, payloads, run
from test_learning_signal import run_with_plans

from headrace.control.recovery import recover
from headrace.control.weighing import StratumLedger
from headrace.errors import ConfigError
from headrace.records.batch import BatchPlanned, GroupRejected
from headrace.records.task import TaskDrawn
from headrace.records.weighing import StrataWeighed, StratumWeights
from headrace.reporting.quantities import number
from headrace.reporting.report import report_run
from headrace.reporting.sections.learning import learning
from headrace.runtime.simulated import SimulatedDisk, Simulation, simulate

DROP = {"mode": "separate_async", "credit_batches": 3, "staleness": "drop", "max_lag": 1}
INVERSE = {"stratum_weights": {"kind": "inverse_acceptance", "cap": 3.0}}


def test_a_ledger_counts_only_rules_that_select_and_refuses_what_never_trains():
    ledger = StratumLedger()
    ledger.accept(["easy"] * 4)
    ledger.reject("easy", "dynamic sampling: all rewards are equal")
    ledger.reject("hard", "stale: lag 3 > 1")
    refused = ledger.weigh(1, StratumWeights(kind="inverse_acceptance"))
    assert (refused.refused, refused.ess_fraction) == (("hard",), None)
    assert {item.weight for item in refused.strata} == {1.0}
    ledger.accept(["hard"])
    ledger.reject("hard", "statistical gate: p99")
    found = ledger.weigh(2, StratumWeights(kind="inverse_acceptance", cap=2.5))
    assert [(item.difficulty, item.offered, item.accepted, item.weight, item.is_capped) for item in found.strata] == [
        ("easy", 4, 4, 1.0, False),
        ("hard", 3, 1, 2.5, True),
    ]
    assert found.ess_fraction == pytest.approx((4 + 2.5) ** 2 / (4 + 2.5**2) / 5)


def test_weights_stand_in_the_plan_keep_the_step_size_and_survive_a_restart():
    result, plans = run_with_plans(schedule=DROP, of=faultless(), updates=8, algorithm=INVERSE)
    weighed = payloads(result, StrataWeighed)
    assert len(weighed) == len(plans) == 8
    assert any(item.reason.startswith("stale:") for item in payloads(result, GroupRejected))
    for plan in plans:
        assert sum(row.weight for row in plan.rows) == pytest.approx(len(plan.rows))
    assert any(len({row.weight for row in plan.rows}) > 1 for plan in plans)
    last = weighed[-1]
    assert sum(item.accepted for item in last.strata) == sum(len(p.groups) for p in payloads(result, BatchPlanned))
    again = StratumLedger()
    again.recall(recover(result.events).weighed)
    assert again.weigh(8, StratumWeights(**INVERSE["stratum_weights"])) == last


def test_the_report_prints_the_weights_their_cap_and_their_effective_sample_size():
    disk = SimulatedDisk()
    result = simulate(Simulation(config(DROP, updates=8, algorithm=INVERSE), faultless()), disk=disk)
    last = payloads(result, StrataWeighed)[-1]
    found = list(learning(report_run(result.events, disk.storage.read), True))
    (grid,) = [item for item in found if not isinstance(item, str) and "row weight" in item.columns]
    assert [(row[0], row[1], row[2]) for row in grid.rows] == [
        (item.difficulty, str(item.offered), str(item.accepted)) for item in last.strata
    ]
    (line,) = [item for item in found if isinstance(item, str) and item.startswith("weights by acceptance")]
    smallest = min(item.ess_fraction for item in payloads(result, StrataWeighed) if item.ess_fraction is not None)
    assert line == (
        f"weights by acceptance, update 8: cap 3; of these weights alone ESS {number(last.ess_fraction)}, "
        f"smallest {number(smallest)}"
    )


def test_without_the_rule_every_row_counts_alike():
    _, plans = run_with_plans(schedule=DROP, of=faultless(), updates=4)
    assert {row.weight for plan in plans for row in plan.rows} == {1.0}


def test_a_quota_gives_a_stratum_its_share_of_every_batch():
    schedule = {"mode": "separate_async", "credit_batches": 3}
    shares = {}
    for name, quotas in (("none", {}), ("quota", {"hard": 0.25})):
        result = run({**schedule, "quotas": quotas}, of=faultless(), updates=8)
        strata = {
            event.key: event.payload.difficulty for event in result.events if isinstance(event.payload, TaskDrawn)
        }
        planned = payloads(result, BatchPlanned)
        shares[name] = [sum(strata[str(group)] == "hard" for group in item.groups) for item in planned]
    assert shares["none"] != shares["quota"]
    assert sum(count >= 1 for count in shares["quota"]) > sum(count >= 1 for count in shares["none"])


def test_quotas_that_cannot_hold_are_refused():
    with pytest.raises(ConfigError, match="all at most 1"):
        config({**DROP, "quotas": {"hard": 0.8, "easy": 0.4}})
    with pytest.raises(ConfigError, match="both say who is due"):
        config({"mode": "separate_async", "credit_batches": 2, "order": "ordinal", "quotas": {"hard": 0.5}})
    with pytest.raises(ConfigError, match=r"cap is 0\.5"):
        config(DROP, algorithm={"stratum_weights": {"kind": "inverse_acceptance", "cap": 0.5}})
