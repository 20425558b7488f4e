import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from optional_case import needs

from headrace.extend import Problem, ToolError

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "bfcl"
CATEGORIES = ("base", "miss_func", "miss_param", "long_context")

pytestmark = needs("bfcl_eval", requirements="examples/bfcl/requirements.txt")


@pytest.fixture(scope="module")
def parts() -> ModuleType:
    found = importlib.util.spec_from_file_location("bfcl_parts", EXAMPLE / "parts.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def play(parts: ModuleType, problem: Problem, skip: int | None = None) -> bytes:
    """The artifact of the oracle's calls, without call `skip`."""
    desk = parts.Desk(problem)
    calls = [call for turn in problem.oracle or () for call in turn.calls]
    for place, call in enumerate(calls):
        if place != skip:
            arguments: dict[str, Any] = json.loads(json.dumps(call.arguments))
            getattr(desk, call.tool)(**arguments)
    assert desk.claim("done") or skip is not None
    return json.dumps(desk.artifact()).encode()


@pytest.mark.slow
@pytest.mark.parametrize("category", CATEGORIES)
def test_the_reference_reaches_full_marks_on_every_task_and_silence_on_none(parts: ModuleType, category: str) -> None:
    problems = getattr(parts, f"multi_turn_{category}")()
    assert len({problem.question for problem in problems}) == len(problems) == 200
    for problem in problems:
        assert parts.replayed(problem, play(parts, problem)) == {"success": 1.0}, problem.data["id"]
        silence = json.dumps({"turns": [[] for _ in problem.answer]}).encode()
        assert parts.replayed(problem, silence) == {"success": 0.0}, problem.data["id"]


def test_a_call_left_out_is_noticed_and_a_replay_leaves_nothing_behind(parts: ModuleType) -> None:
    problem = parts.multi_turn_base()[0]
    whole, without = play(parts, problem), play(parts, problem, skip=1)
    assert [parts.replayed(problem, artifact)["success"] for artifact in (whole, without, whole)] == [1.0, 0.0, 1.0]
    assert not [name for name in vars(parts.multi_turn_utils) if name.endswith("_instance")]


def test_neither_answers_nor_calls_of_the_reference_are_in_a_task(parts: ModuleType) -> None:
    for problem in parts.multi_turn_base():
        public = problem.question + json.dumps(problem.data)
        for calls in problem.answer:
            assert not [call for call in calls if "=" in call and call in public]


def test_a_function_that_is_held_back_appears_with_its_request(parts: ModuleType) -> None:
    problem = next(p for p in parts.multi_turn_miss_func() if p.data["held_back"].get("3") == ["sort"])
    desk = parts.Desk(problem)
    assert "- sort(" not in problem.question
    with pytest.raises(ToolError, match="no function 'sort'"):
        desk.call("sort", {"file_name": "final_report.pdf"})
    shown = [desk.next_request() for _ in range(3)]
    assert "- sort(file_name: string)" in shown[-1]
    assert "no further" not in desk.call("sort", {"file_name": "final_report.pdf"})


def test_what_a_function_refuses_is_shown_and_what_is_no_function_is_a_tool_error(parts: ModuleType) -> None:
    desk = parts.Desk(parts.multi_turn_base()[0])
    assert desk.call("cd", {"folder": 7, "speed": 1}).startswith("Error during execution")
    for function, arguments in (("_load_scenario", {}), ("cp", {}), ("cd", {"a b": 1}), ("cd", {"lambda": 1})):
        with pytest.raises(ToolError):
            desk.call(function, arguments)


@pytest.mark.slow
def test_the_check_command_finds_the_tasks_sound() -> None:
    argv = [
        sys.executable,
        "-m",
        "headrace.cli",
        "check",
        str(EXAMPLE / "check.toml"),
        "--held-out",
        "6",
        "--train",
        "2",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sound" in done.stdout
