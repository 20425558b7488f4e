import json
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.algorithms.aggregation import aggregate, token_weights_B
from headrace.algorithms.diagnostics import clip_fractions
from headrace.training.losses import ppo_clip_token_loss, weighted_sum

ORACLE = json.loads((Path(__file__).parents[1] / "oracles" / "ppo_clip.json").read_text())
MASK = np.array(ORACLE["mask"])
ADVANTAGES = np.repeat(np.array(ORACLE["advantages"])[:, None], MASK.shape[1], axis=1)
ABS = ORACLE["tolerance"]
NAMES = ("clip", "clip_higher", "two_sided", "behaviour_anchor")


def computed(case, fill=0.0, extra=None):
    """Loss, gradient and token losses [B, T] of a case, through the trained tokens alone."""
    policy = torch.tensor(np.where(MASK, ORACLE["policy"], fill), requires_grad=True)
    anchor = torch.tensor(np.where(MASK, case["anchor"], fill))
    mask = torch.from_numpy(MASK)
    token_loss = ppo_clip_token_loss(
        policy[mask],
        anchor[mask],
        torch.from_numpy(ADVANTAGES)[mask],
        clip_low=case["clip_low"],
        clip_high=case["clip_high"],
        ratio_bound=case.get("ratio_bound"),
    )
    if extra is not None:
        token_loss = token_loss * extra(policy, anchor)[mask].detach()
    weights_B = token_weights_B("token_mean", MASK.sum(axis=1))
    loss = weighted_sum(token_loss, torch.from_numpy(np.repeat(weights_B[:, None], MASK.shape[1], axis=1))[mask])
    loss.backward()
    losses_BT = np.zeros(MASK.shape)
    losses_BT[MASK] = token_loss.detach().numpy()
    return float(loss.detach()), policy.grad.numpy(), losses_BT, weights_B


@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradient_are_the_known_ones(name):
    case = ORACLE[name]
    loss, gradient, losses_BT, weights_B = computed(case)
    np.testing.assert_allclose(losses_BT, case["token_loss"], atol=ABS)
    np.testing.assert_allclose(gradient, case["gradient"], atol=ABS)
    assert loss == pytest.approx(case["loss"], abs=ABS)
    assert aggregate(losses_BT, MASK, weights_B) == pytest.approx(loss, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_masked_slots_may_hold_nan(name):
    loss, gradient, _, _ = computed(ORACLE[name], fill=np.nan)
    clean_loss, clean_gradient, _, _ = computed(ORACLE[name])
    assert loss == clean_loss
    np.testing.assert_array_equal(gradient, clean_gradient)


@pytest.mark.parametrize("name", NAMES)
def test_clip_fractions_are_the_known_ones_each_under_its_own_name(name):
    case = ORACLE[name]
    ratio = (np.array(ORACLE["policy"]) - case["anchor"])[MASK]
    np.testing.assert_allclose(np.exp(ratio), np.array(case["ratio"])[MASK], atol=ABS)
    found = clip_fractions(ratio, ADVANTAGES[MASK], case["clip_low"], case["clip_high"])
    for key, value in case["clip_fractions"].items():
        assert getattr(found, key) == pytest.approx(value, abs=ABS), key
    assert found.branch_binds != found.ratio_outside


def test_a_second_weight_on_top_of_the_behaviour_ratio_counts_it_twice():
    case = ORACLE["behaviour_anchor"]
    twice, _, _, _ = computed(case, extra=lambda policy, anchor: torch.exp(policy - anchor))
    assert twice != pytest.approx(case["loss"], abs=1e-2)


def test_the_bound_holds_a_token_that_plain_clipping_lets_run_away():
    case = ORACLE["two_sided"]
    bound, gradient, _, _ = computed(case)
    free, free_gradient, _, _ = computed({**case, "ratio_bound": None})
    assert free > bound + 0.1
    assert (gradient[1, 0], free_gradient[1, 0] != 0.0) == (0.0, True)


def test_clip_higher_lets_a_rare_token_with_advantage_grow_further():
    policy, anchor = torch.tensor([-1.0]), torch.tensor([-1.24])
    wide = ppo_clip_token_loss(policy, anchor, torch.ones(1), clip_low=0.2, clip_high=0.28)
    narrow = ppo_clip_token_loss(policy, anchor, torch.ones(1), clip_low=0.2, clip_high=0.2)
    assert float(wide) < float(narrow)
