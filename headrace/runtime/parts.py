"""A user's own parts in a configuration: where their files are, and which task set the grader asks for answers.

Invariant: what a run records names every part by its absolute path, so that the run can be looked at from any folder.
"""

from pathlib import Path
from typing import Any

import msgspec

from headrace.config import AdapterSection, Config, GraderSection, load_config
from headrace.errors import ConfigError

PYTHON = "python"
"""The adapter kind of a user's own part."""
WORKSPACE = "workspace"
"""The environment kind whose `base` folder lies beside the TOML file."""


def load_with_parts(path: Path, overrides: tuple[str, ...] = ()) -> Config:
    """The configuration of a TOML file; its parts are looked for beside it, then in the current folder.

    Raises:
        ConfigError: naming the file or option, the value and what is expected.
    """
    return located(load_config(path, overrides), path.resolve().parent)


def located(config: Config, folder: Path) -> Config:
    """The configuration with absolute part files. Raises ConfigError when one is nowhere."""
    tasks, environment = _located(config.tasks, "tasks", folder), _located(config.environment, "environment", folder)
    grader = _located(config.grader, "grader", folder)
    if grader.kind == PYTHON:
        options = dict(grader.options)
        if isinstance(options.get("tasks"), dict):
            options["tasks"] = _absolute(options["tasks"], "grader.options.tasks", folder)
        elif tasks.kind == PYTHON and "tasks" not in options:
            options["tasks"] = dict(tasks.options)
        grader = msgspec.structs.replace(grader, options=options)
    return msgspec.structs.replace(config, tasks=tasks, environment=environment, grader=grader)


def part_files(options: dict[str, Any]) -> tuple[Path, ...]:
    """Every file that a part of these options is made of."""
    files = [Path(options["file"])] if options.get("file") else []
    files += [Path(source) for source in options.get("sources", ())]
    nested = options.get("tasks")
    return (*files, *(part_files(nested) if isinstance(nested, dict) else ()))


def _located(section: Any, name: str, folder: Path) -> Any:
    if not isinstance(section, (AdapterSection, GraderSection)):
        return section
    if section.kind == WORKSPACE and isinstance(base := section.options.get("base"), str) and base:
        return msgspec.structs.replace(section, options=section.options | {"base": str((folder / base).resolve())})
    if section.kind != PYTHON:
        return section
    return msgspec.structs.replace(section, options=_absolute(section.options, f"{name}.options", folder))


def _absolute(options: dict[str, Any], where: str, folder: Path) -> dict[str, Any]:
    found = dict(options)
    if isinstance(found.get("file"), str) and found["file"]:
        found["file"] = str(_find(Path(found["file"]), f"{where}.file", folder))
    if isinstance(found.get("sources"), (list, tuple)):
        found["sources"] = [str(_find(Path(source), f"{where}.sources", folder)) for source in found["sources"]]
    return found


def _find(path: Path, where: str, folder: Path) -> Path:
    for candidate in (folder / path, path):
        if candidate.is_file():
            return candidate.resolve()
    raise ConfigError(f"{where} is {str(path)!r}; there is no such file in {folder} nor in {Path.cwd()}")
