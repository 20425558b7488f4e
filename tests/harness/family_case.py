"""Harnesses of real families on their real tokenizers; Qwen3's is shipped with its first merges alone."""

import functools
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from harness_case import CALCULATOR, WRITE

from headrace.harness.rendered import RenderedHarness, RenderersOptions

QWEN3 = Path(__file__).parent.parent / "fixtures" / "qwen3"

needs_renderers = [
    pytest.mark.peers,
    pytest.mark.skipif(
        importlib.util.find_spec("renderers") is None,
        reason="the package renderers is not installed: pip install --no-deps -r requirements/renderers.txt",
    ),
]


def make_family(folder: Path = QWEN3, **options: Any) -> RenderedHarness:
    return RenderedHarness(RenderersOptions(**{"family": "qwen3", **options}), (CALCULATOR, WRITE), folder)


@functools.cache
def qwen3() -> RenderedHarness:
    return make_family()
