"""Which turn gets the next slot of an engine.

Invariant: a turn ranks by the first arrival of its trajectory, and is passed by fewer than `ageing_turns` later ones. So a
trajectory of many turns waits once and not at every turn, and no turn waits for ever.
"""

import bisect
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

AGEING_TURNS = 256
_REMEMBERED = 4096


class HasTrajectory(Protocol):
    """Attributes:
    trajectory: names the sequence that the turn goes on with.
    """

    @property
    def trajectory(self) -> str: ...


T = TypeVar("T", bound=HasTrajectory)


class TurnLine(Generic[T]):
    """Turns without a slot, the one to serve next first.

    Age is counted in arrivals, not in seconds: an order of arrival has one outcome, on any machine. The time that a
    trajectory spends in its environment makes it older like time in the line does.

    With arrivals A1 B1 C1 A2 and none served, the order is A1 A2 B1 C1: A came first.
    """

    def __init__(self, ageing_turns: int = AGEING_TURNS) -> None:
        """An empty line.

        Args:
            ageing_turns: how many places age can be worth; 0 is the order of arrival.
        """
        self._ageing_turns = ageing_turns
        self._num_arrived = 0
        self._first: dict[str, int] = {}
        self._line: list[tuple[int, int, T]] = []

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[T]:
        return (turn for _, _, turn in self._line)

    def append(self, turn: T) -> None:
        """Takes a turn in at its place."""
        number = self._num_arrived
        self._num_arrived += 1
        first = self._first.pop(turn.trajectory, number)
        self._first[turn.trajectory] = first
        if len(self._first) > _REMEMBERED:
            # The one not heard of for longest; should it come back, it is new.
            del self._first[next(iter(self._first))]
        bisect.insort(self._line, (max(first, number - self._ageing_turns), number, turn))

    def head(self) -> T:
        """The turn to serve next. Raises IndexError when nobody waits."""
        return self._line[0][2]

    def popleft(self) -> T:
        """Takes out the turn to serve next. Raises IndexError when nobody waits."""
        return self._line.pop(0)[2]

    def remove(self, turn: T) -> bool:
        """Takes a turn out; whether it was there."""
        for place, (_, _, other) in enumerate(self._line):
            if other is turn:
                del self._line[place]
                return True
        return False
