"""Groups that train again, in whole runs on virtual time."""

from collections import Counter, defaultdict
from typing import Any

import msgspec
import pytest
from control.simulated_runs import MODES, config, faultless, payloads
from recovery.crashes import all_events, broken_laws, count_commits, run_until

from headrace.checkers import bounds_of, check_log
from headrace.control.recovery import recover
from headrace.control.trained import TrainedGroups
from headrace.errors import ConfigError, InvariantViolated
from headrace.records.batch import BatchPlan, BatchPlanned, BatchSelected
from headrace.records.events import OrdinalState
from headrace.records.provenance import read_record
from headrace.records.update import BatchScored
from headrace.reporting.folds.index import RunIndex, fold
from headrace.reporting.folds.information import FlipRates, information
from headrace.reporting.folds.signal import learning_signal
from headrace.reporting.report import report_run
from headrace.reporting.sections.learning import learning
from headrace.runtime.simulated import SimulatedDisk, Simulation, simulate

WEIGHED: dict[str, Any] = {"anchor": "old", "corrections": [{"kind": "sequence_mis", "bound": 3.0}]}
REPLAY: dict[str, Any] = {"kind": "recent", "uses": 3, "max_lag": 4, "share": 0.7}
ASYNC: dict[str, Any] = {"mode": "separate_async", "credit_batches": 2}


def simulation(schedule: dict[str, Any] = ASYNC, replay: dict[str, Any] = REPLAY, **options: Any) -> Simulation:
    algorithm = {**WEIGHED, "replay": replay, **options.pop("algorithm", {})}
    options.setdefault("updates", 8)
    return Simulation(config(schedule, algorithm=algorithm, **options), faultless())


def plans_of(disk: SimulatedDisk) -> list[tuple[BatchPlanned, BatchPlan]]:
    planned = [event.payload for event in all_events(disk) if isinstance(event.payload, BatchPlanned)]
    return [(item, read_record(disk.storage.read, item.plan, BatchPlan)) for item in planned]


def check_uses(disk: SimulatedDisk, replay: dict[str, Any]) -> Counter[int]:
    """Every transcript once for each use, none beyond the bound; rows by use."""
    uses: dict[tuple[str, int], list[int]] = defaultdict(list)
    for planned, plan in plans_of(disk):
        lags = {item.group: item.oldest_lag for item in planned.replayed}
        for row in plan.rows:
            uses[row.transcript, row.path].append(row.use)
            assert (row.use > 1) == (row.group in lags)
        assert all(0 < lag <= replay["max_lag"] for lag in lags.values())
        assert len(planned.replayed) <= replay["share"] * (len(planned.groups) + len(planned.replayed))
    for found in uses.values():
        assert found == list(range(1, len(found) + 1))
        assert len(found) <= replay["uses"]
    return Counter(use for found in uses.values() for use in found)


@pytest.mark.parametrize("mode", MODES)
def test_no_use_comes_twice_nor_beyond_the_bound_and_every_law_holds(mode: str) -> None:
    disk, made = SimulatedDisk(), simulation(MODES[mode])
    result = simulate(made, disk=disk)
    rows = check_uses(disk, REPLAY)
    assert rows[3] > 0
    assert rows[2] >= rows[3]
    assert broken_laws(made.config, disk) == []
    frontier = recover(result.events).frontier
    states = {state: frontier.count(state) for state in OrdinalState}
    assert sum(states.values()) == frontier.drawn
    assert states[OrdinalState.TRAINED] == sum(len(item.groups) for item in payloads(result, BatchPlanned))


