"""A family of the renderers package through a whole check: real sandbox, real grader, every transcript sealed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from optional_case import needs

pytestmark = [pytest.mark.slow, *needs("renderers", requirements="requirements/renderers.txt")]

QWEN3 = Path(__file__).parent.parent / "fixtures" / "qwen3"
ARITHMETIC = Path(__file__).parent.parent.parent / "examples" / "arithmetic" / "train.toml"


def test_qwen3_plays_the_arithmetic_tasks_and_nothing_but_the_policy_fails(tmp_path: Path) -> None:
    for file in QWEN3.iterdir():
        shutil.copy(file, tmp_path)
    shape = {
        "model_type": "qwen3",
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 40960,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    overrides = (
        "harness.kind=renderers",
        'harness.options={ family = "qwen3" }',
        "policy.kind=folder",
        f'policy.options={{ path = "{tmp_path}" }}',
        "budget.episode_tokens=4096",
        "inference.options={ context = 4096, slots = 4 }",
        "trainer.options={ micro_batch_tokens = 512 }",
        "budget.turn_tokens=512",
        "tasks.options={ held_out_per_stratum = 1 }",
    )
    argv = [sys.executable, "-m", "headrace.cli", "check", str(ARITHMETIC), *overrides, "--train", "2"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sound" in done.stdout
