"""The data frontier: every prompt drawn has an ordinal, and every ordinal a state.

Invariant, after every change: drawn = open + trained + filtered + abandoned, and no ordinal changes state twice.
"""

import dataclasses
from collections import Counter

from headrace.errors import InvariantViolated
from headrace.records.events import OrdinalState


@dataclasses.dataclass
class DataFrontier:
    """States of drawn ordinals. Closed ones are kept as counts, so that a second closing is refused.

    Attributes:
        drawn: ordinals drawn.
    """

    drawn: int = 0
    _open: set[int] = dataclasses.field(default_factory=set[int])
    _closed: Counter[OrdinalState] = dataclasses.field(default_factory=Counter[OrdinalState])

    @property
    def open(self) -> tuple[int, ...]:
        """Open ordinals, rising."""
        return tuple(sorted(self._open))

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
