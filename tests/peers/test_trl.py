"""Our losses against TRL's GRPOTrainer on random inputs. `pytest -m peers` where trl can be imported; skipped elsewhere.

`pip install --no-deps trl accelerate datasets pandas` and what these name as missing, into a folder on PYTHONPATH.
"""

import collections
import types

import numpy as np
import pytest
import torch
from test_verl import HIGH, LOW, ROWS, TOKENS, Drawn, ours

from headrace.records.learning import losses as named

pytestmark = pytest.mark.peers
# name: TRL's loss_type and importance level, our loss, our aggregation
LOSSES = {
    "grpo": ("grpo", "token", named.ClipLoss(), "seq_mean_token_mean"),
    "bnpo": ("bnpo", "token", named.ClipLoss(), "token_mean"),
    "dapo": ("dapo", "token", named.ClipLoss(), "token_mean"),
    "two_sided": ("bnpo", "token", named.ClipLoss(ratio_bound=1.5), "token_mean"),
    "gspo": ("grpo", "sequence", named.GspoLoss(), "seq_mean_token_mean"),
    "cispo": ("cispo", "token", named.CispoAbsoluteLoss(bound=1.2), "token_mean"),
    "sapo": ("sapo", "token", named.SapoLoss(), "seq_mean_token_mean"),
}


@pytest.fixture(scope="module")
def trainer_class():
    return pytest.importorskip("trl.trainer.grpo_trainer", exc_type=ImportError).GRPOTrainer


@pytest.fixture(params=range(3))
def drawn(request):
    return Drawn(request.param)


def bare_trainer(trainer_class, loss_type, level, loss, policy):
    """A trainer without model or data: it computes the loss of log-probs that are given to it."""
    trainer = object.__new__(trainer_class)
    trainer.loss_type, trainer.importance_sampling_level = loss_type, level
    trainer.epsilon_low, trainer.epsilon_high = LOW, loss.bound if loss_type == "cispo" else HIGH
    trainer.beta, trainer.top_entropy_quantile, trainer.off_policy_mask_threshold = 0.0, 1.0, None
    trainer.aux_loss_enabled = trainer.use_vllm = trainer._entropy_bonus_enabled = False
    trainer.model = types.SimpleNamespace(training=False)
    trainer.accelerator = types.SimpleNamespace(
        num_processes=1, gather=lambda value: value, reduce=lambda value, reduction: value
    )
    trainer._metrics = {"eval": collections.defaultdict(list)}
    trainer.args = types.SimpleNamespace(
        delta=getattr(loss, "ratio_bound", None), sapo_temperature_pos=1.0, sapo_temperature_neg=1.05
    )
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (policy, torch.zeros_like(policy), None)
    return trainer


@pytest.mark.parametrize("name", LOSSES)
def test_losses_in_value_and_gradient(trainer_class, drawn, name):
    loss_type, level, loss, aggregation = LOSSES[name]
    policy = torch.from_numpy(drawn.policy_BT.copy()).requires_grad_()
    ids = torch.zeros(ROWS, TOKENS, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones(ROWS, 1, dtype=torch.long),
        "completion_ids": ids,
        "completion_mask": drawn.mask,
        "advantages": torch.from_numpy(drawn.advantages_B),
        "old_per_token_logps": torch.from_numpy(drawn.old_BT),
        "num_items_in_batch": drawn.mask.sum(),
    }
    theirs = bare_trainer(trainer_class, loss_type, level, loss, policy)._compute_loss(None, inputs)
    theirs.backward()
    value, gradient = ours(loss, aggregation, drawn)
    assert float(theirs.detach()) == pytest.approx(value, abs=1e-6)
    np.testing.assert_allclose(policy.grad.numpy(), gradient, atol=1e-6)
