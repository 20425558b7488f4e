"""Which test shows which attack fails. A row whose test is gone is noticed here."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "S01": (
        "a tool's output spells special control tokens",
        (
            "harness/test_chatml.py::test_forged_turns_in_an_observation_stay_text_and_are_counted",
            "attacks/test_hostile_policy.py::test_control_literals_in_a_tools_output_are_text_and_open_no_turn",
        ),
    ),
    "S02": (
        "the same with control tokens that are added but not special",
        (
            "harness/test_codec.py::test_control_tokens_are_all_added_tokens_special_or_not",
            "harness/test_codec.py::test_no_text_becomes_a_control_token_and_none_is_changed",
            "attacks/test_hostile_policy.py::test_control_literals_in_a_tools_output_are_text_and_open_no_turn",
        ),
    ),
    "S04": (
        "the policy spells a control token in ordinary tokens",
        (
            "harness/test_chatml.py::test_a_turn_without_control_ids_is_final_whatever_its_text_spells",
            "attacks/test_hostile_policy.py::test_a_call_that_is_only_spelled_runs_nothing_and_its_ids_stay_as_sampled",
        ),
    ),
    "S05": (
        "an observation gives orders",
        ("attacks/test_hostile_policy.py::test_an_injected_order_finds_no_tool_that_bears_a_reward",),
    ),
    "S06": (
        "modules, sitecustomize and PYTHONPATH are planted for the grader or a later tool",
        (
            "environments/test_sandbox_attacks.py::test_code_cannot_change_what_a_later_interpreter_imports",
            "attacks/test_grader_walls.py::test_each_place_has_the_walls_that_its_note_says",
        ),
    ),
    "S07": (
        "the code leaves early with status 0",
        (
            "environments/test_sandbox_attacks.py::test_leaving_early_is_never_success_and_always_the_policys_doing",
            "attacks/test_hostile_policy.py::"
            "test_what_the_policy_did_to_its_tool_is_a_receipt_and_never_an_infrastructure_failure",
        ),
    ),
    "S09": (
        "output claims success or forges a result",
        (
            "environments/test_sandbox_attacks.py::test_a_forged_answer_on_the_channel_is_the_policys_own_loss",
            "attacks/test_hostile_policy.py::test_a_verdict_that_a_tool_prints_or_the_policy_recites_is_only_text",
            "attacks/test_grader_walls.py::test_a_forged_verdict_ends_the_forgers_tool_and_reaches_no_journal",
        ),
    ),
    "S10": (
        "the code looks for answers, the grader's files and other processes",
        (
            "environments/test_sandbox_attacks.py::test_nothing_of_the_host_can_be_read",
            "attacks/test_grader_walls.py::test_a_tool_that_knows_where_to_look_finds_nothing_of_the_grader_or_the_run",
            "attacks/test_grader_walls.py::test_the_answer_stands_in_no_request_task_or_observation",
        ),
    ),
    "S12": (
        "the solution is fetched from the network",
        ("environments/test_sandbox_attacks.py::test_there_is_no_network_and_the_attempt_is_in_the_receipt",),
    ),
    "S17": (
        "the code writes to the store or the log",
        (
            "environments/test_sandbox_attacks.py::test_nothing_outside_the_scratch_folder_can_be_written",
            "attacks/test_grader_walls.py::test_a_tool_that_knows_where_to_look_finds_nothing_of_the_grader_or_the_run",
            "attacks/test_grader_walls.py::test_what_has_given_up_its_rights_reads_named_folders_and_does_nothing_else",
        ),
    ),
    "S18": (
        "an artifact or what a call left in its workspace reaches outside: links, devices, `..`, names twice, sizes",
        (
            "environments/test_sandbox_parts.py::test_a_name_that_reaches_out_is_refused",
            "environments/test_sandbox_parts.py::test_a_name_that_comes_twice_and_a_cut_file_are_refused",
            "environments/test_sandbox_parts.py::test_any_bytes_are_an_artifact_or_refused",
            "environments/test_sandbox_attacks.py::test_an_artifact_with_anything_else_in_it_is_refused_whole",
            "environments/test_sandbox_attacks.py::test_kernel_interfaces_that_lead_out_are_closed",
            "environments/test_workspace_changes.py::test_a_forged_record_that_reaches_out_is_refused_whole",
            "environments/test_workspace_changes.py::test_a_stored_revision_that_reaches_out_is_never_laid_out",
            "environments/test_workspace_changes.py::test_what_links_outside_is_a_name_inside_and_nothing_is_read_through_it",
        ),
    ),
    "S20": (
        "a pickle lies in an artifact, a message or the store",
        (
            "attacks/test_untrusted_bytes.py::test_no_module_of_ours_reads_a_format_that_can_run_code",
            "attacks/test_untrusted_bytes.py::test_pickled_bytes_are_refused_or_stay_bytes_wherever_bytes_come_in",
            "attacks/test_store_swaps.py::test_a_checkpoint_whose_part_is_a_pickle_is_refused_and_runs_nothing",
        ),
    ),
    "S21": (
        "JSON that parsers disagree on",
        (
            "harness/test_calls.py::test_json_outside_the_interoperable_part_is_refused_with_its_reason",
            "harness/test_calls.py::test_a_lone_surrogate_in_an_argument_is_refused",
            "attacks/test_hostile_policy.py::"
            "test_a_policy_that_goes_on_after_a_bad_turn_sees_what_was_wrong_and_may_still_succeed",
        ),
    ),
    "S22": (
        "arguments of the wrong type, extra keys, huge strings",
        (
            "harness/test_calls.py::test_a_call_that_cannot_run_says_why",
            "attacks/test_hostile_policy.py::"
            "test_a_policy_that_goes_on_after_a_bad_turn_sees_what_was_wrong_and_may_still_succeed",
        ),
    ),
    "S23": (
        "floods, escapes, bytes that are no text",
        (
            "environments/test_sandbox_attacks.py::test_a_flood_is_cut_and_counted_and_holds_up_nobody",
            "harness/test_chatml.py::test_escapes_are_inert_and_bytes_that_are_no_text_are_shown_as_such",
            "attacks/test_hostile_policy.py::test_an_observation_over_its_budget_is_cut_and_counted",
        ),
    ),
    "S24": (
        "every resource is used up",
        (
            "environments/test_sandbox_attacks.py::test_a_resource_that_runs_out_is_the_policys_outcome",
            "environments/test_sandbox_attacks.py::test_neighbours_stay_fast_while_others_do_their_worst",
            "attacks/test_hostile_policy.py::test_the_other_episodes_and_the_run_are_unharmed",
        ),
    ),
    "S25": (
        "the policy kills its own tool or stops the grader to have no verdict",
        (
            "attacks/test_hostile_policy.py::"
            "test_what_the_policy_did_to_its_tool_is_a_receipt_and_never_an_infrastructure_failure",
            "attacks/test_grader_faults.py::test_others_keep_their_scores_while_the_grader_breaks",
        ),
    ),
    "S27": (
        "turns, tools and tokens without end",
        (
            "attacks/test_hostile_policy.py::test_a_policy_that_will_not_end_is_truncated_by_the_limit_that_it_reached",
            "attacks/test_hostile_policy.py::"
            "test_the_wall_limit_ends_a_slow_policy_at_a_token_and_a_hanging_tool_by_its_deadline",
        ),
    ),
    "S29": (
        "an old response or receipt is played again, with a stale lease or another action's id",
        (
            "attacks/test_replayed_answers.py::test_a_replayed_receipt_is_refused_counted_and_asked_for_again",
            "attacks/test_replayed_answers.py::test_without_the_check_a_commit_names_a_receipt_of_another_action",
            "attacks/test_replayed_answers.py::test_an_executor_that_lies_to_probes_too_is_an_infrastructure_error",
            "attacks/test_replayed_answers.py::"
            "test_a_turn_of_another_request_is_refused_and_the_turn_is_asked_for_again",
        ),
    ),
    "S31": (
        "log-probs that are none",
        (
            "records/test_records.py::test_a_log_prob_that_is_none_is_refused",
            "attacks/test_untrusted_bytes.py::test_a_log_prob_that_is_none_is_the_engines_failure_and_in_no_batch",
        ),
    ),
    "S40": (
        "a checkpoint's file is replaced by a link or by another run's",
        (
            "attacks/test_store_swaps.py::test_a_file_that_became_a_link_is_refused_even_when_its_bytes_are_right",
            "attacks/test_store_swaps.py::test_a_file_of_another_run_in_the_place_of_this_ones_is_refused",
        ),
    ),
    "S39": (
        "a trajectory without action tokens, or of the stop token alone",
        (
            "training/test_core.py::test_rows_without_action_tokens_are_counted_and_change_nothing",
            "attacks/test_hostile_policy.py::test_a_turn_of_the_stop_token_alone_is_an_answer_of_nothing",
        ),
    ),
}
"""Attack, what it tries, and the tests that show that it fails."""


@pytest.mark.parametrize("row", ROWS)
def test_every_attack_is_met_by_tests_that_exist(row: str) -> None:
    _, tests = ROWS[row]
    assert tests
    for test in tests:
        path, _, name = test.partition("::")
        tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test
