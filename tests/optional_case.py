"""The marks of tests that need packages beyond the locked environment."""

import importlib.util
import sys
from pathlib import Path

import pytest

_INSTALLED = (Path(sys.prefix) / "extras").exists()
"""`make test` has installed them all: a package that is missing then fails the test, and hides in no skip."""


def needs(*packages: str, requirements: str) -> list[pytest.MarkDecorator]:
    """Skips in an environment without the packages, as `make check` has it.

    Args:
        packages: names to import.
        requirements: file that installs them.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    reason = f"{', '.join(missing)} is not installed: pip install --no-deps -r {requirements}"
    return [pytest.mark.peers, pytest.mark.skipif(bool(missing) and not _INSTALLED, reason=reason)]
