"""A peer in a process of its own, warm, that runs one load per request and says what it used.

Protocol: the process prints a line of JSON when it is ready, then one for each line that it reads.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.sitting.measure import Side

PEERS = Path(__file__).parent.parent / "peers"


def peer_side(
    name: str,
    script: str,
    python: Path | None,
    data: Path,
    *,
    check: Callable[[dict[str, Any]], None],
    published: float,
) -> Side:
    """The side of a peer; absent, with the reason, where it cannot be run.

    Args:
        name: the peer's.
        script: file in `benchmarks/peers`.
        python: interpreter of an environment that holds the peer.
        data: file with the load.
        check: asserts the results that the peer reports of each run.
        published: its published figure.
    """
    if python is None:
        return Side(name, None, "no --peers given", published)
    process = subprocess.Popen(
        [python, PEERS / script, data], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    ready = process.stdout.readline()
    if not ready:
        _, error = process.communicate()
        return Side(name, None, (error.strip().splitlines() or ["it ended"])[-1], published)
    version = json.loads(ready)["version"]

    def run() -> float:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("run\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            sys.exit(f"{name} ended: {process.communicate()[1][-2000:]}")
        result = json.loads(answer)
        check(result)
        return float(result["cpu_s"])

    return Side(f"{name} {version}", run, published=published)
