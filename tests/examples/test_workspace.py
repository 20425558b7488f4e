"""The example of tasks on files, as its own comment says to run it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_check_finds_the_tasks_sound() -> None:
    command = [sys.executable, "-m", "headrace.cli", "check", "examples/workspace/check.toml", "--train", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sound" in done.stdout
