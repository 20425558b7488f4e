"""Where the grader runs. See docs/grading.md for what each place keeps apart, and what it does not.

Invariant: wherever it runs, the grader is a process of its own that owns answers and verdicts: it is reached over one
channel that no tool and no policy holds, it imports only what is installed, and it cannot write the run's folder where the
platform lets it give that right up. The place changes no verdict and no version.
"""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import assert_never

import msgspec

from headrace.config import Config, GraderSection
from headrace.environments.sandbox.options import Isolation
from headrace.errors import ConfigError
from headrace.runtime.parts import PYTHON, part_files
from headrace.runtime.walls import can_be_walled, is_readable_by_anyone, isolated_python, visible, walled
from headrace.runtime.workers.rights import landlock_version
from headrace.runtime.workers.settings import GraderSettings, settings_arguments

_UID = 2_100_000_000
"""Above every user that a sandbox of tools becomes."""


@dataclasses.dataclass(frozen=True)
class GraderPlace:
    """How to start a grader.

    Attributes:
        argv: its command line.
        note: where it stands and what lies around it, in one line for people.
    """

    argv: list[str]
    note: str


def place_beside(config: Config, isolation: Isolation) -> GraderPlace:
    """The grader of a configuration, where its tools have this isolation.

    A user's own tools have no walls of their own, which says nothing of what the platform can put round the grader.

    Raises:
        ConfigError: as `place_grader`.
    """
    if config.environment.kind == PYTHON and config.grader.placement == "service" and can_be_walled():
        isolation = msgspec.structs.replace(isolation, level="bubblewrap")
    return place_grader(config.grader, isolation, part_files(config.grader.options))


def place_grader(section: GraderSection, isolation: Isolation, files: Sequence[Path] = ()) -> GraderPlace:
    """The grader of a configuration on a platform where tools have this isolation; `files` are parts that it loads.

    Raises:
        ConfigError: when the place needs name spaces that this platform does not have.
    """
    has_walls = isolation.level != "rlimits"
    match section.placement:
        case "service":
            pass  # at the side of no hostile code: walls where there are any
        case "environment" if not has_walls:
            raise ConfigError(
                "grader.placement is environment, but tools run without name spaces here and could reach it; "
                'allow user name spaces, or set grader.placement = "service"'
            )
        case "environment":
            pass
        case "rollout":
            has_walls = False
        case _:
            assert_never(section.placement)
    uid = _other_uid() if os.geteuid() == 0 and is_readable_by_anyone(through_parents=not has_walls) else None
    settings = GraderSettings(section.kind, section.options, uid, tuple(map(str, [*visible(), *files])))
    argv = isolated_python("headrace.runtime.workers.grader", *settings_arguments(settings))
    parts = [
        f"{section.placement}: a process of its own",
        "in name spaces without network or run folder" if has_walls else "without name spaces",
        "as another user" if uid is not None else "as the user of the run",
        "reading installed packages alone" if landlock_version() else "without Landlock",
    ]
    return GraderPlace(walled(argv, files) if has_walls else argv, ", ".join(parts))


def _other_uid() -> int:
    """A user that no tool is and that owns nothing."""
    for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines():
        start, _, count = (int(field) for field in line.split())
        if start == 0 and count <= _UID:
            return count - 1
    return _UID
