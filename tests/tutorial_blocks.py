"""Code blocks of the tutorial by language."""

import re
from pathlib import Path

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
_BLOCK = re.compile(r"```(python|toml|console)\n(.*?)```", re.DOTALL)


def blocks(kind: str) -> list[str]:
    return [text for found, text in _BLOCK.findall(TUTORIAL.read_text(encoding="utf-8")) if found == kind]
