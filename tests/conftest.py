"""Fixtures that several folders share; helper modules of this folder are importable from every test below it."""

import os
from pathlib import Path

# Before torch is imported, here and in what a test starts: on tiny tensors a second thread only waits for its core.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from hypothesis import settings
from warm_policy import make_warm_policy

settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")


@pytest.fixture(scope="session")
def warm_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small policy that is sometimes right."""
    return make_warm_policy(tmp_path_factory.mktemp("warm"))
