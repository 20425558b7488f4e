"""Text to token ids and back, such that no text can become a control token.

Invariant: `encode_text` never yields a control id, whatever the text holds, and for a tokenizer without normalizer
``decode(encode_text(text)) == text``. A tokenizer matches its added tokens inside any text, special or not, and options
that disable this cover the special ones only. So every control literal is cut after its first character, the pieces are
encoded apart and their ids joined: no piece holds a literal, and ids are never merged again.

Example: "a<tool_call>b" is encoded as "a<" and "tool_call>b".
"""

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from headrace.errors import ConfigError, InvariantViolated

_PROBES = ("", "a", "12", " b", "\n", "<", "é✓", "\u0301")


class TextCodec:
    """A tokenizer whose markup and text are told apart by the caller, never by the text.

    Attributes:
        source: bytes of the tokenizer file.
        controls: id of each control token by its literal: every added token, special or not.
        control_ids: the same ids.
        known_ids: every id that stands for something.
        vocabulary_size: one more than the highest id: rows that a model's embedding needs.
        max_token_chars: length of the longest token; text of n characters needs at least n / max_token_chars tokens.
    """

    def __init__(self, source: bytes) -> None:
        self.source = source
        self._tokenizer = _open_tokenizer(source)
        self._spelling = _byte_spelling(self._tokenizer, source)
        added = self._tokenizer.get_added_tokens_decoder()
        self.controls = {token.content: token_id for token_id, token in sorted(added.items())}
        self.control_ids = frozenset(self.controls.values())
        self.known_ids = frozenset(self._tokenizer.get_vocab(with_added_tokens=True).values())
        self.vocabulary_size = max(self.known_ids) + 1
        self.max_token_chars = max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)))
        literals = sorted(self.controls, key=lambda literal: (-len(literal), literal))
        if not literals or min(map(len, literals)) < 2:
            raise ConfigError(
                f"control tokens {literals}: each needs two characters or more, else text cannot avoid it"
            )
        # A look-ahead finds overlapping literals too.
        alternatives = "|".join(map(re.escape, literals))
        self._literal = re.compile(f"(?={alternatives})")
        self._check()

    @classmethod
    def from_folder(cls, folder: Path) -> "TextCodec":
        """The codec of `tokenizer.json` in the folder. Raises ConfigError when there is none that can be used."""
        path = folder / "tokenizer.json"
        try:
            return cls(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; a folder with a tokenizer.json is needed") from error

    def control(self, literal: str) -> int:
        """Id of a control token. Raises ConfigError when the tokenizer has none of that name."""
        if literal not in self.controls:
            raise ConfigError(f"the tokenizer has no control token {literal!r}; it has {sorted(self.controls)}")
        return self.controls[literal]

    def encode_text(self, text: str) -> tuple[list[int], int]:
        """Ids of the text as ordinary text, and the number of control literals in it.

        Lone surrogates, which no encoding carries, become U+FFFD; paired ones the character that they stand for.

        Raises:
            InvariantViolated: when a control id came out all the same.
        """
        if not text.isascii():
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        cuts = [match.start() + 1 for match in self._literal.finditer(text)]
        if not cuts:
            ids = self._encode_piece(text)
        else:
            edges = [0, *cuts, len(text)]
            ids = [i for start, stop in itertools.pairwise(edges) for i in self._encode_piece(text[start:stop])]
        if not self.control_ids.isdisjoint(ids):
            raise InvariantViolated(
                f"text of {len(text)} characters was encoded with a control id; the tokenizer merges"
            )
        return ids, len(cuts)

    def encode_markup(self, *parts: str | int) -> list[int]:
        """Ids of template parts in order: a control id as it is, a string as ordinary text."""
        ids: list[int] = []
        for part in parts:
            ids.extend([part] if isinstance(part, int) else self.encode_text(part)[0])
        return ids

    def normalized(self, text: str) -> str:
        """The text as it reads after a round trip: what the tokenizer's normalizer makes of it, such as NFC."""
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, control tokens written out; bytes that are no UTF-8 become U+FFFD."""
        if self._spelling is None:
            return self._tokenizer.decode(ids, skip_special_tokens=False)
        return b"".join(map(self._spelling.__getitem__, ids)).decode("utf-8", "replace")

    def _encode_piece(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _check(self) -> None:
        """Raises ConfigError unless pieces encoded apart read as the whole, control literals included."""
        for left in (*_PROBES, *self.controls):
            for right in _PROBES:
                ids = self.encode_text(left)[0] + self.encode_text(right)[0]
                if self.decode(ids) != left + right:
                    raise ConfigError(
                        f"tokenizer reads {left!r} and {right!r} back as {self.decode(ids)!r}; "
                        "one that keeps pieces apart is needed, such as byte-level BPE without prefix space"
                    )


class _Spelling(dict[int, bytes]):
    """Bytes of each token; an unknown id stands for nothing."""

    def __missing__(self, key: int) -> bytes:
        return b""


def _byte_spelling(tokenizer: Tokenizer, source: bytes) -> _Spelling | None:
    """What each id of a byte-level tokenizer decodes to; None where decoding is no mere joining of bytes.

    Joining looked-up bytes takes a fifth of the library's call, and gives the same text.
    """
    if (json.loads(source).get("decoder") or {}).get("type") != "ByteLevel":
        return None
    byte_of = _byte_alphabet()
    spelling = _Spelling()
    for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items():
        is_bytes = all(char in byte_of for char in token)
        spelling[token_id] = bytes(byte_of[char] for char in token) if is_bytes else token.encode("utf-8")
    return spelling


def _byte_alphabet() -> dict[str, int]:
    """Byte of each character of byte-level BPE.

    Source: Radford et al., "Language models are unsupervised multitask learners" (2019), `bytes_to_unicode` of their code:
    printable bytes of Latin-1 stand for themselves, the others take the code points from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)).difference(printable))
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _open_tokenizer(source: bytes) -> Tokenizer:
    try:
        json.loads(source)
        tokenizer = Tokenizer.from_str(source.decode("utf-8"))
    except Exception as error:  # the tokenizers library raises bare Exception for a file that it cannot read
        raise ConfigError(f"tokenizer.json cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
