"""Where each worker's time went, and every copy of weights.

Invariant: the states of a worker partition wall time: in whole nanoseconds they sum to it exactly. Time before a worker's
first report is its own state, `unreported`, and is never guessed.
"""

import msgspec

from headrace.records.events import Event
from headrace.records.run import WeightsHeld, WorkerState, WorkerStateChanged
from headrace.reporting.folds.index import RunIndex
from headrace.reporting.folds.spans import Bins
from headrace.reporting.folds.stages import Series
from headrace.reporting.quantities import ratio

UNREPORTED = "unreported"
STATES = (*(state.value for state in WorkerState), UNREPORTED)


class WorkerTime(msgspec.Struct, frozen=True):
    """One worker.

    Attributes:
        worker: name.
        states_ns: nanoseconds in each state.
        shares: share of wall time in each state; empty without time.
        sums_to_wall: whether the states sum to wall time exactly.
        changes: how often its state changed.
        busy: share of the bin in which it was busy, by bin.
    """

    worker: str
    states_ns: dict[str, int]
    shares: dict[str, float]
    sums_to_wall: bool
    changes: int
    busy: Series


class Workers(msgspec.Struct, frozen=True):
    """All workers and copies of weights.

    Attributes:
        wall_ns: first event to last.
        workers: by name.
        bins_s: middles of the bins, seconds since the start.
        copies: every copy of weights, by worker and role.
        weights_bytes: sum of their sizes.
    """

    wall_ns: int
    workers: tuple[WorkerTime, ...]
    bins_s: tuple[float, ...]
    copies: tuple[WeightsHeld, ...]
    weights_bytes: int


class WorkerTimes:
    """Adds up the time between state changes."""

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        self._changes: dict[str, list[tuple[int, str]]] = {}
        self._copies: dict[tuple[str, str, str], WeightsHeld] = {}

    def observe(self, event: Event) -> None:
        """Takes the next event."""
        match event.payload:
            case WorkerStateChanged(worker=worker, state=state):
                self._changes.setdefault(worker, []).append((event.t_ns, state.value))
            case WeightsHeld(worker=worker, role=role, policy_id=policy_id):
                self._copies[worker, role, policy_id] = event.payload
            case _:
                pass

    def result(self) -> Workers:
        """The figures so far."""
        index = self._index
        bins = Bins(index.start_ns or 0, index.now_ns)
        copies = tuple(self._copies[key] for key in sorted(self._copies))
        return Workers(
            wall_ns=index.wall_ns,
            workers=tuple(self._worker(name, bins) for name in sorted(self._changes)),
            bins_s=bins.middles_s,
            copies=copies,
            weights_bytes=sum(copy.size_bytes for copy in copies),
        )

    def _worker(self, name: str, bins: Bins) -> WorkerTime:
        changes = [(self._index.start_ns or 0, UNREPORTED), *self._changes[name]]
        stops = [t_ns for t_ns, _ in changes[1:]] + [self._index.now_ns]
        stretches = [(begin, stop, state) for (begin, state), stop in zip(changes, stops, strict=True)]
        states = dict.fromkeys(STATES, 0)
        for begin, stop, state in stretches:
            states[state] += stop - begin
        wall_ns = self._index.wall_ns
        busy = [(begin, stop) for begin, stop, state in stretches if state == WorkerState.BUSY.value]
        return WorkerTime(
            worker=name,
            states_ns=states,
            shares={state: total / wall_ns for state, total in states.items()} if wall_ns else {},
            sums_to_wall=sum(states.values()) == wall_ns and min(states.values()) >= 0,
            changes=len(self._changes[name]),
            busy=Series(name, _shares(busy, bins)),
        )


def _shares(stretches: list[tuple[int, int]], bins: Bins) -> tuple[float | None, ...]:
    edges = bins.edges_ns
    totals = [0] * bins.num
    for begin, stop in stretches:
        for position in range(bins.of(begin), bins.of(stop) + 1):
            totals[position] += max(0, min(stop, edges[position + 1]) - max(begin, edges[position]))
    return tuple(ratio(total, edges[i + 1] - edges[i]) for i, total in enumerate(totals))
