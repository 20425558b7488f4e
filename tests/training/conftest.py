from pathlib import Path

import pytest
from training_lab import LLAMA, Lab

from headrace.training.warm_start import WarmStartSettings, warm_start


@pytest.fixture(scope="session")
def policy_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("policies") / "tiny"
    return warm_start(LLAMA, (), WarmStartSettings(steps=0), seed=1, out_dir=folder)


@pytest.fixture
def lab(policy_dir) -> Lab:
    return Lab(policy_dir)
