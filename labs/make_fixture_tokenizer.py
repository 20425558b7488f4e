"""`python3 -m labs.make_fixture_tokenizer SOURCE OUT`: a family's tokenizer with its first merges alone, for tests.

Control tokens, normalizer, pre-tokenizer and chat template stay as they are; control tokens take the ids behind the smaller
vocabulary, and a text only becomes more tokens.
"""

import argparse
import json
from pathlib import Path

MERGES = 2000


def main() -> None:
    """Writes OUT/tokenizer.json and OUT/tokenizer_config.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="folder with tokenizer.json and tokenizer_config.json")
    parser.add_argument("out", type=Path)
    parser.add_argument("--merges", type=int, default=MERGES)
    arguments = parser.parse_args()
    tokenizer = json.loads((arguments.source / "tokenizer.json").read_text(encoding="utf-8"))
    model = tokenizer["model"]
    model["merges"] = model["merges"][: arguments.merges]
    kept = {"".join(merge if isinstance(merge, list) else merge.split(" ")) for merge in model["merges"]}
    # Single characters are the byte alphabet.
    model["vocab"] = {token: place for token, place in model["vocab"].items() if len(token) == 1 or token in kept}
    config = json.loads((arguments.source / "tokenizer_config.json").read_text(encoding="utf-8"))
    kept_keys = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, value in (
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", {key: config[key] for key in kept_keys if key in config}),
    ):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        (arguments.out / name).write_text(text + "\n", encoding="utf-8")
        print(f"{arguments.out / name}: {len(text)} bytes")


if __name__ == "__main__":
    main()
