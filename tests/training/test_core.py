import json
import math

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from training_lab import LLAMA, Lab, full_logprobs, reference_model

from headrace.algorithms.advantages import group_advantages
from headrace.algorithms.aggregation import token_weights_B
from headrace.algorithms.diagnostics import kl_k3
from headrace.errors import ConfigError, Outcome, TrainerError
from headrace.records.arrays import as_float32, float32_bytes
from headrace.records.segment import Origin
from headrace.training.core import TrainerOptions
from headrace.training.packing import pack, read_transcripts


def packed(lab, rows):
    return pack(rows, read_transcripts((row.transcript for row in rows), lab.rows.__getitem__))


def weights_of(core):
    return {name: value.clone() for name, value in core._policy.model.state_dict().items()}


def optimizer_of(core):
    return json.dumps(core._optimizer.state_dict(), default=lambda tensor: tensor.tolist(), sort_keys=True)


def reference_step(lab, rows, algorithm, options):
    """Loss, gradient and new weights by whole forward passes, one row at a time, and torch's own optimizer."""
    model = reference_model(lab.folder)
    batch = packed(lab, rows)
    weights_B = token_weights_B(algorithm.get("aggregation", "token_mean"), batch.action_tokens_B)
    loss = torch.zeros(())
    for row, (start, stop) in enumerate(zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)):
        mask = torch.from_numpy(batch.action_mask_N[start:stop])
        if not mask.any():
            continue
        temperature = float(batch.temperature_N[start:stop][mask.numpy()][0])
        new = full_logprobs(model, batch.ids_N[start:stop].tolist(), temperature)[mask]
        ratio = torch.exp(new - torch.from_numpy(batch.behavior_logprobs_N[start:stop].copy())[mask])
        advantage = float(batch.advantages_B[row])
        clipped = torch.clamp(ratio, 1 - algorithm.get("clip_low", 0.2), 1 + algorithm.get("clip_high", 0.28))
        loss = loss - torch.minimum(ratio * advantage, clipped * advantage).sum() * weights_B[row] * float(
            batch.weights_B[row]
        )
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), algorithm.get("max_grad_norm", 1.0))
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=algorithm.get("learning_rate", 3e-4),
        betas=(options.beta1, options.beta2),
        eps=options.epsilon,
        weight_decay=options.weight_decay,
    )
    optimizer.step()
    return float(loss.detach()), float(norm), model.state_dict()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum"])
def test_one_update_equals_a_hand_written_reference(lab, temperature, aggregation):
    rows = [*lab.ragged(temperature=temperature), lab.row([lab.given([1, 2, 3])])]
    rows[0] = msgspec.structs.replace(rows[0], weight=0.5)
    algorithm = {"aggregation": aggregation, "learning_rate": 1e-2, "max_grad_norm": 0.1}
    # A large epsilon: without it the first step is the sign of the gradient, rounding noise included.
    options = TrainerOptions(weight_decay=0.1, epsilon=1e-3)
    core = lab.core(options, **algorithm)
    loss, norm, weights = reference_step(lab, rows, algorithm, options)
    result = core.update(lab.plan(rows))
    assert result.metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert result.metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert norm > 0.1
    for name, value in core._policy.model.state_dict().items():
        torch.testing.assert_close(value, weights[name], atol=2e-6, rtol=1e-4, msg=name)


@pytest.mark.parametrize("micro_batch_tokens", [1, 20, 64])
def test_the_step_does_not_depend_on_micro_batches(lab, micro_batch_tokens):
    rows = lab.ragged(12)
    whole = lab.core(TrainerOptions(epsilon=1e-3))
    cut = lab.core(TrainerOptions(epsilon=1e-3, micro_batch_tokens=micro_batch_tokens))
    first, second = whole.update(lab.plan(rows)), cut.update(lab.plan(rows))
    for name in ("loss", "grad_norm", "kl", "entropy", "clip_fraction", "action_tokens"):
        assert second.metrics[name] == pytest.approx(first.metrics[name], abs=1e-5), name
    for name, value in weights_of(cut).items():
        torch.testing.assert_close(value, weights_of(whole)[name], atol=2e-6, rtol=1e-4, msg=name)


def test_rows_with_advantage_zero_count_in_the_mean_and_give_no_gradient(lab):
    rows = lab.ragged(9)
    alive = [row for row in rows if row.advantage]
    loss_all = lab.core().update(lab.plan(rows)).metrics
    loss_alive = lab.core().update(lab.plan(alive)).metrics
    share = loss_alive["action_tokens"] / loss_all["action_tokens"]
    assert loss_all["loss"] == pytest.approx(loss_alive["loss"] * share, abs=1e-6)
    assert loss_all["rows_without_gradient"] == len(rows) - len(alive) > 0


