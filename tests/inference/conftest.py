"""Fixtures of the engine's tests."""

import pytest
from tiny_policy import PolicyFolder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> PolicyFolder:
    return PolicyFolder.create(tmp_path_factory.mktemp("policy"))


@pytest.fixture(params=[False, True], ids=["fast", "deterministic"])
def deterministic(request: pytest.FixtureRequest) -> bool:
    return request.param
