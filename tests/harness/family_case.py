"""Harnesses of real families on their real tokenizers; Qwen3's is shipped with its first merges alone."""

import functools
from pathlib import Path
from typing import Any

from harness_case import CALCULATOR, WRITE
from optional_case import needs

from headrace.harness.rendered import RenderedHarness, RenderersOptions

QWEN3 = Path(__file__).parent.parent / "fixtures" / "qwen3"

needs_renderers = needs("renderers", requirements="requirements/renderers.txt")


def make_family(folder: Path = QWEN3, **options: Any) -> RenderedHarness:
    return RenderedHarness(RenderersOptions(**{"family": "qwen3", **options}), (CALCULATOR, WRITE), folder)


@functools.cache
def qwen3() -> RenderedHarness:
    return make_family()
