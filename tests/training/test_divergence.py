"""KL gradients by exact enumeration: what each choice is worth as the gradient of KL(policy, reference)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.errors import ConfigError
from headrace.records.learning.kl import Kl, check_kl
from headrace.training.divergence import kl_losses, penalties

ORACLE = json.loads((Path(__file__).parents[1] / "oracles" / "kl.json").read_text())
EXACT, GRADIENTS, CHAIN = ORACLE["exact"], ORACLE["gradients"], ORACLE["chain"]
REFERENCE, BEHAVIOR = (
    torch.log_softmax(torch.tensor(EXACT[name], dtype=torch.float64), dim=0)
    for name in ("reference_logits", "behavior_logits")
)


def expected(kl, *, is_on_policy=False, detach_ratio=False):
    """(value, gradient in the logits) of the term, expected over every token of the sampling distribution."""
    logits = torch.tensor(EXACT["policy_logits"], dtype=torch.float64, requires_grad=True)
    logprobs = torch.log_softmax(logits, dim=0)
    behavior = logprobs.detach() if is_on_policy else BEHAVIOR
    terms = kl_losses(kl, logprobs, REFERENCE, behavior)
    if detach_ratio:
        terms = torch.exp(logprobs - behavior).detach() * terms
    value = (behavior.exp() * terms).sum()
    value.backward()
    return float(value.detach()), logits.grad.numpy()


def near(value):
    return pytest.approx(value, abs=ORACLE["tolerance"])


@pytest.mark.parametrize(
    ("estimator", "gradient", "name"),
    [
        ("k1", "own", "k1_live_ratio"),
        ("k3", "own", "k3_live_ratio"),
        ("k2", "own", "k2_weighed"),
        ("k1", "straight_through", "kl"),
        ("k3", "straight_through", "kl"),
    ],
)
def test_importance_makes_every_choice_right_on_data_of_another_policy(estimator, gradient, name):
    kl = Kl(coefficient=1.0, estimator=estimator, gradient=gradient, importance=True)
    value, found = expected(kl)
    assert found == near(GRADIENTS[name])
    assert found == near(GRADIENTS["kl"])
    assert value == near(EXACT["mean_k2"] if estimator == "k2" else EXACT["kl"])


def test_a_ratio_without_gradient_turns_k3_into_the_gradient_of_another_divergence():
    _, found = expected(Kl(coefficient=1.0, estimator="k3"), detach_ratio=True)
    assert found == near(GRADIENTS["wrong_k3_detached_ratio"])
    assert found != pytest.approx(GRADIENTS["kl"], abs=1e-2)


def test_k2_without_a_weight_is_wrong_on_data_of_another_policy_and_right_on_its_own():
    _, off = expected(Kl(coefficient=1.0, estimator="k2"))
    assert off == near(GRADIENTS["wrong_k2_unweighed"])
    _, own = expected(Kl(coefficient=1.0, estimator="k2"), is_on_policy=True)
    assert own == near(GRADIENTS["kl"])


def test_on_policy_k1_holds_nothing_k3_pulls_elsewhere_and_straight_through_is_right():
    _, k1 = expected(Kl(coefficient=1.0, estimator="k1"), is_on_policy=True)
    assert k1 == near([0.0, 0.0, 0.0])
    _, k3 = expected(Kl(coefficient=1.0, estimator="k3"), is_on_policy=True)
    policy = torch.softmax(torch.tensor(EXACT["policy_logits"], dtype=torch.float64), dim=0)
    assert k3 == near((policy - REFERENCE.exp()).tolist())  # the gradient of KL(reference, policy)
    for estimator in ("k1", "k3"):
        value, through = expected(
            Kl(coefficient=1.0, estimator=estimator, gradient="straight_through"), is_on_policy=True
        )
        assert through == near(GRADIENTS["kl"])
        assert value == near(EXACT["kl"])


def test_the_coefficient_scales_value_and_gradient():
    value, gradient = expected(Kl(coefficient=0.25, estimator="k3", importance=True))
    assert value == near(0.25 * EXACT["kl"])
    assert gradient == near([0.25 * item for item in GRADIENTS["kl"]])


def _chain(kl_of_tokens):
    """Expected gradient in the first logit of a two-step chain; `kl_of_tokens(k1, k2)` is the credit of the first token."""
    first = torch.tensor(CHAIN["first"], dtype=torch.float64)
    total, divergence = 0.0, 0.0
    for a in (1, 0):
        for b in (1, 0):
            p1 = first if a else 1 - first
            second = CHAIN["second"][a]
            p2 = second if b else 1 - second
            log_ratios = np.log([float(p1), p2]).astype(np.float32)
            k = penalties(Kl(estimator="k1"), log_ratios, np.log([0.5, 0.5]).astype(np.float32)).astype(float)
            total += float(p1) * p2 * (a - CHAIN["first"]) * kl_of_tokens(*k)
            divergence += float(p1) * p2 * k.sum()
    return total, divergence


def test_in_the_reward_a_token_answers_for_the_penalties_that_follow_it():
    right, divergence = _chain(lambda now, later: now + later)
    assert divergence == near(CHAIN["kl"])
    assert right == near(CHAIN["gradient"])
    alone, _ = _chain(lambda now, later: now)
    assert alone == near(CHAIN["wrong_token_level_only"])
    assert alone != pytest.approx(CHAIN["gradient"], abs=1e-2)


@pytest.mark.parametrize(
    ("kl", "problem"),
    [
        (Kl(coefficient=0.1, estimator="k1"), "expected gradient of 0"),
        (Kl(coefficient=0.1, place="reward", gradient="straight_through"), "no gradient of its own"),
        (Kl(coefficient=0.1, place="reward", importance=True), "no gradient of its own"),
        (Kl(coefficient=-1.0), "at least 0"),
    ],
)
def test_a_kl_term_without_a_meaning_is_refused(kl, problem):
    with pytest.raises(ConfigError, match=problem):
        check_kl(kl)
    check_kl(Kl(coefficient=0.1, estimator="k1", place="reward"))
