"""The command line: every command teaches by an example, and refuses with value, bound and remedy."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import main

COMMANDS = (
    "train",
    "check",
    "eval",
    "play",
    "replay",
    "ls",
    "show",
    "verify",
    "repair",
    "prune",
    "compact",
    "report",
    "export",
    "plan",
    "explore",
)
EXAMPLE = str(Path(__file__).parents[1] / "examples" / "arithmetic" / "train.toml")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches_by_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"headrace {command} " in text.partition("examples:")[2] or f"headrace {command}\n" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train", "none.toml"], "none.toml: no such file"),
        (["check", EXAMPLE, "run.updtes=4"], "unknown field `updtes` - at `$.run`; known: seed, updates"),
        (["check", EXAMPLE, "rnu.updates=4"], "unknown field `rnu`; known: run, "),
        (["check", EXAMPLE, "tasks.kind=nothing"], "tasks.kind is 'nothing'; known: python, reasoning_gym"),
        (["play", EXAMPLE, "--task", "0", "tasks.kind=nothing"], "tasks.kind is 'nothing'"),
        (["play", EXAMPLE, "--task", "9999"], "--task is 9999; there are 180 held-out tasks"),
        (["eval", "none@3", EXAMPLE], "no run 'none'"),
        (["eval", "none", EXAMPLE, "--temperature", "11"], "--temperature is 11.0; it must lie in [0, 10]"),
        (["replay", "episode-3"], "names no episode; write purpose.ordinal.member.attempt"),
        (["ls"], "there is no folder runs; runs are made by `headrace train CONFIG`"),
        (["export"], "start one with `headrace train CONFIG`"),
    ],
)
def test_a_refusal_names_value_bound_and_remedy(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments[0] == "replay":
        (tmp_path / "runs" / "one").mkdir(parents=True)
        (tmp_path / "runs" / "one" / "journal.db").touch()
    assert main(arguments) == 1
    assert told in capsys.readouterr().err


def test_an_empty_folder_of_runs_says_how_to_begin(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["ls", "--runs", str(tmp_path)]) == 0
    assert "headrace train CONFIG" in capsys.readouterr().out


@pytest.mark.parametrize(
    "work",
    ["headrace.cli.main(['ls', '--runs', '/nowhere'])"]
    + [f"import headrace.runtime.{name}" for name in ("training", "checking", "evaluating", "playing", "replaying")],
)
def test_only_workers_load_a_tensor_library(work: str) -> None:
    code = f"import sys, headrace.cli; {work}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"


def test_the_readme_shows_every_command_and_no_other() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    shown = {line.split()[1] for line in readme.splitlines() if line.startswith("headrace ")}
    assert shown == set(COMMANDS)


def test_an_unknown_option_is_wrong_usage_wherever_it_stands() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", EXAMPLE, "--bogus=1", "run.seed=3"])
    assert ended.value.code == 2
