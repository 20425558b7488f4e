"""Runs the inline proof and prints what two processes have to agree on: `python proof.py POLICY_FOLDER MODE`."""

import sys
import tempfile
from pathlib import Path

from headrace.config import Config, decode_config
from headrace.runtime.inline import run_inline

SCHEDULES = {
    "sync": {"mode": "sync", "credit_batches": 0},
    "colocate_async": {"mode": "colocate_async", "credit_batches": 1, "order": "ordinal"},
    "separate_async": {"mode": "separate_async", "credit_batches": 1, "order": "ordinal"},
}


def proof_config(mode: str) -> Config:
    """Three updates of a small run."""
    return decode_config(
        {
            "run": {"seed": 5, "updates": 3, "deterministic": True},
            "budget": {"turns": 3, "episode_tokens": 200, "turn_tokens": 48, "observation_tokens": 24},
            "tasks": {"kind": "reasoning_gym", "options": {"held_out_per_stratum": 1}},
            "inference": {"kind": "embedded", "options": {"slots": 16, "context": 256, "deterministic": True}},
            "algorithm": {"learning_rate": 1e-3},
            "schedule": {"batch_groups": 4, "group_size": 4, **SCHEDULES[mode]},
            "evaluation": {"every_updates": 3, "temperatures": [1.0]},
        },
        "proof",
    )


def main() -> None:
    policy, mode = Path(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as blobs:
        result = run_inline(proof_config(mode), policy, Path(blobs))
    sys.stdout.write("\n".join([result.summary.head, " ".join(result.weights)]))


if __name__ == "__main__":
    main()
