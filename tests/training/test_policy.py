"""Weights as bytes, and models of several kinds behind the same interface."""

import random

import pytest
import safetensors.torch
import torch
from training_lab import LLAMA, Lab, full_logprobs, reference_model
from transformers import AutoConfig, AutoModelForCausalLM

from headrace.errors import IntegrityError
from headrace.training.core import TrainerOptions
from headrace.training.policy import Policy
from headrace.training.warm_start import WarmStartSettings, warm_start
from headrace.training.weights import canonical_state, load_weights, weights_bytes

TIED = {**LLAMA, "model_type": "qwen3", "head_dim": 8, "tie_word_embeddings": True}
SCALED = {**LLAMA, "model_type": "granite", "logits_scaling": 4.0, "embedding_multiplier": 2.0}
CAPPED = {**LLAMA, "model_type": "gemma2", "head_dim": 8, "final_logit_softcapping": 2.0, "tie_word_embeddings": True}
KINDS = {"tied": TIED, "scaled": SCALED, "capped": CAPPED, "plain": LLAMA}


@pytest.fixture(params=KINDS, scope="module")
def folder(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("kinds") / request.param
    return warm_start(KINDS[request.param], (), WarmStartSettings(steps=0), seed=2, out_dir=out)


def test_log_probs_of_every_kind_are_those_of_its_whole_forward_pass(folder):
    lab = Lab(folder)
    rows = lab.ragged(6, temperature=0.8, shift=0.0)
    scores = lab.core(TrainerOptions(micro_batch_tokens=30)).score(rows, 0)
    assert max(score.fresh_abs_max for score in scores) < 1e-5


def test_published_weights_of_every_kind_give_a_reader_the_trainers_output(folder, tmp_path):
    lab = Lab(folder)
    core = lab.core(learning_rate=1e-2)
    result = core.update(lab.plan(lab.ragged(6)))
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(lab.weights[result.weights])
    reader = reference_model(tmp_path)
    stale = lab.model
    ids = [1, 2, 3, 4, 5]
    with torch.no_grad():
        theirs = full_logprobs(reader, ids)[1:]
        ours = full_logprobs(core._policy.model, ids)[1:]
        old = full_logprobs(stale, ids)[1:]
    torch.testing.assert_close(theirs, ours, atol=1e-6, rtol=0.0)
    assert float((old - ours).abs().max()) > 1e-4


def test_an_output_layer_that_is_scaled_or_capped_is_not_bypassed(tmp_path):
    proven = {
        name: Policy.load(warm_start(config, (), WarmStartSettings(steps=0), seed=2, out_dir=tmp_path / name))._head
        is not None
        for name, config in KINDS.items()
    }
    assert proven == {"tied": True, "scaled": False, "capped": False, "plain": True}


def model_of(config):
    rest = dict(config)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(rest.pop("model_type"), **rest))


def test_equal_weights_are_equal_bytes_whatever_the_order(monkeypatch):
    model = model_of(LLAMA)
    first = weights_bytes(model)
    state = list(model.state_dict().items())
    random.Random(3).shuffle(state)
    monkeypatch.setattr(model, "state_dict", lambda: dict(state))
    assert weights_bytes(model) == first


def test_a_tied_output_layer_is_stored_once(tmp_path):
    tied, untied = canonical_state(model_of(TIED)), canonical_state(model_of({**TIED, "tie_word_embeddings": False}))
    assert untied.keys() - tied.keys() == {"lm_head.weight"}
    model = model_of(TIED)
    changed = safetensors.torch.load(weights_bytes(model))
    changed["model.embed_tokens.weight"] += 1.0
    load_weights(model, safetensors.torch.save(changed))
    assert torch.equal(model.lm_head.weight, changed["model.embed_tokens.weight"])


def test_weights_survive_the_way_through_bytes_bit_for_bit():
    torch.manual_seed(1)
    source, target = model_of(LLAMA), model_of({**LLAMA, "initializer_range": 0.1})
    data = weights_bytes(source)
    assert weights_bytes(target) != data
    load_weights(target, data)
    assert weights_bytes(target) == data


def test_weights_that_do_not_fit_change_nothing():
    model = model_of(LLAMA)
    before = weights_bytes(model)
    state = safetensors.torch.load(before)
    fewer = {name: tensor for name, tensor in state.items() if name != "model.norm.weight"}
    other_shape = {**state, "model.norm.weight": torch.ones(3)}
    other_type = {**state, "model.norm.weight": state["model.norm.weight"].double()}
    for data, message in (
        (b"garbage", "no safetensors"),
        (before[:-8], "no safetensors"),
        (safetensors.torch.save(fewer), "other names"),
        (safetensors.torch.save(other_shape), r"model\.norm\.weight: \(3,\)"),
        (safetensors.torch.save(other_type), "float64"),
    ):
        with pytest.raises(IntegrityError, match=message):
            load_weights(model, data)
        assert weights_bytes(model) == before
