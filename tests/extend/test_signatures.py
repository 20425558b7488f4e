"""A typed function becomes a tool: schema from hints and docstring, arguments read by the same hints."""

import json
import os
import py_compile
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
import shop_parts as shop
from shop_parts import Shop, divide

from headrace.errors import ConfigError
from headrace.extend import Problem, ToolError
from headrace.extend.loading import PartOptions, load_part, part_version
from headrace.extend.signatures import Tool, as_bytes, tools_of
from headrace.harness.calls import CallReader, MalformedCall


def test_hints_and_docstring_become_the_schema() -> None:
    schema = Tool(divide).schema
    assert (schema.name, schema.description) == ("divide", "Divides two integers.")
    assert json.loads(schema.parameters) == {
        "type": "object",
        "properties": {
            "dividend": {"type": "integer", "description": "what is divided."},
            "divisor": {"type": "integer", "description": "by what; not zero."},
        },
        "required": ["dividend", "divisor"],
        "additionalProperties": False,
    }


def test_the_harness_validates_nested_types_by_the_same_schema() -> None:
    reader = CallReader([tool.schema for tool in tools_of(Shop, frozenset({"claim", "artifact"}))], 4096)
    good = reader.read('{"name": "put", "arguments": {"item": {"name": "tea", "count": 2}}}')
    assert good.tool == "put"
    for bad in ('{"item": {"name": "tea", "count": 12}}', '{"item": {"count": 1}}', '{"item": "tea"}', "{}"):
        with pytest.raises(MalformedCall):
            reader.read(f'{{"name": "put", "arguments": {bad}}}')


def test_arguments_are_read_into_the_types_that_the_function_names() -> None:
    put = next(tool for tool in tools_of(Shop, frozenset({"claim", "artifact"})) if tool.name == "put")
    assert put.read('{"item": {"name": "tea"}}')["item"] == shop.Item("tea", 1)
    with pytest.raises(ToolError, match="count"):
        put.read('{"item": {"name": "tea", "count": 99}}')
    with pytest.raises(ToolError, match="unknown"):
        Tool(divide).read('{"dividend": 1, "divisor": 2, "rest": 3}')


def test_public_methods_are_tools_and_hooks_are_not() -> None:
    names = [tool.name for tool in tools_of(Shop, frozenset({"claim", "artifact", "close"}))]
    assert names == ["put", "basket", "wait"]


def test_a_function_that_no_schema_follows_from_is_refused_with_the_remedy() -> None:
    def unhinted(value) -> str:
        """Says it."""
        return value

    def silent(value: int) -> int:
        return value

    def many(*values: int) -> int:
        """Adds."""
        return sum(values)

    def strange(value: Annotated[Any, msgspec.Meta(ge=1)], other: type) -> int:
        """Does not know."""
        return 1

    for function, remedy in ((unhinted, "value: int"), (silent, "docstring"), (many, "named"), (strange, "schema")):
        with pytest.raises(ConfigError, match=remedy):
            Tool(function)


@pytest.mark.parametrize(
    ("value", "shown"), [("a", b"a"), (b"b", b"b"), (None, b"ok"), (0.5, b"0.5"), ({"a": [1]}, b'{"a":[1]}')]
)
def test_results_are_shown_as_text(value: object, shown: bytes) -> None:
    assert as_bytes(value) == shown


def test_a_version_follows_from_the_source_and_not_from_its_path(tmp_path) -> None:
    source = "def add(a: int) -> int:\n    'Adds.'\n    return a\n"
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(source)
    one, two = (PartOptions(name="add", file=str(tmp_path / name)) for name in ("one.py", "two.py"))
    assert part_version(one) == part_version(two) != part_version(one, "other options")
    (tmp_path / "two.py").write_text(source + "\n")
    assert part_version(one) != part_version(two)
    assert load_part(one)(3) == 3


def test_a_missing_part_says_what_there_is(tmp_path) -> None:
    (tmp_path / "parts.py").write_text("def add(): ...\n")
    with pytest.raises(ConfigError, match="it has add"):
        load_part(PartOptions(name="sub", file=str(tmp_path / "parts.py")))
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        load_part(PartOptions(name="add", file=str(tmp_path / "broken.py")))
    with pytest.raises(ValueError, match="exactly one"):
        PartOptions(name="add")


def test_an_oracle_is_the_answer_unless_it_is_written_down() -> None:
    assert Problem("?").oracle is None
    turns = Problem("?", 4).oracle
    assert turns is not None
    assert [(turn.text, turn.calls) for turn in turns] == [("4", ())]
    turns = shop.errands()[0].oracle
    assert turns is not None
    first, last = turns
    assert first.calls[0].text == '{"name":"put","arguments":{"item":{"name":"tea","count":1}}}'
    assert last.text == "done"


def test_what_runs_is_the_source_as_it_stands_and_no_cached_bytecode_of_another(tmp_path: Path) -> None:
    file, found = tmp_path / "part.py", []
    for value in ("3", "5"):  # the same size, and to Python's cache the same second
        file.write_text(f"VALUE = {value}\n", encoding="utf-8")
        os.utime(file, (1_000_000_000, 1_000_000_000))
        if value == "3":
            py_compile.compile(str(file))
        found.append(load_part(PartOptions("VALUE", file=str(file))))
    assert found == [3, 5]
