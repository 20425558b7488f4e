"""The tools' schemas, and how their arguments are read. A call that does not fit its schema is a tool error."""

import msgspec

from headrace.environments.calculator import MAX_CHARS
from headrace.records.harness import ToolSchema

MAX_CODE_CHARS = 16_384


class CalculatorArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Attributes:
    expression: what to evaluate.
    """

    expression: str


class CodeArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Attributes:
    code: what to run.
    """

    code: str


def _one_string(name: str, max_chars: int) -> str:
    """JSON Schema of an object with one required string, as canonical JSON."""
    schema = {
        "additionalProperties": False,
        "properties": {name: {"maxLength": max_chars, "type": "string"}},
        "required": [name],
        "type": "object",
    }
    return msgspec.json.encode(schema).decode()


CALCULATOR = ToolSchema(
    name="calculator",
    description="Evaluates an arithmetic expression exactly.",
    parameters=_one_string("expression", MAX_CHARS),
)

PYTHON = ToolSchema(
    name="python",
    description="Runs Python code; names defined by earlier calls of the episode are still there.",
    parameters=_one_string("code", MAX_CODE_CHARS),
)

SHELL = ToolSchema(
    name="shell",
    description="Runs a shell command in the workspace; files stay from call to call, processes and variables do not.",
    parameters=_one_string("code", MAX_CODE_CHARS),
)

WORKSPACE_PYTHON = ToolSchema(
    name="python",
    description="Runs a Python program in the workspace; files stay from call to call, names and processes do not.",
    parameters=_one_string("code", MAX_CODE_CHARS),
)

WORKSPACE_SCHEMAS = {schema.name: schema for schema in (SHELL, WORKSPACE_PYTHON)}

SCHEMAS = {schema.name: schema for schema in (CALCULATOR, PYTHON)}


class BadArguments(ValueError):
    """The arguments do not fit the tool's schema; the message is for the caller of the tool."""


def calculator_expression(arguments: str) -> str:
    """The expression of a calculator call. Raises BadArguments."""
    try:
        return msgspec.json.decode(arguments, type=CalculatorArguments).expression
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadArguments(f"arguments do not fit the calculator: {error}"[:200]) from error


def code_of(arguments: str, tool: str = "python") -> str:
    """The code of a call. Raises BadArguments."""
    try:
        code = msgspec.json.decode(arguments, type=CodeArguments).code
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadArguments(f"arguments do not fit {tool}: {error}"[:200]) from error
    if len(code) > MAX_CODE_CHARS:
        raise BadArguments(f"code longer than {MAX_CODE_CHARS} characters")
    return code
