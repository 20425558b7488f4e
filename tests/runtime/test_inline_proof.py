"""The real engine and trainer under virtual time: bit-exact across processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runtime.proof import SCHEDULES, proof_config

from headrace.records.batch import BatchPlanned
from headrace.records.update import BatchScored
from headrace.runtime.inline import InlineResult, run_inline

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(warm_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, InlineResult]:
    """A run of each mode in this process."""
    return {mode: run_inline(proof_config(mode), warm_policy, tmp_path_factory.mktemp(mode)) for mode in SCHEDULES}


def test_two_processes_agree_on_every_event_and_every_weight(
    warm_policy: Path, results: dict[str, InlineResult]
) -> None:
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, str(TESTS / "runtime" / "proof.py"), str(warm_policy)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=True,
    )
    told = {mode: (head, *weights) for mode, head, *weights in map(str.split, done.stdout.splitlines())}
    assert told == {mode: (result.summary.head, *result.weights) for mode, result in results.items()}
    assert {len(set(words)) for words in told.values()} == {5}, "a head, and four versions of which none is another"
    assert all(len(words[0]) == 64 for words in told.values())


def test_engine_and_trainer_agree_on_every_token_of_every_version(results: dict[str, InlineResult]) -> None:
    scored = [event.payload for event in results["sync"].events if isinstance(event.payload, BatchScored)]
    assert len(scored) == 3
    assert max(item.log_ratio_abs_max for item in scored) < 1e-4


def test_engine_and_trainer_agree_on_every_fresh_token_and_lag_is_reported(warm_policy: Path, tmp_path: Path) -> None:
    result = run_inline(proof_config("separate_async"), warm_policy, tmp_path, shuffle_seed=3)
    scored = [event.payload for event in result.events if isinstance(event.payload, BatchScored)]
    assert all(item.mismatch is None or item.mismatch < 1e-4 for item in scored)
    assert scored[0].mismatch is not None
    lags = [event.payload.oldest_lag for event in result.events if isinstance(event.payload, BatchPlanned)]
    assert lags[0] == 0
    assert max(lags) == 1
