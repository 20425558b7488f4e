"""`headrace check` finds what would spoil a run: each fault is planted and named."""

from pathlib import Path

import pytest

from headrace.cli import main
from headrace.runtime.walls import can_be_walled

pytestmark = pytest.mark.slow

PARTS = '''
from headrace.extend import Call, Problem, ToolError


def double(number: int) -> int:
    """Doubles a number."""
    if number == 3:
        {fault}
    return 2 * number


def numbers() -> list[Problem]:
    return [Problem(f"Double {{n}}.", {answer}, oracle={oracle}) for n in (2, 3, 4)]


def grade(answer: str, problem: Problem) -> {returns}:
    return {grade}
'''
SOUND = {
    "fault": "pass",
    "answer": "2 * n",
    "oracle": '[Call("double", number=n), str(2 * n)]',
    "returns": "float | None",
    "grade": "float(answer == str(problem.answer))",
}
CONFIG = """
[tasks]
kind = "python"
options = { file = "parts.py", name = "numbers", held_out = 1 }

[environment]
kind = "python"
options = { file = "parts.py", name = "double", effect = "pure" }

[grader]
kind = "python"
options = { file = "parts.py", name = "grade" }
"""


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, "sound: train on it"),
        ({"fault": 'raise RuntimeError("the table is gone")'}, "oracle: 1 infrastructure failures"),
        ({"fault": 'raise RuntimeError("the table is gone")'}, "RuntimeError: the table is gone"),
        ({"answer": "2 * n + 1"}, "oracle: 0 of 1 on numbers"),
        ({"grade": "1.0"}, "silent: full marks on 3 of 3 tasks"),
        ({"grade": "1.0"}, "raise --chance if tasks can be guessed"),
        ({"grade": "None"}, "oracle: 3 episodes without a score"),
        ({"grade": "1 / 0"}, "ZeroDivisionError"),
        ({"grade": "2.0"}, "it must be a finite number in [0, 1]"),
        ({"oracle": "None", "answer": "None"}, "oracle: 3 of 3 tasks have none"),
    ],
)
def test_a_planted_fault_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, str], told: str
) -> None:
    (tmp_path / "parts.py").write_text(PARTS.format(**{**SOUND, **change}), encoding="utf-8")
    (tmp_path / "parts.toml").write_text(CONFIG, encoding="utf-8")
    status = main(["check", str(tmp_path / "parts.toml")])
    assert told in capsys.readouterr().out
    assert status == (1 if change else 0)


@pytest.mark.skipif(not can_be_walled(), reason="bubblewrap does not work here")
def test_a_grader_reads_no_file_that_it_does_not_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = tmp_path / "prices.txt"
    prices.write_text("1.0", encoding="utf-8")
    grade = f'float(open("{prices}").read()) * (answer == str(problem.answer))'
    (tmp_path / "parts.py").write_text(PARTS.format(**{**SOUND, "grade": grade}), encoding="utf-8")
    (tmp_path / "parts.toml").write_text(CONFIG, encoding="utf-8")
    assert main(["check", str(tmp_path / "parts.toml")]) == 1
    assert "oracle: 3 episodes without a score" in capsys.readouterr().out
    named = CONFIG.replace('name = "grade" }', 'name = "grade", sources = ["prices.txt"] }')
    (tmp_path / "parts.toml").write_text(named, encoding="utf-8")
    assert main(["check", str(tmp_path / "parts.toml")]) == 0
