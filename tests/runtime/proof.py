"""Runs the inline proof in every mode and prints what two processes have to agree on: `python proof.py POLICY_FOLDER`."""

import sys
import tempfile
from pathlib import Path

from warm_policy import EASY_TASKS

from headrace.config import Config, decode_config
from headrace.runtime.inline import run_inline

SCHEDULES = {
    "sync": {"mode": "sync", "credit_batches": 0},
    "colocate_async": {"mode": "colocate_async", "credit_batches": 1, "order": "ordinal"},
    "separate_async": {"mode": "separate_async", "credit_batches": 1, "order": "ordinal"},
}


def proof_config(mode: str) -> Config:
    """Three updates of a small run, each of which moves the weights."""
    return decode_config(
        {
            "run": {"seed": 5, "updates": 3, "deterministic": True},
            "budget": {"turns": 3, "episode_tokens": 200, "turn_tokens": 40, "observation_tokens": 24},
            "tasks": EASY_TASKS,
            "inference": {"kind": "embedded", "options": {"slots": 8, "context": 256, "deterministic": True}},
            "algorithm": {"learning_rate": 1e-3},
            "schedule": {"batch_groups": 2, "group_size": 4, **SCHEDULES[mode]},
            "evaluation": {"every_updates": 3, "temperatures": [1.0]},
        },
        "proof",
    )


def main() -> None:
    for mode in SCHEDULES:
        with tempfile.TemporaryDirectory() as blobs:
            result = run_inline(proof_config(mode), Path(sys.argv[1]), Path(blobs))
        sys.stdout.write(f"{mode} {result.summary.head} {' '.join(result.weights)}\n")


if __name__ == "__main__":
    main()
