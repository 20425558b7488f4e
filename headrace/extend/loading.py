"""Finds a part by file or module and name; its content version follows from what the file says.

Invariant: the same source, options and interpreter give the same version in every process and folder; the path does
not count.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.config import Section
from headrace.errors import ConfigError
from headrace.records.ids import Address
from headrace.records.provenance import address_of, canonical_bytes, content_version


class PartOptions(Section, frozen=True):
    """Where a part is.

    Attributes:
        name: of the function, class or list in it.
        file: a Python file; a relative one is looked for beside the configuration.
        module: an importable module instead of a file.
        sources: more files whose content the version depends on, such as data and helpers.
    """

    name: str
    file: str = ""
    module: str = ""
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.file) == bool(self.module):
            raise ValueError(f"part {self.name}: file is {self.file!r} and module {self.module!r}; give exactly one")


def load_part(options: PartOptions) -> Any:
    """The object itself; its module is imported once per process.

    Raises:
        ConfigError: when there is no such file, it does not import, or has no such name.
    """
    module = _module(options)
    if not hasattr(module, options.name):
        known = sorted(name for name in vars(module) if not name.startswith("_"))
        raise ConfigError(f"{options.file or options.module} has no {options.name!r}; it has {', '.join(known)}")
    return getattr(module, options.name)


def part_version(options: PartOptions, *more: str | bytes) -> Address:
    """Content version: the source, further sources, the name, the interpreter, and `more`."""
    path = _source(options)
    texts = [_bytes(Path(source)) for source in options.sources]
    return content_version(sys.version, options.name, _bytes(path), canonical_bytes(len(texts)), *texts, *more)


def _source(options: PartOptions) -> Path:
    if options.file:
        return Path(options.file)
    try:
        found = importlib.util.find_spec(options.module)
    except ImportError as error:
        raise ConfigError(f"module {options.module}: {error}") from error
    if found is None or found.origin is None:
        raise ConfigError(f"there is no module {options.module!r} in {sys.prefix}")
    return Path(found.origin)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a Python file beside the configuration") from error


def _module(options: PartOptions) -> ModuleType:
    path = _source(options)
    try:
        if options.module:
            return importlib.import_module(options.module)
        return _from_file(path.resolve())
    except ConfigError:
        raise
    except Exception as error:  # boundary: a user's module raises what it likes
        raise ConfigError(f"{path} does not import: {type(error).__name__}: {error}") from error


def _from_file(path: Path) -> ModuleType:
    source = _bytes(path)
    name = f"headrace_part_{address_of(str(path).encode() + source)[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise ConfigError(f"{path} is no Python file; its name has to end with .py")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    # Beside the file, so that it may import its neighbours.
    sys.path.insert(0, str(path.parent))
    try:
        # Not by its loader: that takes cached bytecode of another source that has the same size and second.
        exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102 - a user's own code
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module