def test_a_plan_without_any_advantage_is_a_step_of_zero_gradient(lab):
    core = lab.core()
    exported = core.export()
    rows = [msgspec.structs.replace(row, advantage=0.0) for row in lab.ragged(4)]
    result = core.update(lab.plan(rows))
    assert (result.version, result.metrics["loss"], result.metrics["grad_norm"]) == (1, 0.0, 0.0)
    assert result.weights == exported
    assert result.metrics["entropy"] > 0.0


def test_the_same_plan_gives_the_same_weights_bit_for_bit(lab):
    rows = lab.ragged()
    first = lab.core()
    second = lab.core()
    second.score(rows, 0)
    assert first.update(lab.plan(rows)).weights == second.update(lab.plan(rows)).weights


def test_scores_are_the_log_ratios_of_a_whole_forward_pass(lab):
    rows = [*lab.ragged(8, temperature=0.7), lab.row([lab.given([4, 5])])]
    batch = packed(lab, rows)
    scores = lab.core(TrainerOptions(micro_batch_tokens=40)).score(rows, 0)
    for row, score in enumerate(scores):
        part = slice(batch.cu_seqlens[row], batch.cu_seqlens[row + 1])
        mask = batch.action_mask_N[part]
        with torch.no_grad():
            new = full_logprobs(lab.model, batch.ids_N[part].tolist(), 0.7).numpy()[mask]
        ratio = new - batch.behavior_logprobs_N[part][mask]
        assert (score.transcript, score.path, score.num_tokens) == (rows[row].transcript, 0, int(mask.sum()))
        assert score.log_ratio_sum == pytest.approx(ratio.sum(), abs=1e-4)
        assert score.log_ratio_abs_max == pytest.approx(np.abs(ratio).max(initial=0.0), abs=1e-5)


def test_the_wrong_temperature_would_show_as_mismatch(lab):
    row = lab.row(lab.episode([1, 2], ([3, 4, 5], []), temperature=0.5))
    assert lab.core().score([row], 0)[0].fresh_abs_max < 1e-5
    transcript = read_transcripts([row.transcript], lab.rows.__getitem__)[row.transcript]
    prompt, sampled = transcript.paths[0].segments
    as_one = lab.row([prompt, msgspec.structs.replace(sampled, sampling=type(sampled.sampling)(1.0))])
    assert lab.core().score([as_one], 0)[0].fresh_abs_max > 1e-2


def test_only_tokens_of_the_base_version_in_a_fresh_context_prove_agreement(lab):
    prompt = lab.given([1, 2])
    fresh = lab.policy([3], [1, 2], version=0)
    kept_cache = lab.policy([4], [1, 2, 3], version=1, context=0, shift=0.3)
    old = lab.row([prompt, fresh, kept_cache])
    only_old = lab.row([prompt, lab.policy([3], [1, 2], version=1, context=0, shift=0.3)])
    scores = lab.core().score([old, only_old], 0)
    assert scores[0].fresh_abs_max < 1e-5 < scores[0].log_ratio_abs_max
    assert scores[1].fresh_abs_max is None
    assert (scores[0].old_cache_tokens, scores[0].old_cache_abs_max) == (1, None)  # of another version than the base
    core = lab.core()
    assert "mismatch" not in core.update(lab.plan([only_old])).metrics
    [after] = core.score([only_old], 1)
    assert (after.fresh_abs_max, after.old_cache_tokens) == (None, 1)
    assert after.old_cache_abs_max == after.log_ratio_abs_max > 0.1


def test_observation_tokens_change_no_advantage_and_are_not_trained_on(lab):
    rewards = [[1.0, 0.0, 1.0, None]]
    assert group_advantages("mean", rewards)[0][3] is None
    short = lab.row(lab.episode([1, 2], ([3, 4], [])))
    long = lab.row(lab.episode([1, 2], ([3, 4], [9, 9, 9, 9])))
    first, second = lab.core().update(lab.plan([short])), lab.core().update(lab.plan([long]))
    assert first.metrics["action_tokens"] == second.metrics["action_tokens"] == 2.0
    assert first.weights == second.weights


def test_an_observation_is_attended_to(lab):
    plain = lab.episode([1, 2], ([3], [5]), ([4], []))
    other = [*plain[:2], lab.given([6], Origin.ENVIRONMENT), plain[3]]
    scores = lab.core().score([lab.row(plain), lab.row(other)], 0)
    assert abs(scores[0].log_ratio_sum) < 1e-5 < abs(scores[1].log_ratio_sum)


