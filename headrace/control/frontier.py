"""The data frontier: every prompt drawn has an ordinal, and every ordinal a state.

Invariant, after every change: drawn = open + trained + filtered + abandoned, and no ordinal changes state twice.
"""

from collections import Counter

from headrace.errors import InvariantViolated
from headrace.records.events import OrdinalState


class DataFrontier:
    """States of drawn ordinals. Closed ones are kept as counts and a set, so that a second closing is refused."""

    def __init__(self) -> None:
        self.drawn = 0
        self._open: set[int] = set()
        self._closed: Counter[OrdinalState] = Counter()

    def draw(self) -> int:
        """The next ordinal, now open."""
        ordinal = self.drawn
        self.drawn += 1
        self._open.add(ordinal)
        return ordinal

    def close(self, ordinal: int, state: OrdinalState) -> None:
        """Moves an open ordinal to its last state. Raises InvariantViolated when it is not open."""
        if ordinal not in self._open:
            raise InvariantViolated(f"ordinal {ordinal} is not open and cannot become {state.value}")
        self._open.remove(ordinal)
        self._closed[state] += 1
        if self.drawn != len(self._open) + self._closed.total():
            raise InvariantViolated(f"drawn {self.drawn} is not {len(self._open)} open and {dict(self._closed)} closed")

    def count(self, state: OrdinalState) -> int:
        """Number of ordinals in a state."""
        return len(self._open) if state is OrdinalState.OPEN else self._closed[state]
