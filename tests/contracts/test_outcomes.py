"""Which test shows, at each port, that nothing was executed (rejected) and that nobody knows (lost)."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

ROWS: dict[tuple[str, str], tuple[str, ...]] = {
    ("inference", "REJECTED"): (
        "contracts/test_inference.py::test_a_request_that_is_still_running_is_rejected_a_second_time",
        "contracts/test_inference.py::test_a_version_is_never_reused_for_other_weights",
        "inference/test_engine_serving.py::test_a_child_that_dies_loses_every_running_request",
    ),
    ("inference", "LOST"): (
        "contracts/test_inference.py::test_a_turn_beyond_its_deadline_is_lost_and_its_id_is_free_again",
        "inference/test_engine_serving.py::test_a_child_that_dies_loses_every_running_request",
    ),
    ("environment", "REJECTED"): (
        "environments/test_sandbox.py::test_an_interpreter_killed_from_outside_between_two_calls_is_lost_as_well",
        "extend/test_python_environment.py::test_state_that_a_crash_took_is_lost_and_never_run_again",
    ),
    ("environment", "LOST"): (
        "environments/test_sandbox.py::test_an_interpreter_killed_from_outside_is_lost_and_not_the_policys_failure",
        "environments/test_sandbox.py::test_a_dead_calculator_is_replaced_and_the_same_action_runs_again",
        "extend/test_python_environment.py::test_any_other_exception_is_the_infrastructures_and_the_next_call_works",
    ),
    ("grader", "REJECTED"): ("graders/test_child_grader.py::test_a_grader_that_was_killed_from_outside_is_lost",),
    ("grader", "LOST"): ("graders/test_child_grader.py::test_a_grader_that_was_killed_from_outside_is_lost",),
    ("trainer", "REJECTED"): (
        "training/test_checkpoint.py::test_a_checkpoint_that_does_not_verify_is_rejected_and_changes_nothing",
    ),
    ("trainer", "LOST"): (
        "contracts/test_trainer.py::test_an_inline_trainer_charges_the_loops_time_one_call_after_another",
    ),
}
"""Port and outcome, and tests that make the real adapter fail so."""


@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_each_outcome_of_a_port_is_asserted_by_a_test_that_exists(row: tuple[str, str]) -> None:
    _, outcome = row
    for test in ROWS[row]:
        path, _, name = test.partition("::")
        tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
        (found,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
        assert f"Outcome.{outcome}" in ast.unparse(found), f"{test} asserts no {outcome}"
