"""The scheduling experiment: what must come out of it, on runs short enough to be checked event by event."""

import pytest
from planning.scenarios import small

from headrace.planning.experiment import Cell, Measured, run_cell, run_cells
from headrace.planning.page import render_page
from headrace.planning.plots import draw_plots
from headrace.planning.rollout import (
    PUBLISHED_THROUGHPUT,
    RULES,
    curve_cells,
    losing_cells,
    mode_cells,
    rollout_cells,
    rule_cells,
)
from headrace.planning.tables import losses, row_of, text_table


@pytest.fixture(scope="module")
def rules() -> dict[str, Measured]:
    return {cell.name: run_cell(cell, 7, is_checked=True) for cell in rule_cells(small(), 24)}


def test_rules_that_end_stale_work_lose_the_long_tasks_and_the_others_keep_every_one(
    rules: dict[str, Measured],
) -> None:
    for name, cell in rules.items():
        long, ordinary = cell.outcome.strata["long"], cell.outcome.strata["ordinary"]
        if name.startswith(("drop", "cancel", "requeue")):
            assert long.rejection_rate > 0.5 > ordinary.rejection_rate
            assert cell.outcome.slot_waste is not None and cell.outcome.slot_waste > 0.1
        else:
            assert (long.rejected, ordinary.rejected) == (0, 0)


def test_bounded_lag_kept_tasks_and_a_busy_trainer_cannot_all_be_had(rules: dict[str, Measured]) -> None:
    for cell in rules.values():
        is_bounded = cell.outcome.lags.oldest_max <= 4
        keeps_tasks = cell.outcome.rejected_groups == 0
        is_busy = cell.fluid_fraction > 0.8
        assert is_bounded + keeps_tasks + is_busy <= 2


def test_every_run_keeps_the_identities_of_lag_queue_and_slots(rules: dict[str, Measured]) -> None:
    for cell in rules.values():
        assert cell.outcome.identities.worst < 1e-9
        assert cell.outcome.identities.little.applies
    assert rules["synchronous"].outcome.identities.lag.applies
    assert rules["pace at the knee (6)"].outcome.identities.slots.applies


def test_no_rule_that_keeps_tasks_beats_the_fluid_bound_over_a_long_run() -> None:
    cell = run_cell(Cell(RULES, "pace", small(), {"mode": "separate_async", "credit_batches": 6}, 80), 7)
    assert 0.8 < cell.fluid_fraction < 1.1


def test_turns_on_shared_devices_stay_below_the_bound_that_adds_up_what_a_batch_takes() -> None:
    by_mode = {cell.name: run_cell(cell, 7) for cell in mode_cells(small(), 12)[:5]}
    for credit in (1, 6):
        shared, separate = by_mode[f"colocate_async, credit {credit}"], by_mode[f"separate_async, credit {credit}"]
        assert shared.fluid_groups_per_ks < separate.fluid_groups_per_ks
        assert shared.outcome.steady_groups_per_ks < separate.outcome.steady_groups_per_ks
        assert shared.outcome.lags.oldest_max > 0


def test_asynchronous_training_loses_where_the_experiment_says_so() -> None:
    cells = [run_cell(cell, 7) for cell in losing_cells(12)]
    assert len(cells) == 6
    for waits, overlaps in zip(cells[::2], cells[1::2], strict=True):
        assert overlaps.outcome.steady_groups_per_ks < 0.95 * waits.outcome.steady_groups_per_ks, overlaps.name
        assert overlaps.outcome.makespan_s > 1.05 * waits.outcome.makespan_s, overlaps.name
    halves = cells[:2]
    seconds = [1e3 * 16 / cell.outcome.steady_groups_per_ks for cell in halves]
    assert seconds == pytest.approx([221.0, 301.0], rel=0.01)


@pytest.mark.slow
def test_the_published_throughput_against_allowed_lag_comes_out_within_15_percent_on_the_plateau_too() -> None:
    cells = run_cells(curve_cells(45), 7)
    whole, steady = cells[0].outcome.groups_per_ks, cells[0].outcome.steady_groups_per_ks
    for cell, published in zip(cells, PUBLISHED_THROUGHPUT, strict=True):
        assert cell.outcome.groups_per_ks / whole == pytest.approx(published, rel=0.15), cell.name
        assert cell.outcome.steady_groups_per_ks / steady == pytest.approx(published, rel=0.15), cell.name


def test_the_same_seed_gives_the_same_figures_in_another_process() -> None:
    cells = mode_cells(small(), 4)[:2]
    here = [run_cell(cell, 7) for cell in cells]
    assert run_cells(cells, 7) == here
    assert run_cell(cells[1], 8) != here[1]


def test_page_and_plots_show_every_section_and_load_nothing(rules: dict[str, Measured]) -> None:
    measured = list(rules.values())
    plots = draw_plots(measured)
    assert set(plots) == {"frontier.png", "retention.png", "lag_of_tokens.png"}
    assert all(data.startswith(b"\x89PNG") for data in plots.values())
    page = render_page({"statement": "scheduling, not <hardware>"}, measured, plots)
    assert "http" not in page.replace("<!doctype html>", "")
    assert page.count("data:image/png;base64") == 3
    assert "scheduling, not &lt;hardware&gt;" in page
    assert "requeue when stale (4)" in text_table(measured)
    assert losses(measured) == []


def test_a_row_carries_what_the_experiment_is_asked_for(rules: dict[str, Measured]) -> None:
    row = row_of(rules["drop at use (4)"])
    wanted = {"completed", "accepted", "long: rejection_rate", "trainer_idle", "token_lag_mean", "long: retention"}
    assert wanted | {"fluid_fraction", "slot_waste", "makespan_s"} <= set(row)


def test_the_experiment_has_every_section_once() -> None:
    cells = rollout_cells(small(), 3, 2)
    assert len({(cell.section, cell.name, cell.x) for cell in cells}) == len(cells)
    assert {cell.section for cell in cells} == {
        "modes",
        "rules",
        "max_lag",
        "credit_batches",
        "loses",
        "published curve",
    }
