"""From a TOML file, dotted overrides or plain values to checked structs; an unknown key is told with the known ones."""

import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headrace.config.tree import Config
from headrace.errors import ConfigError

T = TypeVar("T")


def load_config(path: Path, overrides: tuple[str, ...] = ()) -> Config:
    """The checked configuration of a TOML file with `section.key=value` overrides; values are TOML literals.

    Raises:
        ConfigError: naming the file or override, the value and what is expected.
    """
    try:
        tree: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; name a TOML file such as examples/arithmetic/train.toml") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; name a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    for override in overrides:
        _apply_override(tree, override)
    return decode_config(tree, str(path))


def decode_config(tree: dict[str, Any], where: str) -> Config:
    """The checked configuration of a tree of plain values. Raises ConfigError."""
    config = decode_options(tree, Config, where)
    config.check()
    return config


def decode_options(options: dict[str, Any], kind: type[T], where: str) -> T:
    """An adapter's options as its own struct. Raises ConfigError naming the key."""
    try:
        return msgspec.convert(options, kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{where}: {error}{_known_fields(str(error), kind)}") from error


def _known_fields(message: str, kind: Any) -> str:
    """The fields there are, when a message of msgspec is about one that there is not."""
    found = re.search(r"unknown field `.*?`(?: - at `\$\.(.+)`)?$", message)
    if found is None:
        return ""
    for name in found[1].split(".") if found[1] else ():
        kind = next((field.type for field in _fields(kind) if field.encode_name == name), None)
    names = [field.encode_name for field in _fields(kind)]
    return f"; known: {', '.join(names)}" if names else ""


def _fields(kind: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()


def override_config(config: Config, overrides: tuple[str, ...]) -> Config:
    """The checked configuration with `section.key=value` overrides. Raises ConfigError."""
    tree: dict[str, Any] = msgspec.to_builtins(config)
    for override in overrides:
        _apply_override(tree, override)
    return decode_config(tree, "overrides")


def _apply_override(tree: dict[str, Any], override: str) -> None:
    name, separator, literal = override.partition("=")
    if not separator or not all(name.split(".")):
        raise ConfigError(f"override {override!r}: write section.key=value, such as run.updates=20")
    try:
        value = tomllib.loads(f"value = {literal}")["value"]
    except tomllib.TOMLDecodeError:
        value = literal
    *sections, key = name.split(".")
    node = tree
    for section in sections:
        node = node.setdefault(section, {})
        if not isinstance(node, dict):
            raise ConfigError(f"override {override!r}: {section} is a value, not a section")
    node[key] = value