def test_replayed_rows_have_figures_of_their_own_and_old_ones_weigh_less_evenly() -> None:
    disk = SimulatedDisk()
    result = simulate(simulation(), disk=disk)
    for (planned, plan), scored in zip(plans_of(disk), payloads(result, BatchScored), strict=True):
        again = sum(row.use > 1 for row in plan.rows)
        assert (scored.replayed.rows if scored.replayed else 0) == again
        if scored.replayed:
            assert planned.oldest_lag >= max(item.oldest_lag for item in planned.replayed)
            assert 0.0 < scored.replayed.ess_fraction <= 1.0


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (
            {"anchor": "behavior", "corrections": []},
            r"corrections \[\]: none weighs .* anchor = \"old\" and a correction",
        ),
        ({"corrections": [{"kind": "none"}]}, r"corrections \['none'\]: none weighs"),
        ({"corrections": [{"kind": "geometric_mask"}]}, r"corrections \['geometric_mask'\]: none weighs"),
        ({"kl": {"coefficient": 0.1}}, r"set kl\.importance = true"),
        ({"advantage": "gae"}, "returns would take old data as on-policy"),
        ({"replay": {**REPLAY, "uses": 1}}, "uses is 1, at least 2"),
        ({"replay": {**REPLAY, "share": 1.0}}, r"share is 1\.0, above 0 and below 1"),
        ({"replay": {**REPLAY, "share": 0.1}}, r"must be at least 0\.2"),
    ],
)
def test_old_data_can_not_count_as_on_policy(algorithm: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulation(algorithm=algorithm)


def test_a_pool_that_gives_out_the_same_use_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: TrainedGroups, drawn: Any, replayed: Any) -> None:
        count(self, drawn, ())

    count = TrainedGroups.consume
    monkeypatch.setattr(TrainedGroups, "consume", forget)
    made, disk = simulation(), SimulatedDisk()
    with pytest.raises(InvariantViolated, match=r"C2 at event \d+: (update \d+ replays|use 2 of)"):
        simulate(made, disk=disk)
    found = list(check_log(disk.storage.events(0), bounds_of(made.config), disk.storage.read))
    assert {item.law for item in found} == {"C2"}


def test_a_use_or_a_lag_beyond_its_bound_is_a_broken_law() -> None:
    made, disk = simulation(), SimulatedDisk()
    simulate(made, disk=disk)
    bounds = bounds_of(made.config)
    assert (bounds.max_uses, bounds.max_replay_lag) == (3, 4)
    for law, tighter in (("C2", {"max_uses": 2}), ("C12", {"max_replay_lag": 1})):
        found = check_log(all_events(disk), msgspec.structs.replace(bounds, **tighter), disk.storage.read)
        assert {item.law for item in found} == {law}


def test_a_run_that_dies_at_any_commit_goes_on_with_the_uses_that_counted() -> None:
    small = {"group_size": 2, "batch_groups": 2}
    for mode in ("sync", "one step asynchronous"):
        made = simulation({**MODES[mode], **small}, updates=4)
        for dies_at in range(25, count_commits(made) + 1, 9):
            disk = SimulatedDisk()
            run_until(made, disk, dies_at)
            simulate(made, disk=disk)
            assert broken_laws(made.config, disk) == [], f"died at commit {dies_at}"
            assert check_uses(disk, REPLAY)[3] > 0
            assert len(plans_of(disk)) == 4


def test_the_uses_that_a_crash_left_are_those_of_committed_versions() -> None:
    disk = SimulatedDisk()
    result = simulate(simulation(), disk=disk)
    selected = next(e for e in result.events if isinstance(e.payload, BatchSelected) and e.payload.replayed)
    past = recover((event for event in result.events if event.seq <= selected.seq), keeps_trained=True)
    assert past.update is not None
    assert past.update.replayed == selected.payload.replayed
    for item in past.update.replayed:
        assert past.trained[item.group.ordinal].uses == item.use - 1
    end = recover(result.events, keeps_trained=True)
    assert max(group.uses for group in end.trained.values()) <= REPLAY["uses"]
    assert recover(result.events).trained == {}


def test_the_report_tells_replayed_rows_apart_and_information_counts_them_once() -> None:
    disk = SimulatedDisk()
    result = simulate(simulation(), disk=disk)
    index = RunIndex(disk.storage.read)
    flips = FlipRates(index)
    fold(result.events, (index, flips))
    info = information(index, flips)
    groups = {group for item in payloads(result, BatchPlanned) for group in item.groups}
    assert sum(row.groups for row in info.strata) == len(groups)
    assert info.duplicate_groups == 0
    assert 0.0 < info.total <= 4 * len(groups)
    signal = learning_signal(index).replay
    assert signal is not None
    assert signal.groups == sum(len(item.replayed) for item in payloads(result, BatchPlanned))
    assert signal.largest_use == 3
    assert 0.0 < signal.share <= REPLAY["share"]
    lines = [line for line in learning(report_run(result.events, disk.storage.read), True) if isinstance(line, str)]
    (line,) = [line for line in lines if line.startswith("replay recent: ")]
    assert f"in {signal.groups} uses of a group, at most use 3;" in line
    assert f"oldest {signal.oldest_lag}; of replayed rows alone smallest ESS" in line
    assert sum(signal.retired.values()) == sum(len(item.retired) for item in payloads(result, BatchSelected)) > 0
