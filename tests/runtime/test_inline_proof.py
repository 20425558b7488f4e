"""The real engine and trainer under virtual time: bit-exact across processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runtime.proof import SCHEDULES, proof_config

from headrace.records.batch import BatchPlanned
from headrace.records.update import BatchScored
from headrace.runtime.inline import run_inline

PROOF = Path(__file__).parent / "proof.py"


def proof_in_another_process(policy: Path, mode: str, hash_seed: str) -> tuple[str, list[str]]:
    done = subprocess.run(
        [sys.executable, str(PROOF), str(policy), mode],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    head, weights = done.stdout.splitlines()
    return head, weights.split()


@pytest.mark.slow
@pytest.mark.parametrize("mode", SCHEDULES)
def test_two_processes_agree_on_every_event_and_every_weight(warm_policy: Path, mode: str) -> None:
    first = proof_in_another_process(warm_policy, mode, "1")
    assert first == proof_in_another_process(warm_policy, mode, "2")
    assert len(first[0]) == 64
    assert len(first[1]) == 4
    assert len(set(first[1])) >= 3, "a batch whose rewards are all equal changes nothing; the others do"


@pytest.mark.slow
def test_engine_and_trainer_agree_on_every_token_of_every_version(warm_policy: Path, tmp_path: Path) -> None:
    result = run_inline(proof_config("sync"), warm_policy, tmp_path)
    scored = [event.payload for event in result.events if isinstance(event.payload, BatchScored)]
    assert len(scored) == 3
    assert max(item.log_ratio_abs_max for item in scored) < 1e-4


@pytest.mark.slow
def test_engine_and_trainer_agree_on_every_fresh_token_and_lag_is_reported(warm_policy: Path, tmp_path: Path) -> None:
    result = run_inline(proof_config("separate_async"), warm_policy, tmp_path, shuffle_seed=3)
    scored = [event.payload for event in result.events if isinstance(event.payload, BatchScored)]
    assert all(item.mismatch is None or item.mismatch < 1e-4 for item in scored)
    assert scored[0].mismatch is not None
    lags = [event.payload.oldest_lag for event in result.events if isinstance(event.payload, BatchPlanned)]
    assert lags[0] == 0
    assert max(lags) == 1
