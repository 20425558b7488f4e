"""Rejected or lost, at every boundary: who says so, and what the run then does; `docs/recovery.md` has the same table."""

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import pytest
from simulation import fault_rows

import headrace.ports
from headrace.simulation.faults import FaultKind

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "recovery.md"
PORTS = {
    name: port
    for name, port in vars(headrace.ports).items()
    if inspect.isclass(port) and getattr(port, "_is_protocol", 0)
}
KINDS = {
    "rejected": {FaultKind.REJECT},
    "lost": {FaultKind.LOSE, FaultKind.CRASH, FaultKind.DELAY},
}
"""What is injected where a port rejects, and where nobody knows."""


@dataclasses.dataclass(frozen=True)
class Shown:
    """Tests of an outcome.

    Attributes:
        raised: in which the real adapter gives the outcome.
        handled: in which the run meets it: rows of the fault model that inject it, and other tests.
    """

    raised: tuple[str, ...]
    handled: tuple[str, ...]


ROWS: dict[tuple[str, str], Shown] = {
    ("Inference", "rejected"): Shown(
        (
            "contracts/test_inference.py::test_a_request_that_is_still_running_is_rejected_a_second_time",
            "contracts/test_inference.py::test_a_version_is_never_reused_for_other_weights",
        ),
        (
            "control/test_orchestrator.py::test_a_refused_turn_is_an_infrastructure_failure_and_a_new_attempt_not_a_zero",
        ),
    ),
    ("Inference", "lost"): Shown(
        (
            "contracts/test_inference.py::test_a_turn_beyond_its_deadline_is_lost_and_its_id_is_free_again",
            "inference/test_engine_serving.py::test_a_child_that_dies_loses_every_running_request",
        ),
        ("F09", "F10", "F26"),
    ),
    ("Environment", "rejected"): Shown(
        (
            "environments/test_sandbox.py::test_an_interpreter_killed_from_outside_between_two_calls_is_lost_as_well",
            "extend/test_python_environment.py::test_state_that_a_crash_took_is_lost_and_never_run_again",
        ),
        ("F07", "F13", "F20"),
    ),
    ("Environment", "lost"): Shown(
        (
            "environments/test_sandbox.py::test_an_interpreter_killed_from_outside_is_lost_and_not_the_policys_failure",
            "environments/test_sandbox.py::test_a_dead_calculator_is_replaced_and_the_same_action_runs_again",
            "extend/test_python_environment.py::test_any_other_exception_is_the_infrastructures_and_the_next_call_works",
        ),
        ("F08", "F14", "F15", "F18", "F20"),
    ),
    ("Grader", "rejected"): Shown(
        ("graders/test_child_grader.py::test_a_grader_that_was_killed_from_outside_is_lost",),
        (
            "control/test_orchestrator.py::"
            "test_a_grader_that_never_answers_leaves_the_reward_absent_and_the_group_untrained",
        ),
    ),
    ("Grader", "lost"): Shown(
        ("graders/test_child_grader.py::test_a_grader_that_was_killed_from_outside_is_lost",), ("F29", "F32")
    ),
    ("Trainer", "rejected"): Shown(
        ("training/test_checkpoint.py::test_a_checkpoint_that_does_not_verify_is_rejected_and_changes_nothing",),
        ("F39", "recovery/test_two_cases.py::test_a_damaged_checkpoint_falls_back_to_the_one_before_and_replays_more"),
    ),
    ("Trainer", "lost"): Shown(
        (
            "contracts/test_trainer.py::test_a_child_says_what_it_holds_and_what_one_did_that_dies_in_an_update_is_lost",
            "contracts/test_trainer.py::test_an_inline_trainer_charges_the_loops_time_one_call_after_another",
        ),
        ("F23", "F39"),
    ),
    ("Journal", "rejected"): Shown(
        (
            "contracts/test_journal.py::test_a_second_once_only_event_fails_loudly_and_nothing_is_accepted_after_it",
            "store/test_sqlite_journal.py::test_a_failure_at_any_write_or_sync_leaves_the_state_before_or_after",
        ),
        (
            "F51",
            "recovery/test_split_brain.py::test_a_control_plane_that_was_taken_over_gets_nothing_accepted_and_its_writes_are_counted",
        ),
    ),
    ("Journal", "lost"): Shown(
        (
            "store/test_power_cuts.py::test_what_a_failed_sync_left_in_the_cache_is_never_built_upon",
            "store/test_sqlite_journal.py::test_a_failure_at_any_write_or_sync_leaves_the_state_before_or_after",
        ),
        ("F51",),
    ),
    ("Blobs", "lost"): Shown(
        ("store/test_blobs.py::test_a_failure_at_any_operation_leaves_the_whole_blob_or_none",),
        (
            "recovery/test_checkpoint_cuts.py::"
            "test_a_cut_anywhere_in_a_checkpoint_loads_the_newest_recorded_one_and_replays_the_rest",
        ),
    ),
    ("Leases", "rejected"): Shown(
        (),
        (
            "recovery/test_split_brain.py::test_an_old_owner_of_an_attempt_can_neither_record_nor_act_and_both_are_counted",
        ),
    ),
    ("Harness", "raises"): Shown(
        (),
        (
            "control/test_orchestrator.py::test_a_port_within_the_process_that_raises_ends_the_run_and_the_next_process_completes_it",
        ),
    ),
    ("TaskSource", "raises"): Shown(
        (),
        (
            "control/test_orchestrator.py::test_a_port_within_the_process_that_raises_ends_the_run_and_the_next_process_completes_it",
        ),
    ),
    ("child process", "rejected"): Shown(
        ("processes/test_child.py::test_a_killed_child_is_lost_with_the_signal_named_and_its_last_output",),
        (),
    ),
    ("child process", "lost"): Shown(
        ("processes/test_child.py::test_a_killed_child_is_lost_with_the_signal_named_and_its_last_output",),
        ("recovery/test_real_kills.py::test_the_two_cases_with_real_processes",),
    ),
}
"""Boundary and outcome, in the order of the page."""


