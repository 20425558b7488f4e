"""What does not fit is named with value, bound and remedy before anything is loaded."""

import asyncio
import sys
from pathlib import Path

import pytest

from headrace.config import Config, load_config
from headrace.errors import ConfigError
from headrace.inference.options import EngineOptions
from headrace.inference.vllm.options import VllmOptions
from headrace.runtime.adapters import open_harness
from headrace.runtime.preflight import memory_of, model_shape, preflight, preflight_tasks

EXAMPLE = Path(__file__).parents[2] / "examples" / "arithmetic" / "train.toml"
GIB = 1024**3


def config(*overrides: str) -> Config:
    return load_config(EXAMPLE, overrides)


def fits(chosen: Config, prompts: list[int], available: int) -> str:
    return preflight(chosen, model_shape(chosen, None, 640), 640, prompts, available=available)


def test_the_example_fits_and_says_how() -> None:
    line = fits(config(), [40, 60], 8 * GIB)
    assert "longest prompt 60 of 224" in line
    assert "256 positions" in line


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("budget.episode_tokens=300", "budget.episode_tokens is 300, inference.options.context 256"),
        ("inference.options.context=512", "inference.options.context is 512, the model has 256 positions"),
        ("budget.episode_tokens=60", "the longest prompt has 60 tokens, budget.episode_tokens is 60"),
    ],
)
def test_lengths_that_contradict_each_other_are_refused(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        fits(config(override), [60], 8 * GIB)


@pytest.mark.parametrize(
    ("python", "told"), [("/nowhere/python", "does not run"), (sys.executable, "lacks vllm")], ids=["none", "no vLLM"]
)
def test_an_interpreter_that_cannot_run_vllm_is_refused(python: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        fits(config("inference.kind=vllm", f'inference.options.python="{python}"'), [60], 8 * GIB)


def test_everything_that_does_not_fit_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        fits(config("budget.episode_tokens=600", "inference.options.context=512"), [700], 8 * GIB)
    assert len(str(raised.value).splitlines()) == 4


def test_memory_that_is_not_there_names_the_number_of_slots_that_fit() -> None:
    chosen = config("inference.options.slots=100000")
    with pytest.raises(ConfigError, match=r"lower inference\.options\.slots to") as raised:
        fits(chosen, [60], 4 * GIB)
    slots = int(str(raised.value).rpartition("slots to ")[2].split()[0])
    fits(config(f"inference.options.slots={slots}"), [60], 4 * GIB)
    with pytest.raises(ConfigError):
        fits(config(f"inference.options.slots={slots + 1}"), [60], 4 * GIB)


def test_the_estimate_counts_the_models_own_parameters_and_cache() -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    chosen = config()
    shape = model_shape(chosen, None, 640)
    described = {**chosen.policy.options["model"], "vocab_size": 640}
    kind = described.pop("model_type")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **described))
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert abs(shape.parameters - counted) < 0.01 * counted
    memory = memory_of(shape, EngineOptions(slots=64, context=256), chosen)
    heads, layers = described["num_key_value_heads"], described["num_hidden_layers"]
    head_size = described["hidden_size"] // described["num_attention_heads"]
    assert memory.cache == 2 * layers * 64 * heads * 257 * head_size * 4
    assert memory_of(shape, VllmOptions(cache_gib=3), chosen).cache == 3 * GIB


def test_a_configuration_without_a_policy_is_not_asked_and_a_half_written_one_is_refused() -> None:
    workspace = load_config(EXAMPLE.parents[1] / "workspace" / "check.toml", ())
    harness = open_harness(workspace, (), None)
    assert asyncio.run(preflight_tasks(workspace, harness, [])) is None
    half = load_config(EXAMPLE.parents[1] / "workspace" / "check.toml", ("policy.options.demonstrations=3",))
    with pytest.raises(ConfigError, match="missing required field `model`"):
        asyncio.run(preflight_tasks(half, harness, []))
