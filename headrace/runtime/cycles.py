"""How rarely a control plane searches its memory for cycles.

Invariant: what an episode makes is freed by reference counts alone, so a search finds nothing of it. Under the interpreter's
own thresholds it is made every 700 objects all the same and takes a tenth of a turn. Here it is made rarely, and not never:
a cycle that a user's part makes, or the traceback of a failed request, is still found, after some megabytes.
"""

import contextlib
import gc
from collections.abc import Iterator

THRESHOLDS = (50_000, 10, 10)
"""Containers made and not freed, and searches of each younger generation, before the next search."""


@contextlib.contextmanager
def rarely_searched() -> Iterator[None]:
    """Leaves alone what exists already (modules, harness, tasks), and searches the rest by `THRESHOLDS`."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
