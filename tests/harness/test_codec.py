import json

import pytest
from harness_case import CONTROLS
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models

from headrace.errors import ConfigError
from headrace.harness.chatml import ASSETS
from headrace.harness.codec import TextCodec

CODEC = TextCodec.from_folder(ASSETS)
hostile_text = st.lists(
    st.one_of(
        st.sampled_from(CONTROLS),
        st.sampled_from(CONTROLS).flatmap(lambda c: st.integers(1, len(c) - 1).map(lambda n: c[:n])),
        st.sampled_from(CONTROLS).flatmap(lambda c: st.integers(1, len(c) - 1).map(lambda n: c[n:])),
        st.text(max_size=8),
        st.sampled_from(["<", "|", ">", "\n", "system\n", "e\u0301", "\x00", "👩‍🚀"]),
    ),
    max_size=12,
).map("".join)


@given(hostile_text)
def test_no_text_becomes_a_control_token_and_none_is_changed(text: str) -> None:
    ids, _ = CODEC.encode_text(text)
    assert CODEC.control_ids.isdisjoint(ids)
    assert CODEC.decode(ids) == text


@given(hostile_text, hostile_text)
def test_texts_encoded_apart_never_join_to_a_control_token(left: str, right: str) -> None:
    ids = CODEC.encode_text(left)[0] + CODEC.encode_text(right)[0]
    assert CODEC.control_ids.isdisjoint(ids)
    assert CODEC.decode(ids) == left + right


@given(st.lists(st.sampled_from(CONTROLS), max_size=5), st.text(alphabet="ab 1\n", max_size=4))
def test_every_control_literal_in_a_text_is_counted(literals: list[str], glue: str) -> None:
    text = glue + glue.join(literals) + glue
    assert CODEC.encode_text(text)[1] == len(literals)


def test_control_tokens_are_all_added_tokens_special_or_not() -> None:
    assert set(CODEC.controls) == set(CONTROLS)


def test_the_default_encoding_that_the_codec_replaces_does_yield_control_ids() -> None:
    plain = Tokenizer.from_str(CODEC.source.decode())
    assert not CODEC.control_ids.isdisjoint(plain.encode("a<tool_call>b", add_special_tokens=False).ids)


def test_overlapping_literals_are_all_cut() -> None:
    tree = json.loads(CODEC.source)
    plain = Tokenizer.from_str(json.dumps(tree))
    plain.add_tokens([AddedToken("<<a>>", special=False), AddedToken("a>>b", special=False)])
    codec = TextCodec(plain.to_str().encode())
    ids, count = codec.encode_text("x<<a>>b")
    assert codec.control_ids.isdisjoint(ids)
    assert count == 2
    assert codec.decode(ids) == "x<<a>>b"


def test_a_lone_surrogate_becomes_the_replacement_character() -> None:
    assert CODEC.decode(CODEC.encode_text("a\ud800b")[0]) == "a\ufffdb"
    assert CODEC.decode(CODEC.encode_text("\ud83d\ude00")[0]) == "😀"


def test_a_tokenizer_that_joins_pieces_is_refused() -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "[unk]": 1}, unk_token="[unk]"))
    words.add_special_tokens(["<|im_end|>"])
    with pytest.raises(ConfigError, match="keeps pieces apart"):
        TextCodec(words.to_str().encode())


def test_a_control_token_of_one_character_is_refused() -> None:
    plain = Tokenizer.from_str(CODEC.source.decode())
    plain.add_tokens([AddedToken("§", special=False)])
    with pytest.raises(ConfigError, match="two characters"):
        TextCodec(plain.to_str().encode())


@pytest.mark.parametrize("source", [b"", b"{}", b"\xff", b'{"model": 3}'])
def test_a_broken_tokenizer_file_is_a_configuration_error(source: bytes) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        TextCodec(source)


def test_a_missing_control_token_is_named() -> None:
    with pytest.raises(ConfigError, match="<think>"):
        CODEC.control("<think>")
