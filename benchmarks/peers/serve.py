"""The peer's end of the protocol; see `benchmarks/sitting/peer.py`. Standard library only."""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any


def serve(distribution: str, prepare: Callable[[dict[str, Any]], Callable[[], dict[str, Any]]]) -> None:
    """Prepares once, then runs once per line; what frameworks print goes to the error stream.

    Args:
        distribution: name on PyPI.
        prepare: takes the load, and gives what runs it once and reports what it made.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run = prepare(json.loads(Path(sys.argv[1]).read_text()))
    print(json.dumps({"version": metadata.version(distribution)}), file=answers, flush=True)
    for _ in sys.stdin:
        began_s = time.process_time()
        result = run()
        used_s = time.process_time() - began_s
        print(json.dumps({"cpu_s": result.pop("cpu_s", used_s), **result}), file=answers, flush=True)
