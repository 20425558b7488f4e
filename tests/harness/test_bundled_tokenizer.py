import subprocess
import sys

import pytest
from tokenizers import Tokenizer

from headrace.harness import TextCodec
from headrace.harness.chatml import ASSETS
from headrace.harness.make_tokenizer import CONTROLS, VOCABULARY, make_tokenizer


def test_the_same_texts_give_the_same_bytes() -> None:
    texts = ["What is 12 + 3?", "error: unknown tool", "What is 4 * 55?"] * 20
    assert make_tokenizer(texts, 300) == make_tokenizer(iter(texts), 300)


def test_a_made_tokenizer_reads_any_text_back_and_cuts_numbers_into_pairs() -> None:
    codec = TextCodec(make_tokenizer(["12 34 5 " * 50, "é✓ \x00\t"] * 50, 320))
    for text in ("12345", "9" * 30, "\u0000é👩‍🚀\n\r\t"):
        assert codec.decode(codec.encode_text(text)[0]) == text
    assert [codec.decode([i]) for i in codec.encode_text("12345")[0]] == ["12", "34", "5"]


def test_control_tokens_have_the_first_ids() -> None:
    codec = TextCodec.from_folder(ASSETS)
    assert [codec.control(literal) for literal in CONTROLS] == list(range(len(CONTROLS)))
    assert codec.known_ids == frozenset(range(VOCABULARY))
    assert codec.vocabulary_size == VOCABULARY


@pytest.mark.slow
def test_the_bundled_tokenizer_is_what_its_script_makes() -> None:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "tokenizer.json"
        argv = [sys.executable, "-m", "labs.make_tokenizer", str(target)]
        subprocess.run(argv, env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "11"}, check=True)
        assert target.read_bytes() == (ASSETS / "tokenizer.json").read_bytes()
        assert Tokenizer.from_file(str(target)).get_vocab_size() == VOCABULARY
