"""A small policy that sometimes calls the calculator and sometimes is right: rewards of its groups differ."""

from pathlib import Path

import msgspec

from headrace.config import decode_config
from headrace.runtime.workers.settings import WarmStartJob
from headrace.runtime.workers.warm_start import run
from headrace.tasks.families import DEFAULT_FAMILIES

MODEL = {
    "model_type": "qwen2",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}

EASY_TASKS = {
    "kind": "reasoning_gym",
    "options": {
        "families": [
            msgspec.to_builtins(msgspec.structs.replace(family, levels={"easy": family.levels["easy"]}))
            for family in DEFAULT_FAMILIES[:4]
        ],
        "held_out_per_stratum": 1,
    },
}
"""Tasks on which rewards differ within almost every group, so that a small batch moves the weights; four are held out."""


def make_warm_policy(folder: Path, steps: int = 140) -> Path:
    """The folder, made in a few seconds on one core."""
    config = decode_config(
        {
            "run": {"seed": 3},
            "policy": {
                "kind": "warm_start",
                "options": {
                    "model": MODEL,
                    "demonstrations": 2240,
                    "sloppiness": {"skips_tool": 0.15, "malformed_call": 0.05, "chatty_final": 0.3},
                    "settings": {
                        "steps": steps,
                        "batch_sequences": 16,
                        "learning_rate": 1e-3,
                        "initialization": "induction",
                    },
                },
            },
            "environment": {"kind": "sandbox", "options": {"tools": ["calculator"]}},
        },
        "warm policy",
    )
    run(WarmStartJob(config, str(folder / "policy")), lambda _: None)
    return folder / "policy"