def test_rows_without_action_tokens_are_counted_and_change_nothing(lab):
    rows = lab.ragged(6)
    empty = lab.row([lab.given([1, 2, 3])])
    plain, padded = lab.core().update(lab.plan(rows)), lab.core().update(lab.plan([*rows, empty]))
    assert plain.weights == padded.weights
    assert (plain.metrics["rows_without_action_tokens"], padded.metrics["rows_without_action_tokens"]) == (0.0, 1.0)


def test_the_metrics_are_finite_and_follow_their_names(lab):
    rows = lab.ragged(9)
    metrics = lab.core().update(lab.plan(rows)).metrics
    batch = packed(lab, rows)
    log_ratio, advantages = [], []
    for row, (start, stop) in enumerate(zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)):
        mask = batch.action_mask_N[start:stop]
        with torch.no_grad():
            new = full_logprobs(lab.model, batch.ids_N[start:stop].tolist()).numpy()[mask]
        log_ratio.extend(new - batch.behavior_logprobs_N[start:stop][mask])
        advantages.extend([batch.advantages_B[row]] * int(mask.sum()))
    ratio, advantages = np.exp(log_ratio), np.array(advantages)
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["ratio_mean"] == pytest.approx(ratio.mean(), abs=1e-5)
    assert metrics["ratio_max"] == pytest.approx(ratio.max(), abs=1e-5)
    assert metrics["kl"] == pytest.approx(kl_k3(-np.array(log_ratio)).mean(), abs=1e-5)
    assert metrics["clip_fraction_high"] == pytest.approx(((ratio > 1.28) & (advantages > 0)).mean())
    assert metrics["clip_fraction_outside"] == pytest.approx(((ratio > 1.28) | (ratio < 0.8)).mean())
    assert metrics["mismatch"] == pytest.approx(np.abs(log_ratio).max(), abs=1e-5)
    assert 0.0 < metrics["entropy"] < math.log(LLAMA["vocab_size"])


def refused(core, call):
    """The message of a call that must be rejected and leave everything as it was."""
    before, optimizer, version = weights_of(core), optimizer_of(core), core.version
    with pytest.raises(TrainerError) as caught:
        call()
    assert caught.value.outcome is Outcome.REJECTED
    assert core.version == version
    assert optimizer_of(core) == optimizer
    assert all(parameter.grad is None for parameter in core._policy.model.parameters())
    for name, value in weights_of(core).items():
        torch.testing.assert_close(value, before[name], atol=0.0, rtol=0.0)
    return str(caught.value)


def test_a_plan_for_another_version_or_policy_is_refused(lab):
    core = lab.core()
    rows = lab.ragged(3)
    core.update(lab.plan(rows))
    assert "policy@0; the trainer holds policy@1" in refused(core, lambda: core.update(lab.plan(rows)))
    assert "other@1" in refused(core, lambda: core.update(lab.plan(rows, version=1, policy_id="other")))
    assert "version 0" in refused(core, lambda: core.score(rows, 0))


def test_a_plan_that_cannot_be_read_is_refused(lab):
    core = lab.core()
    row = lab.row(lab.episode([1], ([2], [])))
    unknown = msgspec.structs.replace(row, transcript="f" * 64)
    outside = lab.row(
        [lab.given([1]), msgspec.structs.replace(lab.policy([2], [1]), ids=np.array([99], "<i4").tobytes())]
    )
    assert "cannot be trained on" in refused(core, lambda: core.update(lab.plan([unknown])))
    assert "vocabulary" in refused(core, lambda: core.update(lab.plan([outside])))
    assert "no trained token" in refused(core, lambda: core.update(lab.plan([lab.row([lab.given([1])])])))


def test_a_loss_or_gradient_that_is_not_finite_changes_nothing(lab):
    core = lab.core()
    rows = lab.ragged(6)
    core.update(lab.plan(rows))
    far = msgspec.structs.replace(lab.policy([3], [1, 2]), behavior_logprobs=float32_bytes([-3e38]))
    overflow = lab.row([lab.given([1, 2]), far], advantage=-1.0)
    assert "nothing was changed" in refused(core, lambda: core.update(lab.plan([*rows, overflow], version=1)))
    huge = msgspec.structs.replace(rows[0], advantage=3e38, weight=3e38)
    assert "nothing was changed" in refused(core, lambda: core.update(lab.plan([huge], version=1)))
    assert core.update(lab.plan(rows, version=1)).version == 2


def test_weights_that_have_become_nan_are_noticed(lab):
    core = lab.core()
    with torch.no_grad():
        next(core._policy.model.parameters()).fill_(math.nan)
    with pytest.raises(TrainerError, match="nothing was changed"):
        core.update(lab.plan(lab.ragged(3)))


