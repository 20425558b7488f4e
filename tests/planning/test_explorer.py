"""The explorer: what a seed stands for, what a sweep proves, and how small a failure gets."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.cli import main
from headrace.control.collecting import Collector
from headrace.control.leases import CountingLeases
from headrace.errors import ConfigError
from headrace.planning.explorer.branches import BRANCHES
from headrace.planning.explorer.cases import WORLDS, Case, case_of, fault_names, parse_case, point_classes
from headrace.planning.explorer.judging import run_case
from headrace.planning.explorer.shrinking import shrink
from headrace.planning.explorer.sweep import COVERAGE_SEEDS, Sweep, expected_points, explore, run_seeds
from headrace.planning.explorer.text import render_sweep, replay_command
from headrace.simulation.faults import ENDINGS, Fault, FaultKind

ALL = frozenset(fault_names())
ROOT = Path(__file__).parents[2]


def forget_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug of a process that begins its fencing tokens again."""
    begin = CountingLeases.__init__
    monkeypatch.setattr(CountingLeases, "__init__", lambda self, *_: begin(self))


def test_a_sweep_over_every_world_breaks_no_law_and_gives_each_log_twice() -> None:
    sweep = explore(0, 42, ALL, workers=1)
    assert sweep.is_sound, render_sweep(sweep)
    assert (sweep.run_twice, sweep.failed) == (3, 0)
    assert sum(sweep.lives.values()) == 42
    assert sweep.lives.keys() - {1}, "some runs took several processes"


def test_a_seed_stands_for_the_same_case_whoever_asks() -> None:
    assert [case_of(seed, ALL) for seed in range(60)] == [case_of(seed, ALL) for seed in range(60)]
    cases = [case_of(seed, ALL) for seed in range(60)]
    assert {case.world for case in cases} == set(WORLDS)
    assert all(case == parse_case(case.to_json()) for case in cases)
    code = (
        "from headrace.planning.explorer.cases import *; from headrace.planning.explorer.judging import run_case\n"
        "print(run_case(case_of(7, frozenset(fault_names()))).head)"
    )
    other = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == run_case(case_of(7, ALL)).head


def test_consecutive_seeds_walk_through_every_kill_point() -> None:
    world = next(iter(WORLDS))
    kills = [
        case_of(seed * len(WORLDS), frozenset({"kill"})).faults[0] for seed in range(2 * len(point_classes(world)))
    ]
    assert {(k.worker, k.method, k.kind) for k in kills} == {
        (points[0].worker, points[0].method, points[0].kind) for points in point_classes(world)
    }
    assert max(kill.call for kill in kills) == 2


def test_only_the_kinds_of_faults_that_were_asked_for_strike() -> None:
    for name, kinds in (("kill", ENDINGS), ("lose", {FaultKind.LOSE}), ("disk", {FaultKind.LOSE, FaultKind.REJECT})):
        faults = [fault for seed in range(40) for fault in case_of(seed, frozenset({name})).faults]
        assert faults
        assert {fault.kind for fault in faults} <= kinds


def test_a_bug_is_found_shrunk_and_replayed_by_the_command_that_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    forget_the_tokens(monkeypatch)
    status = main(["explore", "--seeds", "36", "--workers", "1", "--json", str(tmp_path / "sweep.json")])
    printed = capsys.readouterr().out
    assert status == 1
    stored = msgspec.json.decode((tmp_path / "sweep.json").read_bytes())
    assert stored["is_sound"] is False
    assert stored["failed"] >= 3
    smallest = msgspec.convert(stored["failures"][0]["case"], Case)
    assert len(smallest.faults) == 1
    assert smallest.faults[0].kind in ENDINGS
    assert (smallest.batch_groups, smallest.group_size, smallest.shuffle) == (1, 2, None)
    command = stored["replay"][0]
    assert f"  {command}\n" in printed + "\n"
    assert main(["explore", "--case", smallest.to_json()]) == 1
    assert "broken: C3" in capsys.readouterr().out
    monkeypatch.undo()
    assert main(["explore", "--case", smallest.to_json()]) == 0
    assert "every law holds" in capsys.readouterr().out


