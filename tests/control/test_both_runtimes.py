"""The same orchestrator on simulated workers and on real child processes, of ours or with vLLM, keeps the same promises."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from control.local_runs import verified_run
from control.simulated_runs import faultless, run
from vllm_case import NEEDS_VLLM, VLLM_PYTHON
from warm_policy import EASY_TASKS

from headrace.config import Config, decode_config
from headrace.records.batch import BatchPlanned, GroupAdmitted
from headrace.records.evaluation import EvaluationCompleted
from headrace.records.events import Event
from headrace.records.run import RunEnded
from headrace.records.trajectory import TranscriptSealed
from headrace.records.update import BatchScored, CanaryChecked, WeightsActivated, WeightsCommitted

MODES: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync", "credit_batches": 0},
    "taking turns": {"mode": "colocate_async", "credit_batches": 1},
    "one step asynchronous": {"mode": "separate_async", "credit_batches": 1},
}
UPDATES = 3
BATCH_GROUPS = 2
MARKS = {"simulated": (), "embedded": (pytest.mark.slow,), "vllm": NEEDS_VLLM}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    mode: str
    events: tuple[Event, ...]

    def of(self, kind: type) -> list[Any]:
        return [event.payload for event in self.events if isinstance(event.payload, kind)]


def local_config(mode: str, policy: Path, engine: str) -> Config:
    options = {"python": str(VLLM_PYTHON)} if engine == "vllm" else {}
    return decode_config(
        {
            "run": {"seed": 11, "updates": UPDATES},
            "budget": {"turns": 3, "episode_tokens": 200, "turn_tokens": 40, "observation_tokens": 24},
            "tasks": EASY_TASKS,
            "policy": {"kind": "folder", "options": {"path": str(policy)}},
            "inference": {"kind": engine, "options": {"slots": 8, "context": 256, **options}},
            "schedule": {"batch_groups": BATCH_GROUPS, "group_size": 4, **MODES[mode]},
            "evaluation": {"every_updates": UPDATES, "temperatures": [1.0]},
        },
        "local test",
    )


def run_locally(mode: str, policy: Path, folder: Path, engine: str) -> Outcome:
    """A run on real children; its stored journal is verified."""
    return Outcome(mode, verified_run(local_config(mode, policy, engine), folder))


def run_simulated(mode: str) -> Outcome:
    result = run(
        {**MODES[mode], "batch_groups": BATCH_GROUPS},
        of=faultless(),
        updates=UPDATES,
        num_held_out=5,
        evaluation={"every_updates": UPDATES, "temperatures": [1.0]},
    )
    return Outcome(mode, result.events)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((runtime, mode), id=f"{runtime}, {mode}", marks=MARKS[runtime])
        for runtime in MARKS
        for mode in MODES
    ],
)
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    runtime, mode = request.param
    if runtime == "simulated":
        return run_simulated(mode)
    warm_policy: Callable[..., Path] | Path = request.getfixturevalue("warm_policy")
    assert isinstance(warm_policy, Path)
    return run_locally(mode, warm_policy, tmp_path_factory.mktemp("runs") / "run", runtime)


def test_it_completes_and_says_so_last(outcome: Outcome) -> None:
    assert outcome.events[-1].payload == RunEnded("completed", UPDATES)


def test_every_version_is_checked_then_committed_then_activated(outcome: Outcome) -> None:
    order = [
        (type(event.payload).__name__, event.payload.policy.version)
        for event in outcome.events
        if isinstance(event.payload, (CanaryChecked, WeightsCommitted, WeightsActivated))
    ]
    names = ("CanaryChecked", "WeightsCommitted", "WeightsActivated")
    assert order == [(name, version) for version in range(UPDATES + 1) for name in names]
    assert all(canary.max_abs_difference < 1e-4 for canary in outcome.of(CanaryChecked))


def test_lag_is_zero_when_synchronous_and_at_most_what_was_waited_for_otherwise(outcome: Outcome) -> None:
    lags = [plan.oldest_lag for plan in outcome.of(BatchPlanned)]
    assert len(lags) == UPDATES
    if outcome.mode == "sync":
        assert lags == [0] * UPDATES
    else:
        assert max(lags) >= 1


def test_outstanding_groups_reach_the_credit_and_never_exceed_it(outcome: Outcome) -> None:
    bound = BATCH_GROUPS if outcome.mode == "sync" else 2 * BATCH_GROUPS
    assert max(admitted.outstanding for admitted in outcome.of(GroupAdmitted)) == bound


def test_engine_and_trainer_agree_on_fresh_tokens(outcome: Outcome) -> None:
    mismatches = [scored.mismatch for scored in outcome.of(BatchScored) if scored.mismatch is not None]
    assert mismatches
    assert max(mismatches) < 1e-4


def test_evaluation_uses_one_version_per_round(outcome: Outcome) -> None:
    rounds = outcome.of(EvaluationCompleted)
    assert sorted(item.policy.version for item in rounds) == [0, UPDATES]
    assert all(item.graded > 0 and item.unscored == 0 for item in rounds)
    versions = {
        event.payload.versions
        for event in outcome.events
        if isinstance(event.payload, TranscriptSealed) and event.key.startswith("eval")
    }
    assert versions == {(0,), (UPDATES,)}
