"""Where tests find a vLLM, and the marks of tests that need one."""

from pathlib import Path

import pytest

VLLM_PYTHON = Path(__file__).parents[1] / ".venv-vllm/bin/python"
NEEDS_VLLM = (
    pytest.mark.vllm,
    # An environment of its own of 3.5 GB: `make test-vllm` makes it and fails where these tests would not run.
    pytest.mark.skipif(not VLLM_PYTHON.exists(), reason="vLLM is not installed; run `make vllm`"),
)