def test_a_stuck_run_is_a_finding_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(self: Collector, group: Any) -> None:
        group.ready_rank = 0

    monkeypatch.setattr(Collector, "_finish", silent)
    found = run_case(Case(seed=1, world="sync"))
    assert {violation.law for violation in found.violations} == {"C13"}
    assert found.lives[0].startswith("stuck: Deadlock")


def test_shrinking_keeps_the_law_and_drops_what_it_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_the_tokens(monkeypatch)
    faults = (
        Fault(worker="environment", method="execute", kind=FaultKind.LOSE, call=2, times=2),
        Fault(worker="journal", method="weights_committed", kind=FaultKind.KILL_AFTER, call=2),
        Fault(worker="grader", method="grade", kind=FaultKind.DELAY, call=1, delay_s=0.5),
    )
    found = run_case(Case(seed=3, world="sync", faults=faults, shuffle=5))
    assert found.violations
    steps: list[int] = []
    smallest = shrink(found, on_step=lambda _, runs: steps.append(runs))
    assert smallest.violations
    assert len(smallest.case.faults) == 1
    assert smallest.case.shuffle is None
    assert steps == list(range(1, len(steps) + 1))


def test_a_large_sweep_that_never_was_somewhere_fails() -> None:
    tally = run_seeds(range(4), frozenset({"kill"}))
    part = explore(0, 4, frozenset({"kill"}), workers=1)
    assert part.uncovered == (), "four seeds have no claim to have been everywhere"
    missing = expected_points() - tally.points.keys()
    assert len(missing) > 50
    whole = msgspec.structs.replace(part, seeds=COVERAGE_SEEDS)
    assert "never:" in render_sweep(whole)


def test_a_broken_environment_that_no_attempt_is_left_to_try_is_tried_by_a_new_group() -> None:
    crash = '{"worker":"environment","kind":"crash","method":"execute","call":10,"delay_s":0.07}'
    found = run_case(parse_case(f'{{"seed":1364,"world":"external","faults":[{crash}]}}'))
    assert found.violations == ()
    assert found.lives == ("completed",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "--seeds is 0"),
        (["--faults", "kill,meteor"], "--faults names meteor; there are kill, pair"),
        (["--workers", "0"], "--workers is 0"),
        (["--first-seed", "-1"], "--first-seed -1"),
    ],
)
def test_wrong_usage_is_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_case_that_is_none_is_refused() -> None:
    for text, message in (("{", "--case:"), ('{"seed":1,"world":"moon"}', "no world is called 'moon'")):
        with pytest.raises(ConfigError, match=message):
            parse_case(text)


def test_the_command_quotes_the_case_for_a_shell() -> None:
    case = Case(seed=1, world="sync", faults=(Fault(worker="journal", method="commit", kind=FaultKind.KILL, call=3),))
    command = replay_command(case)
    shell = subprocess.run(
        ["sh", "-c", command.replace("headrace explore --case", "printf %s")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert parse_case(shell.stdout) == case


@pytest.mark.slow
def test_two_hundred_seeds_cost_less_than_a_minute_and_the_number_of_processes_changes_nothing() -> None:
    one, two = explore(20_000, 200, ALL, workers=1), explore(20_000, 200, ALL, workers=2)
    assert one.is_sound, render_sweep(one)
    assert one.cpu_s < 60
    assert _facts(one) == _facts(two)
    assert all(one.branches[name] for name in ("attempt in flight, gone on with", "INTENT without COMMIT")), BRANCHES


def _facts(sweep: Sweep) -> tuple[Any, ...]:
    return sweep.points, sweep.branches, sweep.kinds, sweep.lives, sweep.failed
