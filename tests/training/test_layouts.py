"""Packed against padded, bfloat16 against float32: how a batch is computed, not what it means."""

import numpy as np
import pytest
import torch
from training_lab import LLAMA, Lab

from headrace.errors import ConfigError
from headrace.training.core import TrainerOptions
from headrace.training.packed_attention import use_packed_attention
from headrace.training.packing import pack, read_transcripts
from headrace.training.policy import Policy, micro_batches
from headrace.training.warm_start import WarmStartSettings, warm_start

TIED = {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True, "num_key_value_heads": 4}


@pytest.fixture(scope="session")
def tied_lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tied") / "policy"
    return Lab(warm_start(TIED, (), WarmStartSettings(steps=0), seed=2, out_dir=folder))


def packed_rows(lab, rows):
    return pack(rows, read_transcripts((row.transcript for row in rows), lab.rows.__getitem__))


@pytest.mark.parametrize("name", ["lab", "tied_lab"])
def test_packing_changes_no_log_prob(name, request):
    lab = request.getfixturevalue(name)
    rows = packed_rows(lab, [*lab.ragged(12, seed=4), lab.row([lab.given([1, 2])])])
    found = {}
    for layout in ("padded", "packed"):
        policy = Policy.load(lab.folder)
        policy.use(layout, "float32")
        found[layout] = np.full(len(rows.ids_N), np.nan)
        with torch.inference_mode():
            for micro in micro_batches(rows, range(len(rows.transcripts)), 96, layout):
                picked = policy.log_distribution(micro).gather(1, micro.targets_N[:, None])[:, 0]
                found[layout][micro.tokens_N] = picked.numpy()
    np.testing.assert_array_equal(np.isnan(found["packed"]), ~rows.action_mask_N)
    np.testing.assert_allclose(found["packed"], found["padded"], atol=2e-6)


def test_packing_changes_no_gradient_and_no_metric(lab):
    rows = lab.ragged(12)
    results, states = {}, {}
    for layout in ("padded", "packed"):
        core = lab.core(TrainerOptions(epsilon=1e-3, layout=layout, micro_batch_tokens=70))
        results[layout] = core.update(lab.plan(rows)).metrics
        states[layout] = core._policy.model.state_dict()
    for name, value in results["padded"].items():
        assert results["packed"][name] == pytest.approx(value, rel=1e-4, abs=2e-5), name
    for name, value in states["padded"].items():
        torch.testing.assert_close(states["packed"][name], value, atol=2e-6, rtol=1e-4, msg=name)


def test_rows_end_to_end_without_boundaries_would_see_each_other(lab):
    rows = packed_rows(lab, lab.ragged(4))
    policy = Policy.load(lab.folder)
    policy.use("packed", "float32")
    (micro,) = micro_batches(rows, range(4), 10_000, "packed")
    assert micro.position_ids()[0, micro.cu_seqlens[1]] == 0
    with torch.inference_mode():
        right = policy.log_distribution(micro)
        wrong = torch.log_softmax(policy.logits(micro.inputs_BT, micro.positions_N), dim=-1)
    first = micro.rows_N == 0
    torch.testing.assert_close(wrong[first], right[first], atol=1e-5, rtol=0.0)
    assert float((wrong[~first] - right[~first]).abs().max()) > 0.1


def test_packed_micro_batches_count_tokens_and_padded_ones_count_slots(lab):
    rows = packed_rows(lab, lab.ragged(12))
    for layout in ("padded", "packed"):
        parts = list(micro_batches(rows, range(12), 40, layout))
        assert all(part.inputs_BT.numel() <= 40 for part in parts)
        seen = np.concatenate([part.tokens_N for part in parts])
        assert sorted(seen.tolist()) == np.flatnonzero(rows.action_mask_N).tolist()
    padded = sum(part.inputs_BT.numel() for part in micro_batches(rows, range(12), 400, "padded"))
    assert sum(part.inputs_BT.numel() for part in micro_batches(rows, range(12), 400, "packed")) < padded


def test_a_model_that_looks_back_over_a_window_is_not_packed(lab):
    model = Policy.load(lab.folder).model
    model.config.layer_types = ["sliding_attention", "full_attention"]
    with pytest.raises(ConfigError, match="full attention"):
        use_packed_attention(model)


def test_bfloat16_is_near_float32_and_its_mismatch_is_measured(lab):
    rows = lab.ragged(12, shift=0.0)
    exact, rough = lab.core(), lab.core(TrainerOptions(precision="bfloat16"))
    scores = {name: core.score(rows, 0) for name, core in (("exact", exact), ("rough", rough))}
    largest = {name: max(score.fresh_abs_max for score in found) for name, found in scores.items()}
    assert largest["exact"] < 1e-5
    assert 1e-4 < largest["rough"] < 0.2
    metrics = rough.update(lab.plan(rows)).metrics
    assert metrics["mismatch"] == pytest.approx(largest["rough"], rel=0.2)
    assert metrics["mismatch_floor"] < metrics["mismatch"] / 3
    assert all(parameter.dtype == torch.float32 for parameter in rough._policy.model.parameters())


def test_the_canary_is_exact_under_autocast(lab):
    ids = [np.array([1, 2, 3, 4], "<i4")]
    assert lab.core(TrainerOptions(precision="bfloat16")).canary(ids) == lab.core().canary(ids)


def test_the_same_scores_twice_have_a_noise_floor_of_zero(lab):
    core = lab.core()
    rows = lab.ragged(9)
    core.score(rows, 0)
    assert core.update(lab.plan(rows)).metrics["mismatch_floor"] < 1e-6
    assert "mismatch_floor" not in lab.core().update(lab.plan(rows)).metrics
