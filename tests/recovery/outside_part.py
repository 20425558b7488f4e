"""A tool whose effect lies outside of everything that a run can take back, and a grader of what lies inside."""

from pathlib import Path

import msgspec


def append(path: str, line: str) -> str:
    """Appends a line to a file."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    return "appended"


def lines_of_log(artifact: bytes) -> float:
    """1 when every word was written once."""
    files = msgspec.msgpack.decode(artifact, type=dict[str, bytes]) if artifact else {}
    return float(files.get("log") == b"one\ntwo\n")
