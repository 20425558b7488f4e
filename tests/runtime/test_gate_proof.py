"""The real engine and trainer under virtual time: one lag, two learning rates, two decisions of the gate."""

from pathlib import Path

import msgspec
import pytest
from runtime.proof import proof_config

from headrace.config import Config
from headrace.records.batch import BatchPlanned
from headrace.records.gate import BatchGated, Gate
from headrace.records.update import BatchScored, WeightsCommitted
from headrace.runtime.inline import run_inline


def gated_config(learning_rate: float) -> Config:
    config = proof_config("separate_async")
    algorithm = msgspec.structs.replace(
        config.algorithm, learning_rate=learning_rate, gate=Gate(action="mask", max_kl=2e-3)
    )
    evaluation = msgspec.structs.replace(config.evaluation, every_updates=0)
    return msgspec.structs.replace(config, algorithm=algorithm, evaluation=evaluation)


@pytest.mark.slow
def test_at_equal_lag_ten_times_the_learning_rate_is_gated_and_the_lag_filter_sees_no_difference(
    warm_policy: Path, tmp_path: Path
) -> None:
    found = {}
    for learning_rate in (1e-4, 1e-3):
        result = run_inline(gated_config(learning_rate), warm_policy, tmp_path / str(learning_rate))

        def of(kind, result=result):
            return [event.payload for event in result.events if isinstance(event.payload, kind)]

        found[learning_rate] = of(BatchPlanned), of(BatchGated), of(BatchScored), of(WeightsCommitted)
    slow, fast = found[1e-4], found[1e-3]
    assert [item.oldest_lag for item in slow[0]] == [item.oldest_lag for item in fast[0]] == [0, 1, 1]
    assert {item.decision for item in slow[1]} == {"pass"}
    assert fast[1][0].decision == "pass"  # nothing is stale yet
    assert fast[1][2].decision == "mask"
    assert "KL k3" in {item.figure for item in fast[1][2].breaches}
    assert fast[2][2].figures.kl_k3 > 30 * slow[2][2].figures.kl_k3
    # Two small updates are not two large ones: every publication says how far the policy moved.
    moved = [[item.kl_to_previous for item in run[3][1:]] for run in (slow, fast)]
    assert None not in (*moved[0], *moved[1])
    assert max(moved[0]) < max(moved[1]) / 30
