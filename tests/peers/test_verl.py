"""Our formulas against verl's on random inputs. `pytest -m peers` where verl can be imported; skipped elsewhere."""

import numpy as np
import pytest
import torch

from headrace.algorithms import advantages as adv
from headrace.algorithms.aggregation import token_weights_B
from headrace.algorithms.corrections import correct
from headrace.algorithms.mismatch import mismatch
from headrace.records.learning import losses as named
from headrace.records.learning.corrections import SequenceTis, TokenTis
from headrace.training.losses import LossTokens, token_losses, weighted_sum

pytestmark = pytest.mark.peers
GROUPS, MEMBERS, TOKENS = 6, 4, 11
ROWS = GROUPS * MEMBERS
LOW, HIGH = 0.2, 0.28


@pytest.fixture(scope="module")
def verl():
    return pytest.importorskip("verl.trainer.ppo.core_algos")


class Drawn:
    """Random rewards, ragged masks and log-probs."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.lengths_B = rng.integers(1, TOKENS + 1, ROWS)
        self.mask_BT = np.arange(TOKENS) < self.lengths_B[:, None]
        self.rewards_GM = rng.integers(0, 2, (GROUPS, MEMBERS)).astype(float) + rng.random((GROUPS, MEMBERS)) * 0.1
        self.groups_B = np.repeat(np.arange(GROUPS), MEMBERS)
        self.behavior_BT = -rng.exponential(0.8, (ROWS, TOKENS))
        self.old_BT = np.minimum(self.behavior_BT + rng.normal(0, 0.2, (ROWS, TOKENS)), -1e-3)
        self.policy_BT = np.minimum(self.old_BT + rng.normal(0, 0.3, (ROWS, TOKENS)), -1e-3)
        self.advantages_B = rng.standard_normal(ROWS)

    def token_rewards(self):
        values = torch.zeros(ROWS, TOKENS, dtype=torch.float64)
        values[torch.arange(ROWS), torch.from_numpy(self.lengths_B) - 1] = torch.from_numpy(self.rewards_GM.ravel())
        return values

    @property
    def mask(self):
        return torch.from_numpy(self.mask_BT).double()

    @property
    def lengths_GM(self):
        return self.lengths_B.reshape(GROUPS, MEMBERS).tolist()

    def table(self):
        return adv.RewardTable.of(self.rewards_GM.tolist())


@pytest.fixture(params=range(4))
def drawn(request):
    return Drawn(request.param)


def flat(table):
    return [value for group in table.lists() for value in group]


def first_tokens(values_BT):
    return values_BT[:, 0].numpy()


def test_grpo_rloo_and_mean(verl, drawn):
    arguments = (drawn.token_rewards(), drawn.mask, drawn.groups_B)
    theirs, _ = verl.compute_grpo_outcome_advantage(*arguments)
    np.testing.assert_allclose(first_tokens(theirs), flat(adv.grpo(drawn.table())), atol=1e-6)
    theirs, _ = verl.compute_grpo_outcome_advantage(*arguments, norm_adv_by_std_in_grpo=False)
    np.testing.assert_allclose(first_tokens(theirs), flat(adv.mean_only(drawn.table())), atol=1e-6)
    theirs, _ = verl.compute_rloo_outcome_advantage(*arguments)
    np.testing.assert_allclose(first_tokens(theirs), flat(adv.rloo(drawn.table())), atol=1e-6)


def test_opo(verl, drawn):
    theirs, _ = verl.compute_opo_outcome_advantage(drawn.token_rewards(), drawn.mask, drawn.groups_B)
    np.testing.assert_allclose(first_tokens(theirs), flat(adv.opo(drawn.table(), drawn.lengths_GM)), atol=1e-6)


def test_reinforce_pp_baseline(verl, drawn):
    theirs, _ = verl.compute_reinforce_plus_plus_baseline_outcome_advantage(
        drawn.token_rewards(), drawn.mask, drawn.groups_B
    )
    ours = flat(adv.reinforce_pp_baseline(drawn.table(), drawn.lengths_GM))
    np.testing.assert_allclose(first_tokens(theirs), ours, atol=1e-6)


LOSSES = {
    "vanilla": (named.ClipLoss(dual_bound=3.0), "token_mean"),
    "gspo": (named.GspoLoss(), "seq_mean_token_mean"),
    "cispo": (named.CispoRelativeLoss(), "token_mean"),
    "sapo": (named.SapoLoss(), "seq_mean_token_mean"),
    "geo_mean": (named.GmpoLoss(), "seq_mean_token_mean"),
    "dppo_tv": (named.DppoLoss(divergence="tv", threshold=0.15), "token_mean"),
    "dppo_kl": (named.DppoLoss(divergence="kl", threshold=0.15), "token_mean"),
    "dro": (named.DroLoss(beta=0.1), "token_mean"),
}


def ours(loss, aggregation, drawn):
    policy = torch.from_numpy(drawn.policy_BT.copy()).requires_grad_()
    mask = torch.from_numpy(drawn.mask_BT)
    rows = torch.from_numpy(np.repeat(np.arange(ROWS)[:, None], TOKENS, 1))[mask]
    advantages = torch.from_numpy(drawn.advantages_B)[rows]
    tokens = LossTokens(policy[mask], torch.from_numpy(drawn.old_BT)[mask], advantages, rows)
    losses = token_losses(loss, tokens, clip_low=LOW, clip_high=HIGH)
    weights = torch.from_numpy(token_weights_B(aggregation, drawn.lengths_B))[rows]
    value = weighted_sum(losses, weights)
    value.backward()
    return float(value.detach()), policy.grad.numpy()


@pytest.mark.parametrize("name", LOSSES)
def test_policy_losses_in_value_and_gradient(verl, drawn, name):
    config = pytest.importorskip("verl.workers.config")
    loss, aggregation = LOSSES[name]
    extra = {}
    if name.startswith("dppo"):
        extra = {"clip_ratio_low": loss.threshold, "clip_ratio_high": loss.threshold}
    actor = config.FSDPActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_mini_batch_size=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=LOW,
        policy_loss=config.PolicyLossConfig(loss_mode=name, dro_beta=0.1),
        **{"clip_ratio_low": LOW, "clip_ratio_high": HIGH, "clip_ratio_c": 3.0, **extra},
    )
    policy = torch.from_numpy(drawn.policy_BT.copy()).requires_grad_()
    arguments = {
        "old_log_prob": torch.from_numpy(drawn.old_BT),
        "log_prob": policy,
        "advantages": torch.from_numpy(drawn.advantages_B)[:, None].expand(ROWS, TOKENS) * drawn.mask,
        "response_mask": drawn.mask,
        "loss_agg_mode": aggregation.replace("_", "-"),
        "config": actor,
    }
    theirs, _ = verl.get_policy_loss_fn(name)(**arguments)
    theirs.backward()
    value, gradient = ours(loss, aggregation, drawn)
    assert float(theirs.detach()) == pytest.approx(value, abs=1e-6)
    np.testing.assert_allclose(policy.grad.numpy(), gradient, atol=1e-6)


def test_token_weights_and_mismatch(drawn):
    helper = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper")
    old, behavior = torch.from_numpy(drawn.old_BT), torch.from_numpy(drawn.behavior_BT)
    rows = np.repeat(np.arange(ROWS), drawn.lengths_B)
    mask = drawn.mask_BT
    for level, kind in (("token", TokenTis(bound=1.2)), ("sequence", SequenceTis(bound=1.2))):
        found, _ = helper.compute_rollout_correction_weights(
            log_ratio=old - behavior,
            response_mask=drawn.mask,
            rollout_is=level,
            rollout_is_threshold=1.2,
        )
        corrected = correct(
            [kind],
            (drawn.old_BT - drawn.behavior_BT)[mask],
            rows,
            num_rows=ROWS,
            advantages_N=np.ones(int(mask.sum())),
        )
        np.testing.assert_allclose(found.numpy()[mask], corrected.weights_N, atol=1e-6)
    theirs = helper.compute_offpolicy_metrics(old, behavior, drawn.mask)
    figures = mismatch(drawn.old_BT[mask], drawn.behavior_BT[mask], rows)
    for name, value in (
        ("kl", figures.kl_k1),
        ("k3_kl", figures.kl_k3),
        ("chi2_token", figures.chi_squared_token),
        ("chi2_seq", figures.chi_squared_sequence),
        ("training_ppl", figures.trainer_perplexity),
        ("rollout_ppl", figures.behavior_perplexity),
        ("log_ppl_diff", figures.log_perplexity_difference),
        ("ppl_ratio", figures.perplexity_ratio),
    ):
        assert float(theirs[name]) == pytest.approx(value, abs=1e-5), name