def source_of(test: str) -> str:
    """The text of a test that exists."""
    path, _, name = test.partition("::")
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    (found,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return ast.unparse(found)


@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_each_outcome_of_a_boundary_is_shown_where_it_is_raised_and_where_the_run_meets_it(
    row: tuple[str, str],
) -> None:
    boundary, outcome = row
    for test in ROWS[row].raised:
        assert f"Outcome.{outcome.upper()}" in source_of(test), f"{test} asserts no {outcome}"
    for shown in ROWS[row].handled:
        if "::" in shown:
            assert source_of(shown)
            continue
        injected = {
            (fault.worker, fault.kind)
            for item in fault_rows.ROWS
            if item.id == shown
            for fault in (fault for plan in item.plans for fault in plan)
        }
        assert injected & {(boundary.lower(), kind) for kind in KINDS[outcome]}, f"{shown} injects no {outcome} there"


def test_every_port_has_a_row_for_each_outcome_that_it_can_have() -> None:
    for name, port in PORTS.items():
        is_awaited = any(inspect.iscoroutinefunction(method) for method in vars(port).values())
        found = {outcome for boundary, outcome in ROWS if boundary == name}
        assert found == {"rejected", "lost"} if is_awaited else len(found) == 1, f"{name}: {found}"
    assert {boundary for boundary, _ in ROWS} == {*PORTS, "child process"}


def test_the_page_has_the_same_rows_and_names_the_same_tests() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Rejected or lost")[2].partition("\n## ")[0]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| ")
    ]
    told = {(line[0], line[1]): set(re.findall(r"F\d\d|[a-z_/]+\.py", line[4])) for line in lines[1:]}
    assert list(told) == list(ROWS)
    for row, shown in ROWS.items():
        assert told[row] == {test.partition("::")[0] for test in (*shown.raised, *shown.handled)}, row
