r"""Makes a small byte-level BPE tokenizer for ChatML with tool calls.

Invariant: the same texts give the same bytes. Numbers are cut into pairs of digits from the left, so that two of them
rarely look alike to whoever copies one; every byte is a token, so that any text has ids.
"""

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTROLS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
VOCABULARY = 640
# A word with the character before it; up to two digits; punctuation with the spaces around it; white space.
_PIECES = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+\s*|\s+"


def make_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> bytes:
    """Bytes of the tokenizer.json trained on the texts; control tokens have the first ids, in the order of `CONTROLS`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[AddedToken(literal, special=True, normalized=False) for literal in CONTROLS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str(pretty=True).encode()
