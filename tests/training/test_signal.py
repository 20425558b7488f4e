"""Steps, corrections, reference, critic: what the core makes of the learning signal."""

from typing import get_args

import msgspec
import numpy as np
import pytest
import torch
from training_lab import full_logprobs, reference_model

from headrace.algorithms.aggregation import token_weights_B
from headrace.algorithms.returns import gae, whitened
from headrace.errors import Outcome, TrainerError
from headrace.records.learning import corrections as named
from headrace.records.learning.advantages import Critic, EstimatorOptions
from headrace.records.learning.kl import Kl
from headrace.records.learning.losses import Loss
from headrace.training.core import TrainerOptions
from headrace.training.critic import critic_advantages
from headrace.training.packing import pack, read_transcripts

DECOUPLED = {"anchor": "old", "corrections": (named.TokenTis(bound=1.2),)}


def packed(lab, rows):
    return pack(rows, read_transcripts((row.transcript for row in rows), lab.rows.__getitem__))


def grouped(lab, rows, size=3):
    """The rows as members of groups of their own, for steps over whole groups."""
    return [lab.regroup(row, index // size) for index, row in enumerate(rows)]


def weights_of(core):
    return {name: value.clone() for name, value in core._policy.model.state_dict().items()}


def reference_gradient(lab, rows, loss_of_token, aggregation="token_mean"):
    """Gradient by whole forward passes, one row at a time; `loss_of_token(new, old, behavior, advantage, row)`."""
    model = reference_model(lab.folder)
    batch = packed(lab, rows)
    weights_B = token_weights_B(aggregation, batch.action_tokens_B, prompts_B=batch.groups)
    loss = torch.zeros(())
    for row, (start, stop) in enumerate(zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)):
        mask = torch.from_numpy(batch.action_mask_N[start:stop])
        new = full_logprobs(model, batch.ids_N[start:stop].tolist())[mask]
        behavior = torch.from_numpy(batch.behavior_logprobs_N[start:stop].copy())[mask]
        tokens = loss_of_token(new, new.detach(), behavior, float(batch.advantages_B[row]), row)
        loss = loss + tokens.sum() * weights_B[row]
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    return float(loss.detach()), float(norm)


def test_decoupled_ppo_weighs_each_token_by_old_over_behaviour(lab):
    rows = lab.ragged(9)

    def loss(new, old, behavior, advantage, row):
        return -torch.exp(old - behavior).clamp(max=1.2) * torch.exp(new - old) * advantage

    expected, norm = reference_gradient(lab, rows, loss)
    core = lab.core(max_grad_norm=1e9, **DECOUPLED)
    metrics = core.update(lab.plan(rows)).metrics
    assert metrics["loss"] == pytest.approx(expected, abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert metrics["drift_kl"] < 1e-9 < metrics["kl"]
    assert 0.0 < metrics["truncated_tokens_token_tis"] < 1.0


def test_an_interpolated_anchor_is_the_behaviour_at_lag_0_and_nears_the_old_policy_with_lag(lab):
    fresh = lab.ragged(6)
    none = {"corrections": (named.NoCorrection(),)}
    behavior = lab.core().update(lab.plan(fresh)).metrics
    assert lab.core(anchor="interpolated", **none).update(lab.plan(fresh)).metrics["loss"] == pytest.approx(
        behavior["loss"], abs=1e-6
    )

    def far(anchor, version):
        """Share of tokens outside the clip distances, at an update that finds tokens `version` versions old."""
        core = lab.core(anchor=anchor, clip_low=0.05, clip_high=0.05, learning_rate=1e-9, **none)
        for n in range(version):
            core.update(lab.plan(fresh, version=n))
        return core.update(lab.plan(fresh, version=version)).metrics["clip_fraction_outside"]

    by_lag = [far("interpolated", version) for version in (0, 4, 9)]
    assert by_lag[0] > by_lag[1] > by_lag[2] == far("old", 1) == 0.0


def test_staleness_and_drift_are_two_figures(lab):
    rows = grouped(lab, lab.ragged(12))
    core = lab.core(steps=3, learning_rate=1e-2, **DECOUPLED)
    metrics = core.update(lab.plan(rows)).metrics
    assert (core.version, metrics["optimizer_steps"]) == (1, 3.0)
    assert metrics["drift_kl"] > 1e-6
    assert metrics["drift_max"] > metrics["mismatch_floor"] if "mismatch_floor" in metrics else True


def test_steps_take_whole_groups_and_one_step_is_the_plain_update(lab):
    rows = grouped(lab, lab.ragged(12))
    plain, same = lab.core(), lab.core(steps=1)
    assert plain.update(lab.plan(rows)).weights == same.update(lab.plan(rows)).weights
    one_group = [lab.regroup(row, 0) for row in rows]
    single = lab.core(steps=4)
    assert single.update(lab.plan(one_group)).metrics["optimizer_steps"] == 1.0


def test_a_step_that_fails_halfway_leaves_everything_as_it_was(lab):
    good = grouped(lab, lab.ragged(6))
    bad = lab.regroup(msgspec.structs.replace(lab.ragged(3)[0], advantage=3e38, weight=3e38), 7)
    core = lab.core(steps=3, learning_rate=1e-2)
    before, state = weights_of(core), str(core._optimizer.state_dict())
    with pytest.raises(TrainerError, match="nothing was changed") as caught:
        core.update(lab.plan([*good, bad]))
    assert (caught.value.outcome, core.version) == (Outcome.REJECTED, 0)
    assert str(core._optimizer.state_dict()) == state
    for name, value in weights_of(core).items():
        torch.testing.assert_close(value, before[name], atol=0.0, rtol=0.0)


def test_a_removed_row_gives_no_gradient_and_the_denominator_is_a_choice(lab):
    rows = lab.ragged(9, shift=0.0)
    far = lab.row(lab.episode([1, 2], ([3, 4, 5], []), shift=3.0), advantage=1.0)
    without = lab.core(max_grad_norm=1e9).update(lab.plan(rows)).metrics
    veto = {"corrections": (named.TokenVeto(bound=0.0),)}
    assert lab.core(**veto).update(lab.plan([*rows, far])).metrics["removed_rows_token_veto"] == 0.0
    found = {}
    for denominator in ("original", "kept"):
        mask = named.GeometricMask(low=0.5, high=2.0, denominator=denominator)
        found[denominator] = lab.core(max_grad_norm=1e9, corrections=(mask,)).update(lab.plan([*rows, far])).metrics
        assert found[denominator]["removed_rows_geometric_mask"] == pytest.approx(1 / 10)
    assert found["kept"]["loss"] == pytest.approx(without["loss"], abs=1e-6)
    tokens = without["action_tokens"]
    assert found["original"]["loss"] == pytest.approx(without["loss"] * tokens / (tokens + 3), abs=1e-6)


def test_a_batch_of_which_nothing_is_left_is_a_step_of_zero_gradient(lab):
    rows = [lab.row(lab.episode([1, 2], ([3, 4], []), shift=3.0)) for _ in range(3)]
    for denominator in ("original", "kept"):
        mask = named.GeometricMask(low=0.5, high=2.0, denominator=denominator)
        core = lab.core(corrections=(mask,))
        exported = core.export()
        result = core.update(lab.plan(rows))
        assert (result.metrics["loss"], result.metrics["grad_norm"], result.metrics["kept_tokens"]) == (0.0, 0.0, 0.0)
        assert result.weights == exported


def test_row_counts_add_up_to_the_shares_of_the_batch(lab):
    rows = lab.ragged(12)
    result = lab.core().update(lab.plan(rows))
    totals = [
        sum(getattr(row.counts, name) for row in result.rows) for name in ("tokens", "branch_binds", "ratio_outside")
    ]
    assert [(row.transcript, row.path) for row in result.rows] == [(row.transcript, row.path) for row in rows]
    assert totals[0] == result.metrics["action_tokens"]
    assert totals[1] / totals[0] == pytest.approx(result.metrics["clip_fraction"])
    assert totals[2] / totals[0] == pytest.approx(result.metrics["clip_fraction_outside"])


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_reference_pulls_back_what_an_update_moved(lab, estimator):
    rows = lab.ragged(9)
    kl = Kl(coefficient=0.5, estimator=estimator, importance=True)
    core = lab.core(learning_rate=1e-2, kl=kl)
    first = core.update(lab.plan(rows)).metrics
    assert abs(first["reference_kl_k1"]) < 1e-6
    assert core.copies["reference"] == core.copies["policy (trained)"]
    still = [msgspec.structs.replace(row, advantage=0.0) for row in lab.ragged(9)]
    distances = [core.update(lab.plan(still, version=n)).metrics["reference_kl_k3"] for n in range(1, 8)]
    assert distances[0] > 1e-4
    assert distances[-1] < distances[0] / 2
    assert "reference" not in lab.core().copies


def test_the_penalty_of_a_row_is_the_sum_of_its_tokens_distances(lab):
    rows = lab.ragged(6)
    core = lab.core(learning_rate=1e-2, kl=Kl(coefficient=0.1, estimator="k1", place="reward"))
    assert [score.penalty_sum for score in core.score(rows, 0)] == pytest.approx([0.0] * 6, abs=1e-5)
    core.update(lab.plan(rows))
    batch = packed(lab, rows)
    for row, score in enumerate(core.score(rows, 1)):
        part = slice(batch.cu_seqlens[row], batch.cu_seqlens[row + 1])
        ids, mask = batch.ids_N[part].tolist(), batch.action_mask_N[part]
        with torch.no_grad():
            gap = full_logprobs(core._policy.model, ids) - full_logprobs(lab.model, ids)
        assert score.penalty_sum == pytest.approx(float(gap[torch.from_numpy(mask)].sum()), abs=1e-4)


def test_a_critic_learns_the_mean_reward_and_leaves_no_advantage(lab):
    rows = [msgspec.structs.replace(row, advantage=1.0) for row in lab.ragged(9)]
    core = lab.core(TrainerOptions(), advantage="gae", critic=Critic(learning_rate=1e-2, value_clip=0.0))
    losses = [core.update(lab.plan(rows, version=n)).metrics["value_loss"] for n in range(15)]
    assert losses[0] == pytest.approx(0.5, abs=1e-6)
    assert losses[-1] < 0.02
    assert core.copies["critic"] > core.copies["policy (trained)"] // 2


def test_the_policy_waits_while_the_critic_warms_up(lab):
    core = lab.core(advantage="gae", critic=Critic(warmup_updates=1))
    exported = core.export()
    rows = lab.ragged(9)
    assert core.update(lab.plan(rows)).weights == exported
    assert core.update(lab.plan(rows, version=1)).weights != exported


def test_an_inserted_observation_changes_no_return_of_an_action(lab):
    plain = lab.row(lab.episode([1, 2], ([3, 4], [9]), ([5], [])), advantage=1.0)
    long = lab.row(lab.episode([1, 2], ([3, 4], [9, 9, 9, 9, 9]), ([5], [])), advantage=1.0)
    algorithm = lab.algorithm(advantage="gae", estimator=EstimatorOptions(discount=0.9, trace=0.8))
    found = []
    for row in (plain, long):
        batch = packed(lab, [row])
        values = np.where(batch.action_mask_N, 0.25, np.nan).astype(np.float32)
        advantages, returns = critic_advantages(batch, values, None, algorithm)
        mask = batch.action_mask_N
        assert not advantages[~mask].any()
        found.append((advantages[mask].tolist(), returns[mask].tolist()))
    assert found[0] == found[1]
    raw, returns = gae(np.array([0.0, 0.0, 1.0]), np.full(3, 0.25), discount=0.9, trace=0.8)
    assert found[0][1] == pytest.approx(returns.tolist())
    assert found[0][0] == pytest.approx(whitened(raw).tolist(), abs=1e-6)


def test_decaying_over_observation_tokens_would_change_the_return():
    rewards, values = np.array([0.0, 1.0]), np.zeros(2)
    right, _ = gae(rewards, values, discount=0.9, trace=1.0)
    wrong, _ = gae(np.array([0.0, 0.0, 0.0, 1.0]), np.zeros(4), discount=0.9, trace=1.0)
    assert right[0] == pytest.approx(0.9)
    assert wrong[0] == pytest.approx(0.9**3)


def test_gae_is_the_return_minus_the_value_at_trace_1_and_one_step_at_trace_0():
    rng = np.random.default_rng(0)
    rewards, values = rng.random(6), rng.random(6)
    advantages, returns = gae(rewards, values, discount=0.9, trace=1.0)
    expected = [sum(0.9 ** (j - i) * rewards[j] for j in range(i, 6)) for i in range(6)]
    assert returns == pytest.approx(expected)
    assert advantages == pytest.approx(np.array(expected) - values)
    one_step, _ = gae(rewards, values, discount=0.9, trace=0.0)
    assert one_step == pytest.approx(rewards + 0.9 * np.append(values[1:], 0.0) - values)


@pytest.mark.parametrize("aggregation", ["seq_mean_token_sum_norm", "prompt_mean"])
def test_every_aggregation_trains(lab, aggregation):
    extra = {"aggregation_tokens": 16} if aggregation.endswith("norm") else {}
    rows = grouped(lab, lab.ragged(9))
    whole = lab.core(aggregation=aggregation, **extra).update(lab.plan(rows))
    cut = lab.core(TrainerOptions(micro_batch_tokens=20), aggregation=aggregation, **extra).update(lab.plan(rows))
    assert whole.metrics["grad_norm"] == pytest.approx(cut.metrics["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("kind", get_args(Loss))
def test_every_loss_trains_under_both_anchors(lab, kind):
    rows = lab.ragged(9)
    for anchor in ({}, {"anchor": "old", "corrections": (named.NoCorrection(),)}):
        assert lab.core(loss=kind(), **anchor).update(lab.plan(rows)).metrics["grad_norm"] > 0.0
