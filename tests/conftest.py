"""Fixtures that several folders share; helper modules of this folder are importable from every test below it."""

import os
from pathlib import Path

# Before torch is imported, here and in what a test starts: on tiny tensors a second thread only waits for its core.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from filelock import FileLock
from hypothesis import settings
from warm_policy import make_warm_policy

settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")


@pytest.fixture(scope="session")
def warm_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small policy that is sometimes right; processes that run the tests side by side make it once."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with FileLock(shared / "warm.lock"):
        folder = shared / "warm" / "policy"
        return folder if folder.exists() else make_warm_policy(folder.parent)
