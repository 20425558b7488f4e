"""The guard on the real engine and trainer: a step that replaces the policy is never served, a healthy one is."""

from pathlib import Path

import msgspec
import pytest
from runtime.proof import proof_config

from headrace.config import AlgorithmSection
from headrace.records.update import TrainingPaused, UpdateCompleted, WeightsCommitted
from headrace.runtime.inline import run_inline


@pytest.mark.slow
def test_the_guard_pauses_a_step_that_replaces_the_policy_and_no_healthy_one(warm_policy: Path, tmp_path: Path) -> None:
    found = {}
    for learning_rate in (AlgorithmSection().learning_rate, 0.1):
        config = proof_config("sync")
        algorithm = msgspec.structs.replace(config.algorithm, learning_rate=learning_rate)
        evaluation = msgspec.structs.replace(config.evaluation, every_updates=0)
        config = msgspec.structs.replace(config, algorithm=algorithm, evaluation=evaluation)
        result = run_inline(config, warm_policy, tmp_path / str(learning_rate))
        found[learning_rate] = [event.payload for event in result.events], result.summary.reason
    healthy, broken = (found[rate] for rate in sorted(found))
    assert healthy[1] == "completed"
    assert not [item for item in healthy[0] if isinstance(item, TrainingPaused)]
    (paused,) = [item for item in broken[0] if isinstance(item, TrainingPaused)]
    assert (paused.figure, paused.value > paused.bound == 1.0) == ("step KL", True)
    assert broken[1].startswith("paused: step KL")
    # The update was computed, and its version never committed: what is served is what was served before.
    computed = max(item.result.version for item in broken[0] if isinstance(item, UpdateCompleted))
    served = max(item.policy.version for item in broken[0] if isinstance(item, WeightsCommitted))
    assert served == computed - 1 == paused.update - 1
