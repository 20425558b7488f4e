import json
import math
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest
import torch

from headrace.algorithms.aggregation import token_weights_B
from headrace.algorithms.corrections import correct, second_moment_mask
from headrace.algorithms.diagnostics import clip_flags
from headrace.records.learning import losses as named
from headrace.records.learning.corrections import Correction
from headrace.training.losses import LossTokens, binary_kl, token_losses, weighted_sum

ORACLE = json.loads((Path(__file__).parents[1] / "oracles" / "policy_losses.json").read_text())
MASK = np.array(ORACLE["mask"])
ROWS = np.repeat(np.arange(len(MASK))[:, None], MASK.shape[1], axis=1)
ADVANTAGES = np.repeat(np.array(ORACLE["advantages"])[:, None], MASK.shape[1], axis=1)
ABS = ORACLE["tolerance"]
CASES = ORACLE["cases"]
RIGHT = [name for name in CASES if not name.startswith("wrong_")]
CLIP = ("clip", "clip_higher", "two_sided", "behavior_anchor")


def corrections_of(case):
    return [msgspec.convert(item, Correction) for item in case["corrections"]]


def computed(case, fill=0.0, extra=None):
    """Loss, gradient, token losses [B, T] and row weights of a case, through the trained tokens alone."""
    policy = torch.tensor(np.where(MASK, ORACLE["policy"], fill), requires_grad=True)
    anchor = torch.tensor(np.where(MASK, ORACLE["anchors"][case["anchor"]], fill))
    behavior = np.where(MASK, ORACLE["anchors"]["behavior"], fill)
    mask = torch.from_numpy(MASK)
    tokens = LossTokens(policy[mask], anchor[mask], torch.from_numpy(ADVANTAGES)[mask], torch.from_numpy(ROWS)[mask])
    token_loss = token_losses(
        msgspec.convert(case["loss_kind"], named.Loss), tokens, clip_low=case["clip_low"], clip_high=case["clip_high"]
    )
    corrected = correct(
        corrections_of(case),
        anchor.numpy()[MASK] - behavior[MASK],
        ROWS[MASK],
        num_rows=len(MASK),
        advantages_N=ADVANTAGES[MASK],
    )
    token_loss = token_loss * torch.from_numpy(corrected.weights_N)
    if extra is not None:
        token_loss = token_loss * extra(policy, anchor)[mask].detach()
    weights_B = token_weights_B(case["aggregation"], MASK.sum(axis=1))
    loss = weighted_sum(token_loss, torch.from_numpy(weights_B[ROWS[MASK]]))
    loss.backward()
    losses_BT = np.zeros(MASK.shape)
    losses_BT[MASK] = token_loss.detach().numpy()
    return float(loss.detach()), policy.grad.numpy(), losses_BT, weights_B


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_the_known_ones(name):
    case = CASES[name]
    loss, gradient, losses_BT, weights_B = computed(case)
    np.testing.assert_allclose(losses_BT, case["token_loss"], atol=ABS)
    np.testing.assert_allclose(gradient, case["gradient"], atol=ABS)
    assert loss == pytest.approx(case["loss"], abs=ABS)
    assert (losses_BT * weights_B[:, None])[MASK].sum() == pytest.approx(loss, abs=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_masked_slots_may_hold_nan(name):
    loss, gradient, _, _ = computed(CASES[name], fill=np.nan)
    clean_loss, clean_gradient, _, _ = computed(CASES[name])
    assert loss == clean_loss
    np.testing.assert_array_equal(gradient, clean_gradient)


@pytest.mark.parametrize("name", [name for name in RIGHT if "clip_fractions" in CASES[name]])
def test_clip_fractions_are_the_known_ones_each_under_its_own_name(name):
    case = CASES[name]
    ratio = (np.array(ORACLE["policy"]) - ORACLE["anchors"][case["anchor"]])[MASK]
    np.testing.assert_allclose(np.exp(ratio), np.array(case["ratio"])[MASK], atol=ABS)
    found = clip_flags(ratio, ADVANTAGES[MASK], case["clip_low"], case["clip_high"])
    for key, value in case["clip_fractions"].items():
        assert getattr(found, key).mean() == pytest.approx(value, abs=ABS), key
    assert found.branch_binds.tolist() != found.ratio_outside.tolist()


def test_a_second_weight_on_top_of_the_behaviour_ratio_counts_it_twice():
    case = CASES["behavior_anchor"]
    twice, _, _, _ = computed(case, extra=lambda policy, anchor: torch.exp(policy - anchor))
    assert twice != pytest.approx(case["loss"], abs=1e-2)


def test_the_bound_holds_a_token_that_plain_clipping_lets_run_away():
    case = CASES["two_sided"]
    bound, gradient, _, _ = computed(case)
    free, free_gradient, _, _ = computed({**case, "loss_kind": {"kind": "clip"}})
    assert free > bound + 0.1
    assert (gradient[1, 0], free_gradient[1, 0] != 0.0) == (0.0, True)


def test_dual_clip_caps_what_a_token_of_negative_advantage_costs():
    # r = exp(-2.1 + 4.0) = 6.69 and A = -0.5: plain PPO costs 3.34, three times |A| is 1.5 and has no gradient.
    case = {**CASES["two_sided"], "loss_kind": {"kind": "clip", "dual_bound": 3.0}}
    _, gradient, losses, _ = computed(case)
    assert losses[1, 0] == pytest.approx(1.5)
    assert gradient[1, 0] == 0.0
    ratio = (np.array(ORACLE["policy"]) - ORACLE["anchors"][case["anchor"]])[MASK]
    assert clip_flags(ratio, ADVANTAGES[MASK], 0.2, 0.2, dual_bound=3.0).dual.mean() == pytest.approx(1 / 7)
    positive = [loss for loss, kept in zip(losses[0], MASK[0], strict=True) if kept]
    assert positive == pytest.approx(
        [x for x, kept in zip(CASES["clip"]["token_loss"][0], MASK[0], strict=True) if kept]
    )


def test_the_two_conventions_of_the_cispo_bound_agree_only_when_one_is_shifted_by_1():
    relative, absolute = CASES["cispo_relative"], CASES["cispo_absolute"]
    assert computed(relative)[0] == pytest.approx(computed(absolute)[0], abs=1e-12)
    wrong = CASES["wrong_cispo_bound_as_distance"]
    assert computed(wrong)[0] != pytest.approx(absolute["loss"], abs=1e-2)
    assert computed(wrong)[2][1, 0] == pytest.approx(-6.3)


def test_gspo_clips_whole_sequences():
    case = CASES["gspo"]
    _, gradient, losses, _ = computed(case)
    ratios = np.exp(
        [(np.array(ORACLE["policy"]) - ORACLE["anchors"]["old"])[row][MASK[row]].mean() for row in range(2)]
    )
    assert ratios == pytest.approx(case["sequence_ratio"], abs=ABS)
    assert not gradient[1].any()
    assert len(set(losses[0][MASK[0]].tolist())) == 1


def test_gmpo_is_the_geometric_mean_of_ratios_clipped_in_log_space():
    case = {**CASES["gspo"], "loss_kind": {"kind": "gmpo"}, "clip_low": 0.4, "clip_high": 0.4}
    _, gradient, losses, _ = computed(case)
    log_ratio = np.array(ORACLE["policy"]) - ORACLE["anchors"]["old"]
    first = log_ratio[0][MASK[0]]  # 0.32, -0.5, 0.03: a positive advantage clips only above +0.4
    assert losses[0][MASK[0]] == pytest.approx([-math.exp(first.mean())] * 3)
    second = np.maximum(log_ratio[1][MASK[1]], -0.4)  # 0.2, -0.5, 0.35, -1.4: a negative one only below -0.4
    assert losses[1][MASK[1]] == pytest.approx([0.5 * math.exp(second.mean())] * 4)
    assert gradient[1, 1] == gradient[1, 4] == 0.0
    expected = 0.5 * 0.5 * math.exp(second.mean()) / 4
    assert gradient[1, 0] == pytest.approx(expected)
    assert gradient[0, 1] == pytest.approx(-math.exp(first.mean()) / 3 / 2)


def test_dppo_masks_by_the_divergence_of_the_probability_and_only_outward_moves():
    for name, divergence in (("dppo_kl", "kl"), ("dppo_tv", "tv")):
        loss = {"kind": "dppo", "divergence": divergence, "threshold": 0.15}
        _, _, losses, _ = computed({**CASES["dppo_kl"], "loss_kind": loss})
        p, q = (np.exp(np.array(v))[MASK] for v in (ORACLE["policy"], ORACLE["anchors"]["old"]))
        if divergence == "kl":
            gap = q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))
            known = np.array(CASES["dppo_kl"]["binary_kl"])[MASK]
            assert gap == pytest.approx(known, abs=ABS)
            given = binary_kl(torch.from_numpy(np.log(q)), torch.from_numpy(np.log(p)))
            np.testing.assert_allclose(given, known, atol=ABS)
        else:
            gap = np.abs(p - q)
        masked = (gap > 0.15) & (np.sign(ADVANTAGES[MASK]) * (p - q) > 0)
        assert ((losses[MASK] == 0.0) == masked).all(), name
        assert masked.any()
        assert not masked.all()
    assert CASES["dppo_kl"]["masked_fraction"] == pytest.approx(2 / 7)


