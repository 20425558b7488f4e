"""C13, liveness: once faults have stopped, every task reaches its last state within a bound, and the run its end.

A checker of what must *not* happen can look at every event; one of what must happen looks at the whole log.
"""

from collections.abc import Iterable

from headrace.checkers.law import Violation
from headrace.checkers.tasks import Bumps
from headrace.records.batch import GroupRejected
from headrace.records.events import Event
from headrace.records.ids import GroupId
from headrace.records.run import RunEnded
from headrace.records.task import TaskDrawn


def check_liveness(events: Iterable[Event], *, bound_s: float, quiet_from_ns: int = 0) -> list[Violation]:
    """What did not come to an end in time; empty when everything did.

    Args:
        events: the whole log of a run that was left to end by itself.
        bound_s: seconds that a task may take from its draw, or from when faults stopped, whichever is later.
        quiet_from_ns: when faults stopped, on the log's clock.

    Example: with a bound of 60 s and faults until 100 s, a task drawn at 20 s has until 160 s, one of 150 s until 210 s.
    """
    drawn_ns: dict[GroupId, int] = {}
    found: list[Violation] = []
    bumps, last = Bumps(), None

    def end(group: GroupId, event: Event) -> None:
        begin_ns = drawn_ns.pop(group, None)
        if begin_ns is None:
            return
        took_s = (event.t_ns - max(begin_ns, quiet_from_ns)) / 1e9
        if took_s > bound_s:
            found.append(
                Violation(
                    "C13", event.seq, f"{group} ended {took_s:g} s after faults stopped; {bound_s:g} s are allowed"
                )
            )

    for last in events:
        for group in bumps.consumed(last):
            end(group, last)
        match last.payload:
            case TaskDrawn():
                drawn_ns[GroupId.parse(last.key)] = last.t_ns
            case GroupRejected():
                end(GroupId.parse(last.key), last)
            case _:
                pass
    if last is None:
        return [Violation("C13", 0, "the log is empty; the run never began")]
    if not isinstance(last.payload, RunEnded):
        found.append(Violation("C13", last.seq, f"the log ends with {last.kind} {last.key}; the run never ended"))
    if drawn_ns:
        names = ", ".join(str(group) for group in list(drawn_ns)[:3])
        found.append(Violation("C13", last.seq, f"{len(drawn_ns)} tasks never reached a last state: {names}"))
    return found
