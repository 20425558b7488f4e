"""Looked-up bytes against the tokenizers library's own decoder."""

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from headrace.harness.chatml import ASSETS
from headrace.harness.codec import TextCodec

CODEC = TextCodec.from_folder(ASSETS)
LIBRARY = Tokenizer.from_str(CODEC.source.decode())


@given(st.lists(st.integers(0, CODEC.vocabulary_size + 20), max_size=24))
def test_any_ids_read_as_the_tokenizers_library_reads_them(ids: list[int]) -> None:
    assert CODEC.decode(ids) == LIBRARY.decode(ids, skip_special_tokens=False)
