"""Reads one tool call from the text between its control tokens, strictly.

Invariant: a call either has a known tool and arguments that satisfy the tool's schema, or it is a `MalformedCall` whose
message the policy can read. Nothing is repaired, nothing is defaulted, and no input raises anything else.

JSON here is the interoperable part of RFC 8259: no NaN or Infinity, no number beyond a double or 64-bit integer, no
duplicate key, no lone surrogate, no NUL character, bounded depth and length.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import fastjsonschema
import msgspec

from headrace.config import Section
from headrace.errors import ConfigError
from headrace.records.harness import ParsedCall, ToolSchema

MAX_DEPTH = 32
MAX_PROBLEM_CHARS = 160
_MAX_INTEGER_DIGITS = 19
_QUOTED_CHARS = 24
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")
_REMOTE_SCHEMES: tuple[str, ...] = ("", "file", "ftp", "http", "https")
_CANONICAL = msgspec.json.Encoder(order="sorted")


class CallLimits(Section, frozen=True):
    """What any harness allows of the calls of one turn.

    Attributes:
        max_calls: calls in one turn; more are a malformed turn.
        max_call_chars: length of the JSON of one call, in characters.
    """

    max_calls: int = 4
    max_call_chars: int = 4096

    def __post_init__(self) -> None:
        for name in ("max_calls", "max_call_chars"):
            if getattr(self, name) < 1:
                raise ValueError(f"harness.{name} is {getattr(self, name)}; it must be at least 1")


class MalformedCall(ValueError):
    """A call that cannot run. The message is bounded and meant for the policy."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem if len(problem) <= MAX_PROBLEM_CHARS else problem[: MAX_PROBLEM_CHARS - 1] + "…")


class CallReader:
    """Reads calls of a fixed set of tools."""

    def __init__(self, tools: Sequence[ToolSchema], max_chars: int) -> None:
        self._validators = {tool.name: _compile(tool) for tool in tools}
        self._max_chars = max_chars
        if len(self._validators) != len(tools):
            raise ConfigError(f"tools {[tool.name for tool in tools]}: each needs its own name")

    def read(self, body: str) -> ParsedCall:
        """The call, its arguments as canonical JSON.

        Raises:
            MalformedCall: when it cannot run.
        """
        if len(body) > self._max_chars:
            raise MalformedCall(f"a call of {len(body)} characters; at most {self._max_chars}")
        call = strict_json(body)
        if not isinstance(call, dict) or call.keys() != {"name", "arguments"}:
            raise MalformedCall("a call has name and arguments")
        name, arguments = call["name"], call["arguments"]
        validate = self._validators.get(name) if isinstance(name, str) else None
        if validate is None:
            raise MalformedCall(f"unknown tool {_quoted(name)}")
        try:
            validate(arguments)
            return ParsedCall(name, _CANONICAL.encode(arguments).decode("utf-8"))
        except fastjsonschema.JsonSchemaValueException as error:
            raise MalformedCall(_schema_problem(error)) from None
        except UnicodeEncodeError:
            raise MalformedCall("not valid JSON: a lone surrogate") from None


def strict_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        MalformedCall: when the text is no JSON or leaves the interoperable part of it.
    """
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(text)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise MalformedCall(f"not valid JSON at character {error.pos}") from None
    # The escape can only come from a NUL or from a backslash before u0000; the walk tells them apart.
    if "\\u0000" in text and _holds_nul(value):
        raise MalformedCall("not valid JSON: a NUL character")
    return value


def _check_depth(text: str) -> None:
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise MalformedCall(f"not valid JSON: deeper than {MAX_DEPTH} levels")


def _holds_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any("\0" in key or _holds_nul(item) for key, item in value.items())
    return isinstance(value, list) and any(map(_holds_nul, value))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        double = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise MalformedCall(f"not valid JSON: key {_quoted(double)} twice")
    return value


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > _MAX_INTEGER_DIGITS or not -(2**63) <= (value := int(digits)) < 2**63:
        raise MalformedCall(f"not valid JSON: an integer of {len(digits)} digits; at most 64 bits, or text")
    return value


def _real(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise MalformedCall(f"not valid JSON: number {literal[:_QUOTED_CHARS]} out of range")
    return value


def _refuse_constant(literal: str) -> NoReturn:
    raise MalformedCall(f"not valid JSON: {literal}")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_real, parse_constant=_refuse_constant
)


def _quoted(value: object) -> str:
    if not isinstance(value, str):
        return f"of type {type(value).__name__}"
    return repr(value if len(value) <= _QUOTED_CHARS else value[:_QUOTED_CHARS] + "…")


def _schema_problem(error: fastjsonschema.JsonSchemaValueException) -> str:
    """The violated rule in words; the library's own text quotes whole values and sets in no fixed order."""
    where = "arguments" + (error.name or "").removeprefix("data")
    rule, bound, value = error.rule, error.rule_definition, error.value
    if rule == "type":
        return f"{where} must be {bound if isinstance(bound, str) else ' or '.join(bound)}"
    if rule == "required":
        return f"{where} needs {', '.join(key for key in bound if key not in value)}"
    if rule == "additionalProperties":
        allowed = error.definition.get("properties", {})
        return f"{where} has no {', '.join(_quoted(key) for key in sorted(value) if key not in allowed)}"
    return f"{where} breaks {rule} {json.dumps(bound, ensure_ascii=False)[:64]}"


def _refuse_reference(uri: str) -> NoReturn:
    raise ConfigError(f"tool schema refers to {uri}; a schema must be self-contained")


def _compile(tool: ToolSchema) -> Callable[[Any], Any]:
    """Validator of the tool's arguments; keys that the schema does not name are refused unless it says otherwise."""
    try:
        schema = msgspec.json.decode(tool.parameters, type=dict[str, Any])
        schema = {"type": "object", "additionalProperties": False, **schema}
        handlers: dict[str, Callable[[str], Any]] = dict.fromkeys(_REMOTE_SCHEMES, _refuse_reference)
        # Never use_default: it would write values into the arguments that the policy did not give.
        return fastjsonschema.compile(schema, handlers=handlers, use_default=False)
    except (msgspec.DecodeError, fastjsonschema.JsonSchemaDefinitionException) as error:
        raise ConfigError(f"tool {tool.name}: parameters are no JSON Schema of an object: {error}") from error
