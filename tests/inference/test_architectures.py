"""The engine serves any decoder of transformers with full attention, recorded or not, with the same values."""

from pathlib import Path

import numpy as np
import pytest
import torch
from engine_case import drain, some_ids
from tiny_policy import POLICY, PolicyFolder, prompt, request
from transformers import AutoConfig, AutoModelForCausalLM

from headrace.inference.core import EngineCore
from headrace.inference.options import EngineOptions
from headrace.records.ids import PolicyRef

SIZES = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "tie_word_embeddings": True,
}
OWN = {
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "smollm3": {"pad_token_id": 0},
}


@pytest.mark.parametrize(
    ("kind", "attention"),
    [
        ("llama", "sdpa"),
        ("llama", "eager"),
        ("qwen2", "sdpa"),
        ("qwen3", "sdpa"),
        ("qwen3_moe", "sdpa"),
        ("smollm3", "sdpa"),
    ],
)
def test_behaviour_equals_a_full_forward_of_every_architecture(tmp_path: Path, kind: str, attention: str) -> None:
    config = AutoConfig.for_model(kind, **SIZES, **OWN.get(kind, {}))
    config.save_pretrained(tmp_path)
    folder = PolicyFolder(tmp_path)
    models = []
    options = EngineOptions(slots=4, context=128, prefill_chunk=16, attention=attention)
    core = EngineCore(options, tmp_path, folder.weights_path, lambda: 0.0)
    for version in range(3):  # the third is loaded into the memory of the first
        torch.manual_seed(version)
        models.append(AutoModelForCausalLM.from_config(config).eval().requires_grad_(False))
        for parameter in models[version].parameters():  # norms and biases are all alike in the first, and differ later
            parameter.add_(0.1 * version * torch.rand_like(parameter))
        core.stage(PolicyRef(POLICY, version), folder.write(models[version].state_dict()))
        core.activate(PolicyRef(POLICY, version), frozenset())
        prompts = [some_ids(length, length) for length in (1, 17, 40)]
        for index, ids in enumerate(prompts):
            core.submit(request(f"e{index}/{version}", prompt(*ids), max_tokens=12))
        for (_, result), ids in zip(sorted(drain(core).items()), prompts, strict=True):
            row = torch.from_numpy(np.concatenate([ids, result.ids]).astype(np.int64))[None]
            with torch.inference_mode():
                logprobs = torch.log_softmax(models[version](row, use_cache=False).logits[0, :-1].float(), -1)
            expected = logprobs.gather(1, row[0, 1:, None])[len(ids) - 1 :, 0].numpy()
            assert result.versions == [version]
            np.testing.assert_allclose(result.logprobs, expected, atol=2e-5)


def test_a_recording_changes_no_bit(tmp_path: Path) -> None:
    folder = PolicyFolder.create(tmp_path)
    found = []
    for is_recorded in (False, True):
        options = EngineOptions(slots=4, context=128, prefill_chunk=16, is_recorded=is_recorded)
        core = EngineCore(options, folder.path, folder.weights_path, lambda: 0.0)
        core.stage(PolicyRef(POLICY, 0), folder.publish(0))
        core.activate(PolicyRef(POLICY, 0), frozenset())
        for index, length in enumerate((3, 30, 30, 61, 9, 18)):
            core.submit(request(f"e{index}/0", prompt(*some_ids(length, length)), max_tokens=10 + index))
        found.append({name: result.segments for name, result in drain(core).items()})
        assert core.bank.forward(0).num_unrecorded == 0
    assert found[0] == found[1]
