"""The tutorial as a folder, and one real run of it that several tests look at."""

from pathlib import Path

import pytest
from tutorial_blocks import blocks

from headrace.cli import main


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the tutorial."""
    folder = tmp_path_factory.mktemp("tutorial")
    for text in [*blocks("python"), *blocks("toml")]:
        name = text.partition("\n")[0].removeprefix("# ").removesuffix(", continued")
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write(text)
    return folder


@pytest.fixture(scope="session")
def shop_run(shop: Path) -> Path:
    """Folder of the tutorial's run."""
    assert main(["train", str(shop / "shop.toml"), "--runs", str(shop / "runs"), "--run", "first"]) == 0
    return shop / "runs" / "first"