def test_a_certain_token_has_a_finite_binary_kl():
    assert math.isfinite(float(binary_kl(torch.tensor([0.0]), torch.tensor([-1e-8]))))
    assert float(binary_kl(torch.tensor([-1e-8]), torch.tensor([0.0]))) >= 0.0


def test_the_second_moment_mask_drops_the_largest_until_the_mean_is_small():
    case = ORACLE["second_moment"]
    gap = (np.array(ORACLE["anchors"]["old"]) - ORACLE["anchors"]["behavior"])[MASK]
    kept = second_moment_mask(gap, case["bound"])
    assert (kept == np.array(case["kept"])[MASK]).all()
    assert (~kept).sum() == case["dropped"]
    assert (gap[kept] ** 2).mean() == pytest.approx(case["mean_kept"], abs=ABS)
    assert second_moment_mask(gap, 1e9).all()
    assert not second_moment_mask(np.ones(3), 0.5).any()


def test_clip_higher_lets_a_rare_token_with_advantage_grow_further():
    wide, narrow = computed(CASES["clip_higher"])[0], computed(CASES["clip"])[0]
    assert wide < narrow


@pytest.mark.parametrize("kind", get_args(named.Loss))
@pytest.mark.parametrize("aggregation", get_args(named.AggregationName))
def test_micro_batches_of_whole_rows_add_up_to_the_gradient(kind, aggregation):
    rng = np.random.default_rng(5)
    rows = np.repeat(np.arange(6), rng.integers(1, 7, 6))
    policy, anchor = -rng.random(len(rows)), -rng.random(len(rows))
    advantages = rng.standard_normal(6)[rows]
    counts = np.bincount(rows)
    weights = token_weights_B(aggregation, counts, max_tokens=16, prompts_B=[0, 0, 1, 1, 2, 2])[rows]

    def gradient(parts):
        logprobs = torch.tensor(policy, requires_grad=True)
        for part in parts:
            mask = torch.from_numpy(np.isin(rows, part))
            index = torch.from_numpy(np.unique(rows[mask.numpy()], return_inverse=True)[1])
            tokens = LossTokens(logprobs[mask], torch.tensor(anchor)[mask], torch.tensor(advantages)[mask], index)
            losses = token_losses(kind(), tokens, clip_low=0.2, clip_high=0.28)
            torch.autograd.backward(weighted_sum(losses, torch.tensor(weights)[mask]))
        return logprobs.grad.numpy()

    whole = gradient([range(6)])
    assert whole.any()
    np.testing.assert_allclose(gradient([[0, 5], [1], [2, 3, 4]]), whole, atol=1e-12)


@pytest.mark.parametrize("kind", get_args(named.Loss))
def test_a_step_on_fresh_data_follows_the_policy_gradient(kind):
    """At ratio 1 every loss has the gradient -A, up to the factor 1 that its paper fixes."""
    logprobs = torch.tensor([-0.5, -1.0, -0.7], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([1.0, -0.5, -0.5], dtype=torch.float64)
    tokens = LossTokens(logprobs, logprobs.detach().clone(), advantages, torch.tensor([0, 1, 1]))
    token_losses(kind(), tokens, clip_low=0.2, clip_high=0.28).sum().backward()
    np.testing.assert_allclose(logprobs.grad, -advantages, atol=1e-12)
