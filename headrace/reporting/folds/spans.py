"""Time spent in a stage as intervals: means over windows, counts over time, sums over bins. Times are nanoseconds."""

import dataclasses
import itertools
from array import array
from collections.abc import Iterable, Sequence

NUM_BINS = 120
"""Bins of every figure over time; each is 1/120 of the run."""


@dataclasses.dataclass(frozen=True)
class Bins:
    """Equal bins of a stretch of time.

    Attributes:
        start_ns: left edge of the first.
        stop_ns: right edge of the last.
        num: how many.
    """

    start_ns: int
    stop_ns: int
    num: int = NUM_BINS

    @property
    def edges_ns(self) -> list[int]:
        width = self.stop_ns - self.start_ns
        return [self.start_ns + width * i // self.num for i in range(self.num + 1)]

    @property
    def middles_s(self) -> tuple[float, ...]:
        """Middle of each bin, seconds."""
        edges = self.edges_ns
        return tuple((a + b) / 2e9 for a, b in itertools.pairwise(edges))

    def of(self, t_ns: int) -> int:
        """The bin that holds the time."""
        width = max(1, self.stop_ns - self.start_ns)
        return min(self.num - 1, max(0, (t_ns - self.start_ns) * self.num // width))

    def sums(self, points: Iterable[tuple[int, float]]) -> list[float]:
        """Sum of the values in each bin."""
        totals = [0.0] * self.num
        for t_ns, value in points:
            totals[self.of(t_ns)] += value
        return totals

    def per_second(self, points: Iterable[tuple[int, float]]) -> tuple[float | None, ...]:
        """Sum of the values in each bin over its length; None when the bins have no length."""
        width_s = (self.stop_ns - self.start_ns) / 1e9 / self.num
        return tuple(total / width_s if width_s > 0 else None for total in self.sums(points))

    def spread_per_second(self, stretches: Iterable[tuple[int, int, float]]) -> tuple[float | None, ...]:
        """Rate of (begin, stop, amount) with each amount spread evenly over its stretch; None where no stretch lies.

        A stretch of no length counts as the nanosecond before it.
        """
        edges = self.edges_ns
        totals: list[float | None] = [None] * self.num
        for first, stop, amount in stretches:
            begin = min(first, stop - 1)
            for place in range(self.of(begin), self.of(stop) + 1):
                inside = min(stop, edges[place + 1]) - max(begin, edges[place])
                if inside > 0:
                    totals[place] = (totals[place] or 0.0) + amount * inside / (stop - begin)
        return tuple(
            None if total is None else total * 1e9 / (edges[place + 1] - edges[place])
            for place, total in enumerate(totals)
        )

    def groups(self, points: Iterable[tuple[int, float]]) -> list[list[float]]:
        """The values in each bin."""
        found: list[list[float]] = [[] for _ in range(self.num)]
        for t_ns, value in points:
            found[self.of(t_ns)].append(value)
        return found


class Spans:
    """Intervals of things that entered a stage; those that never left reach to the end of the log."""

    def __init__(self) -> None:
        self.enter_ns = array("q")
        self.leave_ns = array("q")
        self._open: dict[object, int] = {}

    def __len__(self) -> int:
        return len(self.enter_ns)

    @property
    def num_open(self) -> int:
        """Things still in the stage."""
        return len(self._open)

    def add(self, enter_ns: int, leave_ns: int) -> None:
        """A thing whose interval is known."""
        self.enter_ns.append(enter_ns)
        self.leave_ns.append(max(enter_ns, leave_ns))

    def enter(self, name: object, t_ns: int) -> None:
        """A thing comes in; a second entry of the same name changes nothing."""
        self._open.setdefault(name, t_ns)

    def leave(self, name: object, t_ns: int) -> None:
        """The thing goes out; one that never came in is ignored."""
        entered = self._open.pop(name, None)
        if entered is not None:
            self.add(entered, t_ns)

    def drop(self, name: object) -> None:
        """Takes a thing out as if it had never come in."""
        self._open.pop(name, None)

    def waits_s(self) -> list[float]:
        """Seconds in the stage of everything that left."""
        return [(b - a) / 1e9 for a, b in zip(self.enter_ns, self.leave_ns, strict=True)]

    def departures(self) -> Iterable[tuple[int, float]]:
        """(time of leaving, seconds in the stage) of everything that left."""
        return ((b, (b - a) / 1e9) for a, b in zip(self.enter_ns, self.leave_ns, strict=True))

    def intervals(self, end_ns: int) -> list[tuple[int, int]]:
        """All intervals, the open ones up to the end."""
        closed = list(zip(self.enter_ns, self.leave_ns, strict=True))
        return closed + [(entered, max(entered, end_ns)) for entered in self._open.values()]

    def mean_count(self, bins: Bins, end_ns: int) -> tuple[float | None, ...]:
        """Time-weighted mean number in the stage, by bin."""
        edges = bins.edges_ns
        if edges[-1] <= edges[0]:
            return (None,) * bins.num
        totals = [0] * bins.num
        for enter, leave in self.intervals(end_ns):
            for position in range(bins.of(enter), bins.of(leave) + 1):
                totals[position] += max(0, min(leave, edges[position + 1]) - max(enter, edges[position]))
        return tuple(
            total / (edges[i + 1] - edges[i]) if edges[i + 1] > edges[i] else None for i, total in enumerate(totals)
        )


def overlap_ns(intervals: Sequence[tuple[int, int]], start_ns: int, stop_ns: int) -> int:
    """Total time of the intervals inside the window."""
    return sum(max(0, min(leave, stop_ns) - max(enter, start_ns)) for enter, leave in intervals)
