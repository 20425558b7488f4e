"""Fixtures that several folders share; helper modules of this folder are importable from every test below it."""

from pathlib import Path

import pytest
from hypothesis import settings
from warm_policy import make_warm_policy

settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")


@pytest.fixture(scope="session")
def warm_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small policy that is sometimes right."""
    return make_warm_policy(tmp_path_factory.mktemp("warm"))
