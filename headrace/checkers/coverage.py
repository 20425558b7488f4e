"""C15, coverage: a sweep that proves something about recovery has, at some time, been everywhere.

`sometimes` in the sense of property checkers: each named point has to have fired in at least one run of the sweep.
"""

from collections.abc import Iterable, Mapping

from headrace.checkers.law import Violation


def check_coverage(expected: Iterable[str], fired: Mapping[str, int], *, what: str) -> list[Violation]:
    """The points that never fired.

    Args:
        expected: names of the points.
        fired: how often each fired.
        what: what kind of point, for the message.
    """
    never = sorted(set(expected) - {name for name, count in fired.items() if count > 0})
    return [Violation("C15", 0, f"{what} {name!r} never fired in the sweep") for name in never]
