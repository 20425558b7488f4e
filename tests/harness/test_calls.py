import contextlib
import json

import pytest
from harness_case import CALCULATOR, WRITE, call_text
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.harness.calls import MAX_PROBLEM_CHARS, CallReader, MalformedCall, strict_json
from headrace.records.harness import ToolSchema

READER = CallReader((CALCULATOR, WRITE), max_chars=1_000_000)


def problem_of(body: str) -> str:
    with pytest.raises(MalformedCall) as caught:
        READER.read(body)
    problem = str(caught.value)
    assert 0 < len(problem) <= MAX_PROBLEM_CHARS
    return problem


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"reward": NaN}', "NaN"),
        ('{"reward": Infinity}', "Infinity"),
        ('{"reward": -Infinity}', "-Infinity"),
        ('{"reward": 1e999}', "1e999"),
        ('{"reward": 0, "reward": 1}', "'reward' twice"),
        ('{"deep": {"reward": 0, "reward": 1}}', "'reward' twice"),
        ('{"n": ' + "9" * 5000 + "}", "5000 digits"),
        ('{"n": 9223372036854775808}', "64 bits"),
        ("[" * 200_000, "deeper than 32"),
        ('{"a":' * 200_000, "deeper than 32"),
        ("[" * 200_000 + "]" * 200_000, "deeper than 32"),
        ('"\\u0000"', "NUL"),
        ('{"a\\u0000": 1}', "NUL"),
        ("", "at character 0"),
        ("{} {}", "at character 3"),
        ("{'a': 1}", "at character 1"),
        ('"\x01"', "at character 1"),
        ("\ufeff{}", "at character 0"),
    ],
)
def test_json_outside_the_interoperable_part_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(MalformedCall, match="not valid JSON") as caught:
        strict_json(text)
    assert reason in str(caught.value)


def test_a_lone_surrogate_in_an_argument_is_refused() -> None:
    body = '{"name": "calculator", "arguments": {"expression": "\\ud800"}}'
    assert "surrogate" in problem_of(body)


def test_brackets_inside_strings_are_no_depth() -> None:
    assert strict_json(json.dumps(["[{" * 100, '"[' * 100])) == ["[{" * 100, '"[' * 100]


def test_a_backslash_before_u0000_is_no_nul_character() -> None:
    assert strict_json('"\\\\u0000"') == "\\u0000"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_interoperable_json_is_read_as_it_is(value: object) -> None:
    assert strict_json(json.dumps(value)) == value


@given(st.text() | st.text('{}[]",:\\u0tfn1e-+. ', max_size=40))
def test_any_text_is_a_value_or_a_malformed_call(text: str) -> None:
    with contextlib.suppress(MalformedCall):
        READER.read(text)


def test_arguments_are_canonical_whatever_order_they_came_in() -> None:
    one = READER.read('{"name": "write", "arguments": {"mode": 1, "path": "a.b", "lines": []}}')
    two = READER.read('{ "arguments" : {"lines":[], "path":"\\u0061.b","mode":1}, "name":"write" }')
    assert one == two
    assert one.arguments == '{"lines":[],"mode":1,"path":"a.b"}'


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("3", "name and arguments"),
        ("{}", "name and arguments"),
        ('{"name": "calculator"}', "name and arguments"),
        ('{"name": "calculator", "arguments": {}, "reward": 1}', "name and arguments"),
        (call_text("submit", reward=1), "unknown tool 'submit'"),
        ('{"name": ["calculator"], "arguments": {}}', "unknown tool of type list"),
        (call_text("x" * 10_000), "unknown tool 'xxx"),
        ('{"name": "calculator", "arguments": null}', "arguments must be object"),
        ('{"name": "calculator", "arguments": "{}"}', "arguments must be object"),
        (call_text("calculator"), "arguments needs expression"),
        (call_text("calculator", expression=3), "arguments.expression must be string"),
        (call_text("calculator", expression=["1"]), "arguments.expression must be string"),
        (call_text("calculator", expression="1", timeout_s=-1, exec=1), "arguments has no 'exec', 'timeout_s'"),
        (call_text("calculator", expression="1" * 201), "arguments.expression breaks maxLength 200"),
        (call_text("calculator", expression="\0"), "NUL"),
        (call_text("calculator", expression="1" * 10_000_000), "at most 1000000"),
        (call_text("write", path="a", mode=-1), "arguments.mode breaks minimum 0"),
        (call_text("write", path="a", mode=True), "arguments.mode must be integer"),
        (call_text("write", path="../a"), "arguments.path breaks pattern"),
        (call_text("write", path="a", lines=["x", 3]), "arguments.lines[1] must be string"),
    ],
)
def test_a_call_that_cannot_run_says_why(body: str, reason: str) -> None:
    assert reason in problem_of(body)


def test_no_default_of_a_schema_is_written_into_the_arguments() -> None:
    tool = ToolSchema("t", "", '{"properties": {"n": {"type": "integer", "default": 3}}}')
    assert CallReader((tool,), 100).read('{"name": "t", "arguments": {}}').arguments == "{}"


def test_a_schema_may_allow_further_keys() -> None:
    tool = ToolSchema("t", "", '{"additionalProperties": {"type": "integer"}}')
    assert CallReader((tool,), 100).read('{"name":"t","arguments":{"k":1}}').arguments == '{"k":1}'


@pytest.mark.parametrize(
    "parameters", ["", "[]", '{"type": 3}', '{"properties": {"a": {"$ref": "http://127.0.0.1:9/schema"}}}']
)
def test_a_schema_that_cannot_be_used_is_a_configuration_error(parameters: str) -> None:
    with pytest.raises(ConfigError):
        CallReader((ToolSchema("t", "", parameters),), 100)


def test_two_tools_of_one_name_are_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="own name"):
        CallReader((CALCULATOR, CALCULATOR), 100)
