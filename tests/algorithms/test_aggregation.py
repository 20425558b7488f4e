import json
from pathlib import Path

import numpy as np
import pytest

from headrace.algorithms.aggregation import token_weights_B

FOLDER = Path(__file__).parents[1] / "oracles"
ORACLE = json.loads((FOLDER / "aggregation.json").read_text())
LOSS = np.array(ORACLE["loss"])
MASK = np.array(ORACLE["mask"], dtype=bool)
ABS = ORACLE["tolerance"]
NAMES = tuple(ORACLE["aggregations"])


def aggregate(loss_BT, mask_BT, weights_B):
    """Sum over trained tokens of weight times loss."""
    return float((np.where(mask_BT, loss_BT, 0.0).sum(axis=1) * weights_B).sum())


def weights(name, counts=None):
    counts = MASK.sum(axis=1) if counts is None else counts
    return token_weights_B(name, counts, max_tokens=ORACLE["max_tokens"], prompts_B=ORACLE["prompts"])


@pytest.mark.parametrize("name", NAMES)
def test_every_aggregation_gives_its_known_loss(name):
    assert aggregate(LOSS, MASK, weights(name)) == pytest.approx(ORACLE["aggregations"][name], abs=ABS)


@pytest.mark.parametrize("name", NAMES)
def test_masked_slots_may_hold_anything(name):
    spoiled = np.where(MASK, LOSS, np.nan)
    assert aggregate(spoiled, MASK, weights(name)) == aggregate(LOSS, MASK, weights(name))


@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_add_up_to_the_whole(name):
    all_weights = weights(name)
    parts = [aggregate(LOSS[rows], MASK[rows], all_weights[rows]) for rows in ORACLE["micro_batches"]]
    assert sum(parts) == pytest.approx(ORACLE["aggregations"][name], abs=ABS)


def test_the_mean_of_micro_batch_means_is_another_number():
    means = [
        aggregate(LOSS[rows], MASK[rows], token_weights_B("token_mean", MASK[rows].sum(axis=1)))
        for rows in ORACLE["micro_batches"]
    ]
    assert np.mean(means) == pytest.approx(ORACLE["wrong_mean_of_means"], abs=ABS)
    assert ORACLE["wrong_mean_of_means"] != pytest.approx(ORACLE["aggregations"]["token_mean"], abs=1e-3)


def test_a_row_without_trained_tokens_leaves_both_numerator_and_denominator():
    loss = np.vstack([LOSS, ORACLE["masked_row"]["loss"]])
    mask = np.vstack([MASK, np.array(ORACLE["masked_row"]["mask"], dtype=bool)])
    for name in ("token_mean", "seq_mean_token_mean"):
        value = aggregate(loss, mask, token_weights_B(name, mask.sum(axis=1)))
        assert value == pytest.approx(ORACLE["aggregations"][name], abs=ABS)
    counted = ORACLE["aggregations"]["seq_mean_token_mean"] * 3 / 4
    assert counted == pytest.approx(ORACLE["wrong_seq_mean_if_masked_row_counts"], abs=ABS)


def test_a_rejected_token_leaves_the_denominator_only_if_the_caller_says_so():
    kept = MASK.copy()
    kept[tuple(ORACLE["rejected_token"])] = False
    original = aggregate(LOSS, kept, token_weights_B("token_mean", MASK.sum(axis=1)))
    assert original == pytest.approx(ORACLE["original_denominator"], abs=ABS)
    fewer = aggregate(LOSS, kept, token_weights_B("token_mean", kept.sum(axis=1)))
    assert fewer == pytest.approx(ORACLE["kept_denominator"], abs=ABS)


def test_a_batch_without_trained_tokens_has_no_mean():
    with pytest.raises(ValueError, match="nothing to average"):
        token_weights_B("token_mean", [0, 0])


def test_prompt_mean_without_prompts_is_refused():
    with pytest.raises(ValueError, match="prompt"):
        token_weights_B("prompt_mean", [1, 2])


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_on_several_rows_weighs_what_it_would_on_one(name):
    whole = token_weights_B(name, [4, 5, 2], max_tokens=8, prompts_B=[0, 0, 1], episodes_B="abc")
    forked = token_weights_B(name, [1, 3, 5, 2], max_tokens=8, prompts_B=[0, 0, 0, 1], episodes_B="aabc")
    assert forked.tolist() == whole[[0, 0, 1, 2]].tolist()
