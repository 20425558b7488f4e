"""From a typed function to a tool: its hints and docstring become the JSON schema, and arguments are read by them.

Invariant: a function is called only with arguments of the types it names; whatever does not fit is a `ToolError`, which the
policy reads. Every other exception of a tool is the infrastructure's and never shown.
"""

import inspect
import re
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.errors import ConfigError
from headrace.records.harness import ToolSchema

MAX_PROBLEM_CHARS = 200
_SECTION = re.compile(r"^(Args|Arguments|Returns|Yields|Raises|Examples?|Notes?|Attributes):\s*$")
_NAMED = re.compile(r"^(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


class ToolError(Exception):
    """What a tool raises to tell the policy something; the one exception that is shown to it."""


class Tool:
    """A callable tool.

    Attributes:
        schema: as the policy sees it.
        function: what runs; a bound method when it came of an instance.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        """Raises ConfigError for a function that no schema follows from."""
        self.function = function
        self.name = name or function.__name__
        self._arguments = _arguments_struct(self.name, function)
        self.schema = ToolSchema(self.name, _summary(self.name, function), _parameters(self._arguments, function))

    def read(self, arguments: str) -> dict[str, Any]:
        """The arguments of a call as values of the types that the function names.

        Raises:
            ToolError: when they do not fit, in words for the policy.
        """
        try:
            read = msgspec.json.decode(arguments, type=self._arguments)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ToolError(f"arguments do not fit {self.name}: {error}"[:MAX_PROBLEM_CHARS]) from None
        return {name: getattr(read, name) for name in read.__struct_fields__}


def tools_of(part: Any, hooks: frozenset[str] = frozenset()) -> tuple[Tool, ...]:
    """The tools of a function, of a sequence of functions, or of a class or instance: its public methods but for hooks.

    Raises:
        ConfigError: when there is none, or one has no schema.
    """
    if inspect.isfunction(part):
        return (Tool(part),)
    if isinstance(part, (list, tuple)):
        return tuple(Tool(function) for function in part)
    owner = part if inspect.isclass(part) else type(part)
    names = [name for kind in reversed(owner.__mro__[:-1]) for name, value in vars(kind).items() if callable(value)]
    public = [name for name in dict.fromkeys(names) if not name.startswith("_") and name not in hooks]
    if not public:
        raise ConfigError(f"{owner.__name__} has no public method; each public method with a docstring is a tool")
    return tuple(Tool(getattr(part, name), name) for name in public)


def as_bytes(value: Any) -> bytes:
    """A tool's result as the policy reads it: text as it is, `ok` for None, everything else as JSON.

    Raises:
        TypeError: when it cannot become JSON.
    """
    if value is None:
        return b"ok"
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace")
    return msgspec.json.encode(value)


def _arguments_struct(name: str, function: Callable[..., Any]) -> type[msgspec.Struct]:
    """A struct of the function's parameters. Raises ConfigError."""
    where = f"tool {name}"
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise ConfigError(f"{where}: its type hints cannot be read: {error}") from error
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self" and not fields and not inspect.ismethod(function):
            continue
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise ConfigError(f"{where}: parameter {parameter}; a schema needs plain named parameters")
        if parameter.name not in hints:
            raise ConfigError(f"{where}: parameter {parameter.name} has no type hint; write `{parameter.name}: int`")
        hint = hints[parameter.name]
        is_optional = parameter.default is not parameter.empty
        fields.append((parameter.name, hint, parameter.default) if is_optional else (parameter.name, hint))
    try:
        struct = msgspec.defstruct(name, fields, frozen=True, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.schema(struct)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: no JSON schema follows from its type hints: {error}") from error
    return struct


def _parameters(struct: type[msgspec.Struct], function: Callable[..., Any]) -> str:
    """JSON Schema of the arguments as canonical JSON, with what the docstring's `Args:` says of each."""
    whole = msgspec.json.schema(struct)
    defined: dict[str, Any] = whole.get("$defs", {})
    schema: dict[str, Any] = defined.pop(struct.__name__)
    schema.pop("title", None)
    described = _described(inspect.getdoc(function) or "")
    for name, of_parameter in schema["properties"].items():
        if name in described:
            of_parameter.setdefault("description", described[name])
    if defined:
        schema["$defs"] = defined
    return msgspec.json.encode(schema, order="deterministic").decode()


def _summary(name: str, function: Callable[..., Any]) -> str:
    """The docstring up to its first section, in one line. Raises ConfigError when there is none."""
    text = inspect.getdoc(function) or ""
    lines: list[str] = []
    for line in text.splitlines():
        if _SECTION.match(line):
            break
        lines.append(line)
    summary = " ".join(" ".join(lines).split())
    if not summary:
        raise ConfigError(f"tool {name} has no docstring; its first line is what the policy reads about it")
    return summary


def _described(text: str) -> dict[str, str]:
    """Descriptions of a Google-style `Args:` section by name."""
    described: dict[str, str] = {}
    name, section = "", ""
    for line in text.splitlines():
        if match := _SECTION.match(line):
            section, name = match[1], ""
        elif section in {"Args", "Arguments"} and (named := _NAMED.match(line.strip())) and line.startswith("    "):
            name = named[1]
            described[name] = named[2]
        elif section in {"Args", "Arguments"} and name and line.strip():
            described[name] += f" {line.strip()}"
    return described
