"""Every oracle case is carried over: its data lies here, a test computes it, and every trap has a control that fails."""

import ast
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
INDEX = json.loads((FOLDER / "index.json").read_text())


def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_a_hundred_cases_are_carried_over_and_twenty_two_have_traps() -> None:
    assert len({(item["data"], item["case"]) for item in INDEX}) == len(INDEX) == 100
    assert sum("trap" in item for item in INDEX) == 22


def test_every_case_has_its_data_and_a_test_that_reads_the_file() -> None:
    for item in INDEX:
        found = json.loads((FOLDER / item["data"]).read_text())
        for key in item["case"].split("/"):
            found = found[key]
        assert found != {}
        for name in (item["test"], item.get("trap_test", item["test"])):
            file, _, function = name.partition("::")
            assert function in functions_of(ROOT / file), name
            assert item["data"].removesuffix(".json") in (ROOT / file).read_text(), name