def test_the_learning_rate_rises_over_the_warm_up(lab):
    core = lab.core(TrainerOptions(warmup_updates=4), learning_rate=1e-3)
    rates = [core.update(lab.plan(lab.ragged(3), version=n)).metrics["learning_rate"] for n in range(6)]
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])


def test_a_step_makes_rewarded_tokens_likelier(lab):
    good = lab.episode([1, 2], ([3, 4], []))
    bad = lab.episode([1, 2], ([5, 6], []))
    core = lab.core(learning_rate=1e-2)
    rows = [lab.row(good, advantage=1.0), lab.row(bad, advantage=-1.0)]
    core.update(lab.plan(rows))
    scores = core.score(rows, 1)
    assert scores[0].log_ratio_sum > 0.05
    assert scores[1].log_ratio_sum < -0.05


def test_new_weights_lie_under_their_address_and_load_into_the_same_policy(lab):
    core = lab.core()
    exported = core.export()
    result = core.update(lab.plan(lab.ragged(3)))
    assert len(lab.weights[result.weights]) == result.weights_bytes
    assert exported != result.weights == core.export()
    names = safetensors.torch.load(lab.weights[result.weights]).keys()
    assert names == lab.model.state_dict().keys()
    assert result.compute_s == 1.0


def test_the_canary_scores_at_temperature_1_and_measures_the_exact_step(lab):
    core = lab.core(learning_rate=1e-3)
    ids = [np.array([1, 2, 3, 4], "<i4"), np.array([7, 8], "<i4"), np.array([9], "<i4")]
    first = core.canary(ids)
    assert (first.version, first.kl_to_previous) == (0, None)
    before = [full_logprobs(lab.model, sequence.tolist())[1:] for sequence in ids]
    np.testing.assert_allclose(as_float32(first.logprobs), torch.cat(before).detach(), atol=1e-5)
    result = core.update(lab.plan(lab.ragged()))
    second = core.canary(ids)
    new_folder = lab.model.state_dict() | safetensors.torch.load(lab.weights[result.weights])
    moved = reference_model(lab.folder)
    moved.load_state_dict(new_folder)
    total, count = 0.0, 0
    for sequence in ids:
        inputs = torch.from_numpy(sequence.astype(np.int64))[None]
        with torch.no_grad():
            logits = [model(input_ids=inputs).logits[0, :-1].double() for model in (lab.model, moved)]
        old, new = (torch.log_softmax(value, dim=-1) for value in logits)
        total += float((new.exp() * (new - old)).sum())
        count += len(sequence) - 1
    assert second.kl_to_previous == pytest.approx(total / count, rel=1e-3, abs=1e-9)
    assert second.kl_to_previous > 0
    assert core.canary(ids) == second


def test_the_canary_tells_a_large_step_from_two_small_ones(lab):
    ids = [np.arange(1, 20, dtype="<i4")]

    def step(learning_rate):
        core = lab.core(learning_rate=learning_rate)
        core.canary(ids)
        core.update(lab.plan(lab.ragged()))
        return core.canary(ids).kl_to_previous

    assert step(3e-2) > 20 * step(1e-3) > 0


def test_a_canary_that_skipped_a_version_compares_with_the_one_before(lab):
    ids = [np.array([1, 2, 3], "<i4")]
    every, last = lab.core(), lab.core()
    every.canary(ids)
    last.canary(ids)
    for version in range(2):
        rows = lab.ragged(6, seed=version)
        every.update(lab.plan(rows, version=version))
        every.canary(ids)
        last.update(lab.plan(rows, version=version))
    assert last.canary(ids) == every.canary(ids)
    assert lab.core().canary([]).logprobs == b""
    with pytest.raises(TrainerError, match="vocabulary"):
        last.canary([np.array([99], "<i4")])


def test_options_out_of_bounds_are_refused():
    with pytest.raises(ValueError, match="micro_batch_tokens is 0"):
        TrainerOptions(micro_batch_tokens=0)
    with pytest.raises(ValueError, match=r"beta2 is 1\.0"):
        TrainerOptions(beta2=1.0)


def test_a_folder_without_a_policy_is_refused(tmp_path, policy_dir):
    with pytest.raises(ConfigError, match="no policy"):
        Lab.core(_lab_over(tmp_path))
    (tmp_path / "config.json").write_bytes((policy_dir / "config.json").read_bytes())
    state = safetensors.torch.load((policy_dir / "model.safetensors").read_bytes())
    del state["model.norm.weight"]
    (tmp_path / "model.safetensors").write_bytes(safetensors.torch.save(state, {"format": "pt"}))
    with pytest.raises(ConfigError, match=r"lack.*model\.norm\.weight"):
        Lab.core(_lab_over(tmp_path))


def _lab_over(folder):
    lab = object.__new__(Lab)
    lab.folder, lab.rows = folder, {}
    return lab
