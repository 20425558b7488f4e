"""Policies that end work and a credit that is found, on real child processes; the stored journal is verified."""

from pathlib import Path

import pytest
from control.local_runs import verified_run

from headrace.config import decode_config
from headrace.records.action import ActionIntended
from headrace.records.batch import BatchPlanned, CapacityDecided, GroupRejected
from headrace.records.task import TaskDrawn

UPDATES = 5
CALLS_PER_S = 100.0


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["cancel", "requeue"])
def test_a_live_run_accounts_for_all_work_that_it_ends_while_it_finds_its_credit_and_keeps_to_a_rate_limit(
    policy: str, warm_policy: Path, tmp_path: Path
) -> None:
    config = decode_config(
        {
            "run": {"seed": 11, "updates": UPDATES},
            "budget": {"turns": 3, "episode_tokens": 200, "turn_tokens": 48, "observation_tokens": 24},
            "tasks": {"kind": "reasoning_gym", "options": {"held_out_per_stratum": 1}},
            "policy": {"kind": "folder", "options": {"path": str(warm_policy)}},
            "inference": {"kind": "embedded", "options": {"slots": 4, "context": 256}},
            "environment": {"kind": "sandbox", "calls_per_s": CALLS_PER_S},
            "schedule": {
                "mode": "separate_async",
                "batch_groups": 3,
                "group_size": 4,
                "staleness": policy,
                "max_lag": 0,
                "start_credit_batches": 2,
                "max_credit_batches": 3,
            },
            "evaluation": {"every_updates": 0},
        },
        "live policies",
    )
    events = verified_run(config, tmp_path / "run")
    payloads = [event.payload for event in events]
    called = [(event.t_ns, event.payload.wait_s) for event in events if isinstance(event.payload, ActionIntended)]
    assert sum(wait_s for _, wait_s in called) > 0.0
    # The first call may be noted late, and no bound says how late; half of the time is far from chance.
    assert (called[-1][0] - called[0][0]) / 1e9 > 0.5 * (len(called) - 1) / CALLS_PER_S
    assert all(item.oldest_lag == 0 for item in payloads if isinstance(item, BatchPlanned))
    assert [item.version for item in payloads if isinstance(item, CapacityDecided)] == list(range(1, UPDATES + 1))
    stale = [item for item in payloads if isinstance(item, GroupRejected) and item.state == "filtered"]
    again = [item for item in payloads if isinstance(item, TaskDrawn) and item.requeued_from is not None]
    assert stale
    assert all(item.is_requeued == (policy == "requeue") for item in stale)
    assert 0 <= sum(item.is_requeued for item in stale) - len(again) <= len(stale)
    if policy == "requeue":
        assert again
