"""The tutorial's blocks are files. Its commands run as they stand, `check` on fewer tasks; `train` and `replay` beside."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tutorial_blocks import blocks

MAX_LINES = 20


def headrace(folder: Path, *arguments: str, typed: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", *arguments],
        cwd=folder,
        input=typed,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_part_of_the_tutorial_is_longer_than_twenty_lines() -> None:
    for text in blocks("python"):
        for part in re.split(r"\n\n\n", text):
            lines = [
                line for line in part.splitlines() if line.strip() and not line.startswith(("#", "from", "import"))
            ]
            assert len(lines) <= MAX_LINES, part


def test_every_command_of_the_tutorial_is_tested() -> None:
    told = [line.removeprefix("$ headrace ") for text in blocks("console") for line in text.splitlines()]
    assert told == [
        "check shop.toml",
        "play shop.toml --task 1",
        "train shop.toml",
        "replay train.0.0.0",
        "check basket.toml",
    ]


@pytest.mark.slow
def test_the_tutorials_parts_are_sound_and_can_be_played_by_hand(shop: Path) -> None:
    for name in ("shop.toml", "basket.toml"):
        assert "sound: train on it" in headrace(shop, "check", name, "--train", "2")
    played = headrace(shop, "play", "shop.toml", "--task", "1", typed='price {"item": "gold"}\n0\n')
    assert "error: there is no gold" in played
    assert "reward 0" in played


@pytest.mark.slow
def test_a_person_whose_tool_raises_reads_where_and_is_not_asked_again(shop: Path) -> None:
    text = (shop / "shop.py").read_text(encoding="utf-8")
    (shop / "broken.py").write_text(text.replace("prices = {", "prices = 1 / 0 or {", 1), encoding="utf-8")
    told = (shop / "shop.toml").read_text(encoding="utf-8")
    changed = told.replace('"shop.py", name = "price"', '"broken.py", name = "price"')
    (shop / "broken.toml").write_text(changed, encoding="utf-8")
    played = headrace(shop, "play", "broken.toml", typed='price {"item": "tea"}\n')
    assert played.count("> ") == 1
    assert "not scored: infra: environment: ZeroDivisionError" in played
    assert "broken.py:" in played
