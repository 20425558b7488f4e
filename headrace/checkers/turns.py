"""C16, turns on shared devices: engine and trainer take turns, and the engine computes nothing in the trainer's.

Where devices are shared, a batch is scored and an update completed only in a turn. A process that takes the run over begins
without one.
"""

from headrace.checkers.law import Bounds, Violation
from headrace.records.events import Event
from headrace.records.run import RunStarted
from headrace.records.update import BatchScored, GenerationPaused, GenerationResumed, UpdateCompleted


class SharedTurns:
    """Checks C16.

    Args:
        bounds: whether devices are shared.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._is_shared = bounds.is_shared
        self._turn: GenerationPaused | None = None

    def observe(self, event: Event) -> list[Violation]:
        problems: list[str] = []
        match event.payload:
            case RunStarted():
                self._turn = None
            case GenerationPaused(update=update):
                if self._turn is not None:
                    problems.append(f"update {update} takes a turn within that of update {self._turn.update}")
                self._turn = event.payload
            case GenerationResumed():
                problems += self._end(event.payload)
                self._turn = None
            case BatchScored() | UpdateCompleted() if self._is_shared and self._turn is None:
                problems.append("the trainer computes on shared devices without its turn")
            case _:
                pass
        return [Violation("C16", event.seq, problem) for problem in problems]

    def _end(self, resumed: GenerationResumed) -> list[str]:
        turn = self._turn
        if turn is None or turn.update != resumed.update:
            return [f"the turn of update {resumed.update} ends, which never began"]
        computed = resumed.computed_tokens - turn.computed_tokens
        return [f"{resumed.worker} computed {computed} tokens in the turn of update {turn.update}"] if computed else []
