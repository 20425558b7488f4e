import numpy as np
import pytest
import torch
from training_lab import LLAMA, full_logprobs, reference_model

from headrace.errors import ConfigError
from headrace.training.warm_start import WarmStartSettings, warm_start

SETTINGS = WarmStartSettings(steps=30, batch_sequences=8, learning_rate=1e-2, ramp_steps=3)


def demonstrations(count=40, seed=0):
    """Prompt of three tokens, then the same three tokens again, which alone are learned."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        prompt = rng.integers(2, 10, 3)
        ids = np.concatenate([[1], prompt, prompt]).astype(np.int32)
        yield ids, np.array([False] * 4 + [True] * 3)


def trained(tmp_path, name, seed=1, settings=SETTINGS, progress=lambda _: None):
    return warm_start(LLAMA, list(demonstrations()), settings, seed=seed, out_dir=tmp_path / name, progress=progress)


def test_the_folder_is_the_same_for_the_same_seed_and_another_for_another(tmp_path):
    first, again, other = (trained(tmp_path, name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    for name in ("config.json", "model.safetensors"):
        assert (first / name).read_bytes() == (again / name).read_bytes()
    assert (first / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_the_global_random_state_neither_matters_nor_moves(tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = trained(tmp_path, "a")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert (first / "model.safetensors").read_bytes() == (trained(tmp_path, "b") / "model.safetensors").read_bytes()


def test_it_learns_what_is_marked(tmp_path):
    losses = []
    folder = trained(tmp_path, "a", progress=lambda p: losses.append(p.loss))
    assert len(losses) == SETTINGS.steps
    assert losses[-1] < 0.75 * losses[0]
    fresh = warm_start(LLAMA, (), WarmStartSettings(steps=0), seed=1, out_dir=tmp_path / "fresh")
    before, after = reference_model(fresh), reference_model(folder)
    ids, mask = next(demonstrations(seed=9))
    with torch.no_grad():
        gain = full_logprobs(after, ids.tolist()) - full_logprobs(before, ids.tolist())
    assert float(gain[mask].mean()) > 0.5


def test_unmarked_tokens_change_no_gradient_as_targets(tmp_path):
    plain = list(demonstrations())
    longer = [(np.append(ids, np.int32(3)), np.append(mask, False)) for ids, mask in plain]
    folders = [
        warm_start(LLAMA, sequences, SETTINGS, seed=1, out_dir=tmp_path / name)
        for name, sequences in (("a", plain), ("b", longer))
    ]
    assert len({(folder / "model.safetensors").read_bytes() for folder in folders}) == 1


def test_every_sequence_is_taken_once_before_any_is_taken_again(tmp_path):
    tokens = []
    sequences = [(np.arange(1, n + 3, dtype=np.int32) % 30, np.arange(n + 2) > 0) for n in range(8)]
    settings = WarmStartSettings(steps=4, batch_sequences=4)
    warm_start(LLAMA, sequences, settings, seed=3, out_dir=tmp_path / "a", progress=lambda p: tokens.append(p.tokens))
    assert tokens[1] == sum(len(ids) for ids, _ in sequences)
    assert tokens[3] == 2 * tokens[1]


def test_the_rate_rises_then_falls_along_a_cosine():
    settings = WarmStartSettings(steps=100, learning_rate=1.0, ramp_steps=10, final_fraction=0.1)
    rates = [settings.rate(step) for step in range(100)]
    assert rates[:9] == sorted(rates[:9])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)
    assert max(rates) == rates[9]


def test_what_cannot_be_learned_from_is_refused(tmp_path):
    good, mask = next(demonstrations())
    cases = [
        ([], "need sequences"),
        ([(good, mask[:-1])], "both must be"),
        ([(good + np.int32(30), mask)], "outside the vocabulary"),
        ([(good, np.zeros_like(mask))], "first token or none"),
        ([(good, np.ones_like(mask))], "first token or none"),
    ]
    for sequences, message in cases:
        with pytest.raises(ConfigError, match=message):
            warm_start(LLAMA, sequences, SETTINGS, seed=1, out_dir=tmp_path / "x")
    with pytest.raises(ConfigError, match="names no known model"):
        warm_start({"model_type": "unheard_of"}, (), WarmStartSettings(steps=0), seed=1, out_dir=tmp_path / "x")
    with pytest.raises(ConfigError, match="exists"):
        warm_start(LLAMA, (), WarmStartSettings(steps=0), seed=1, out_dir=tmp_path)
    assert not (tmp_path / "x").exists()


def test_settings_out_of_bounds_are_refused():
    with pytest.raises(ValueError, match="batch_sequences is 0"):
        WarmStartSettings(batch_sequences=0)
