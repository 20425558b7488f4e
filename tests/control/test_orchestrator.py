"""The orchestrator under virtual time, with every law checked after every event."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from control.simulated_runs import (
    MODES,
    config,
    faultless,
    kinds,
    payloads,
    run,
    scenario,
    with_budget,
    with_faults,
)

from headrace.config import load_config
from headrace.control.context import Ports
from headrace.errors import ConfigError, HeadraceError, InferenceError, TrainerError
from headrace.records.batch import BatchPlanned, GroupAdmitted, GroupClosed, GroupRejected
from headrace.records.evaluation import EvaluationCompleted
from headrace.records.run import RunEnded
from headrace.records.segment import TurnGenerated
from headrace.records.task import SourceExhausted, TaskDrawn
from headrace.records.trajectory import TranscriptSealed
from headrace.records.update import CanaryChecked, WeightsActivated, WeightsCommitted
from headrace.records.verdict import VerdictSealed
from headrace.runtime.simulated import SimulatedDisk, Simulation, simulate
from headrace.simulation.faults import Fault, FaultKind


@pytest.mark.parametrize("schedule", MODES.values(), ids=MODES.keys())
def test_a_run_completes_lawfully_under_every_rule(schedule: dict[str, object]) -> None:
    result = run(schedule)
    assert result.summary.reason == "completed"
    assert [plan.update for plan in payloads(result, BatchPlanned)] == [1, 2, 3, 4]
    assert [c.policy.version for c in payloads(result, WeightsCommitted)] == [0, 1, 2, 3, 4]
    assert result.events[-1].payload == RunEnded("completed", 4)


def test_synchronous_training_is_lag_zero_of_the_same_loop() -> None:
    plans = payloads(run(MODES["sync"]), BatchPlanned)
    assert [(plan.oldest_lag, plan.mean_lag, plan.max_span) for plan in plans] == [(0, 0.0, 0)] * 4


def test_asynchronous_training_overlaps_and_reports_its_lag() -> None:
    waiting, overlapping = run(MODES["sync"]), run(MODES["one step asynchronous"])
    assert overlapping.makespan_s < waiting.makespan_s
    assert max(plan.oldest_lag for plan in payloads(overlapping, BatchPlanned)) >= 1


@pytest.mark.parametrize("name", ["wait", "drop"])
def test_an_enforced_lag_is_never_exceeded(name: str) -> None:
    result = run(MODES[name], updates=6)
    bound = MODES[name]["max_lag"]
    assert max(plan.oldest_lag for plan in payloads(result, BatchPlanned)) <= bound


def test_a_dropped_group_is_recorded_with_its_lag_and_stratum() -> None:
    result = run({**MODES["drop"], "max_lag": 0}, updates=5)
    dropped = payloads(result, GroupRejected)
    assert dropped, "a lag bound of 0 under asynchrony must drop something"
    assert all(group.reason.startswith("stale: lag") and group.oldest_lag > 0 for group in dropped)
    assert {group.difficulty for group in dropped} <= {"easy", "medium", "hard"}


def test_outstanding_groups_never_exceed_the_credit() -> None:
    result = run(MODES["one step asynchronous"])
    outstanding = [group.outstanding for group in payloads(result, GroupAdmitted)]
    assert max(outstanding) == 8


def test_the_same_seed_gives_the_same_log_in_processes_with_different_hash_seeds() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests'); from control.simulated_runs import MODES, run; "
        "print(run(MODES['one step asynchronous'], num_held_out=3, evaluation={'every_updates': 2}).summary.head)"
    )
    heads = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(heads) == 1
    assert len(heads.pop().strip()) == 64


def test_another_seed_gives_another_log() -> None:
    assert run(MODES["sync"], seed=7).summary.head != run(MODES["sync"], seed=8).summary.head


@pytest.mark.parametrize("shuffle_seed", range(12))
def test_every_interleaving_is_lawful_and_replays(shuffle_seed: int) -> None:
    first = run(MODES["one step asynchronous"], shuffle_seed=shuffle_seed, updates=3)
    assert first.summary == run(MODES["one step asynchronous"], shuffle_seed=shuffle_seed, updates=3).summary


def test_shuffles_reach_different_interleavings() -> None:
    heads = {run(MODES["one step asynchronous"], shuffle_seed=seed, updates=2).summary.head for seed in range(4)}
    assert len(heads) == 4


def test_an_exhausted_source_trains_what_is_left_and_says_so() -> None:
    result = run(MODES["one step asynchronous"], num_train=6, updates=4)
    assert result.summary.reason == "exhausted"
    assert payloads(result, SourceExhausted) == [SourceExhausted(6)]
    assert [len(plan.groups) for plan in payloads(result, BatchPlanned)] == [4, 2]


def test_evaluation_is_pinned_takes_no_ordinal_and_outlives_a_swap() -> None:
    result = run(
        MODES["one step asynchronous"],
        of=faultless(),
        num_held_out=5,
        evaluation={"every_updates": 2, "temperatures": [1.0, 0.2]},
    )
    rounds = payloads(result, EvaluationCompleted)
    assert sorted((r.policy.version, r.temperature) for r in rounds) == [(v, t) for v in (0, 2, 4) for t in (0.2, 1.0)]
    assert all(r.graded + r.unscored == 5 for r in rounds)
    sealed = {e.key: e.payload.versions for e in result.events if isinstance(e.payload, TranscriptSealed)}
    evaluated = [versions for key, versions in sealed.items() if key.startswith("eval")]
    assert len(evaluated) == 30
    assert all(len(versions) == 1 for versions in evaluated)
    assert [e.key for e in result.events if isinstance(e.payload, TaskDrawn)] == [f"train.{n}" for n in range(16)]


def test_a_lost_turn_is_asked_for_again_and_comes_out_as_it_was() -> None:
    adapt, injected = with_faults(Fault(worker="inference", kind=FaultKind.LOSE, method="generate", call=3, times=4))
    result, whole = (
        run(MODES["sync"], of=faultless(), adapt=given, updates=1) for given in (adapt, lambda ports: ports)
    )
    assert injected[0].is_spent
    turns = [{turn.episode: turn.segments for turn in payloads(each, TurnGenerated)} for each in (result, whole)]
    assert turns[0] == turns[1]
    assert kinds(result.events)["turn_generated"] == kinds(whole.events)["turn_generated"]


def test_a_refused_turn_is_an_infrastructure_failure_and_a_new_attempt_not_a_zero() -> None:
    adapt, injected = with_faults(Fault(worker="inference", kind=FaultKind.REJECT, method="generate", call=3))
    result = run(MODES["sync"], of=faultless(), adapt=adapt, updates=1)
    assert injected[0].is_spent
    failed = [e for e in result.events if isinstance(e.payload, TranscriptSealed) and "infra" in e.payload.terminal]
    assert [event.payload.terminal for event in failed] == ["infra_error:inference"]
    members = [member for group in payloads(result, GroupClosed) for member in group.members]
    assert sum(member.episode.attempt == 1 for member in members) == 1
    assert all(member.reward is not None for member in members)


def test_a_grader_that_crashes_is_asked_again_and_nothing_is_rolled_again() -> None:
    adapt, _ = with_faults(Fault(worker="grader", kind=FaultKind.LOSE, method="grade", call=1, times=2))
    result = run(MODES["sync"], of=faultless(), adapt=adapt, updates=1)
    seals = [e for e in result.events if isinstance(e.payload, VerdictSealed)]
    assert sum(not e.payload.is_scored for e in seals) == 2
    assert kinds(result.events)["episode_started"] == 16
    assert all(m.reward is not None for group in payloads(result, GroupClosed) for m in group.members)


def test_a_grader_that_never_answers_leaves_the_reward_absent_and_the_group_untrained() -> None:
    adapt, _ = with_faults(Fault(worker="grader", kind=FaultKind.REJECT, method="grade", call=1, times=12))
    result = run(MODES["sync"], of=faultless(), adapt=adapt, updates=1)
    rejected = payloads(result, GroupRejected)
    absent = [m for group in payloads(result, GroupClosed) for m in group.members if m.reward is None]
    assert len(absent) == 4
    assert all(group.state == "abandoned" and group.reason.startswith("unscored") for group in rejected)


def test_a_version_that_the_engine_cannot_reproduce_never_exists() -> None:
    def adapt_canary(ports):
        import dataclasses

        return dataclasses.replace(ports, trainer=_ShiftedCanary(ports.trainer, at_version=2))

    with pytest.raises(InferenceError, match=r"differ by 0\.5 on the canary"):
        run(MODES["sync"], of=faultless(), adapt=adapt_canary)


class _ShiftedCanary:
    """A trainer whose canary is off from one version on."""

    def __init__(self, inner, at_version: int) -> None:
        self._inner = inner
        self._at_version = at_version

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    async def canary(self, ids, timeout_s):
        import msgspec

        from headrace.records.arrays import as_float32, float32_bytes

        score = await self._inner.canary(ids, timeout_s)
        if score.version < self._at_version:
            return score
        return msgspec.structs.replace(score, logprobs=float32_bytes(as_float32(score.logprobs) - 0.5))


@pytest.mark.parametrize("method", ["score", "update"])
def test_a_trainer_that_fails_stops_the_run_with_its_reason_recorded(method: str) -> None:
    adapt, _ = with_faults(Fault(worker="trainer", kind=FaultKind.LOSE, method=method, call=2))
    seen = []
    with pytest.raises(TrainerError):
        simulate(Simulation(config(MODES["sync"]), faultless(), adapt=adapt), observers=[seen.append])
    assert isinstance(seen[-1].payload, RunEnded)
    assert seen[-1].payload.reason.startswith("failed: TrainerError")
    assert seen[-1].payload.updates == 1 if method == "score" else True


IN_PROCESS: dict[str, Callable[[Ports], tuple[object, str]]] = {
    "task source": lambda ports: (ports.tasks, "next"),
    "harness, prompt": lambda ports: (ports.harness, "open"),
    "harness, turn": lambda ports: (ports.harness, "parse"),
}


@pytest.mark.parametrize("place", IN_PROCESS)
def test_a_port_within_the_process_that_raises_ends_the_run_and_the_next_process_completes_it(place: str) -> None:
    def breaks(ports: Ports) -> Ports:
        port, method = IN_PROCESS[place](ports)

        def broken(*given: Any) -> Any:
            raise ValueError("a defect")

        setattr(port, method, broken)
        return ports

    sound, disk = Simulation(config(MODES["sync"], updates=1), faultless()), SimulatedDisk()
    with pytest.raises(ValueError, match="a defect"):
        simulate(dataclasses.replace(sound, adapt=breaks), disk=disk)
    ends = [event.payload for event in disk.storage.events(0) if isinstance(event.payload, RunEnded)]
    assert ends == [RunEnded("failed: ValueError: a defect", 0)]
    assert simulate(sound, disk=disk).summary.reason == "completed"


def test_a_run_without_progress_stops_and_names_the_cause() -> None:
    with pytest.raises(HeadraceError, match="groups in a row were abandoned"):
        run(MODES["sync"], of=faultless(grade_failure=1.0))


LIMITS = {
    "turns": {"turns": 1},
    "turn_tokens": {"turn_tokens": 5},
    "episode_tokens": {"episode_tokens": 40, "turn_tokens": 100_000},
    "wall_s": {"wall_s": 0.5},
    "environment_cpu_s": {"environment_cpu_s": 1e-9},
    "malformed_calls": {"malformed_calls": 1},
}


@pytest.mark.parametrize("name", LIMITS)
def test_every_limit_is_reached_and_named_by_the_terminal(name: str) -> None:
    of = faultless(malformed=1.0) if name == "malformed_calls" else faultless()
    roomy = {"turns": 50, "turn_tokens": 100_000, "episode_tokens": 1_000_000, "wall_s": 1e6, "environment_cpu_s": 1e6}
    adapt = with_budget(of, **{**roomy, **LIMITS[name]})
    result = run(MODES["sync"], of=of, adapt=adapt, updates=1)
    terminals = {sealed.terminal for sealed in payloads(result, TranscriptSealed)}
    assert f"truncated:{name}" in terminals
    graded = {verdict.is_scored for verdict in payloads(result, VerdictSealed)}
    assert graded == {True}, "the policy caused it, so it is graded, never unscored"


def test_weights_go_live_once_per_version_and_the_canary_precedes_them() -> None:
    result = run(MODES["one step asynchronous"])
    order = [
        (type(e.payload).__name__, e.payload.policy.version)
        for e in result.events
        if isinstance(e.payload, (CanaryChecked, WeightsCommitted, WeightsActivated))
    ]
    names = ("CanaryChecked", "WeightsCommitted", "WeightsActivated")
    assert order == [(name, version) for version in range(5) for name in names]


def test_a_wrong_configuration_names_value_bound_and_remedy(tmp_path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[schedule]\nmode = 'sync'\ncredit_batches = 1\n")
    with pytest.raises(ConfigError, match=r"mode is sync with credit_batches 1; sync needs exactly 0"):
        load_config(path)
    path.write_text("[schedule]\nbatch_gruops = 1\n")
    with pytest.raises(ConfigError, match="batch_gruops"):
        load_config(path)
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "none.toml")
    path.write_text("")
    assert load_config(path, ("run.updates=3", "policy.policy_id=mine")).policy.policy_id == "mine"
    with pytest.raises(ConfigError, match=r"write section\.key=value"):
        load_config(path, ("updates",))


def test_scenario_faults_are_all_survived() -> None:
    result = run(MODES["one step asynchronous"], of=scenario(), updates=8)
    assert result.summary.reason == "completed"
