"""Checkpoints, and what each process that took the run over found of the actions under way.

Invariant: an action is counted by what was durable of it when its process ended; what became of it is read from the events
that follow.
"""

from typing import NamedTuple

import msgspec

from headrace.records.action import ActionCommitted, ActionIntended, EffectClass
from headrace.records.checkpoint import CheckpointWritten, RunResumed
from headrace.records.events import Event
from headrace.records.ids import ActionId, EpisodeId
from headrace.records.observation import ActionObserved
from headrace.records.trajectory import TranscriptSealed


class ActionsFound(msgspec.Struct, frozen=True):
    """Actions of unsealed attempts at one takeover, by what was durable of them.

    Attributes:
        observed: INTENT, COMMIT and OBSERVED: gone on from.
        committed: INTENT and COMMIT: the stored result was shown, nothing ran.
        run_again: INTENT alone, in a pure environment, with a COMMIT later: ran under the same id.
        parked: INTENT alone, without a COMMIT later: never run again.
    """

    observed: int
    committed: int
    run_again: int
    parked: int


class Resume(msgspec.Struct, frozen=True):
    """One takeover.

    Attributes:
        t_s: seconds since the start.
        resumed: the event.
        actions: under way at that time.
    """

    t_s: float
    resumed: RunResumed
    actions: ActionsFound


class Recovery(msgspec.Struct, frozen=True):
    """Checkpoints and takeovers of a run.

    Attributes:
        checkpoints: number written.
        last_update: update of the newest; None without one.
        last_bytes: size of its files.
        save_s: seconds of all saves together.
        stall_s: of those, seconds in which the next update had to wait.
        resumes: in order.
    """

    checkpoints: int
    last_update: int | None
    last_bytes: int | None
    save_s: float
    stall_s: float
    resumes: tuple[Resume, ...]


class _Takeover(NamedTuple):
    """What was durable when a process took over; what became of the intended actions is not known yet."""

    t_ns: int
    resumed: RunResumed
    observed: int
    committed: int
    intended: frozenset[ActionId]


class RecoveryTimes:
    """Follows checkpoints, takeovers, and every action until its attempt is sealed."""

    def __init__(self) -> None:
        self._written: list[CheckpointWritten] = []
        self._stages: dict[EpisodeId, dict[ActionId, int]] = {}
        self._pure: set[ActionId] = set()
        self._committed: set[ActionId] = set()
        self._taken: list[_Takeover] = []
        self._start_ns: int | None = None

    def observe(self, event: Event) -> None:
        """Takes the next event."""
        self._start_ns = event.t_ns if self._start_ns is None else self._start_ns
        match event.payload:
            case ActionIntended(action=action, effect=effect):
                self._stages.setdefault(action.id.episode, {})[action.id] = 1
                if effect is EffectClass.PURE:
                    self._pure.add(action.id)
            case ActionCommitted(action_id=action_id):
                self._committed.add(action_id)
                self._stages.setdefault(action_id.episode, {})[action_id] = 2
            case ActionObserved(action_id=action_id):
                self._stages.setdefault(action_id.episode, {})[action_id] = 3
            case TranscriptSealed():
                self._forget(EpisodeId.parse(event.key))
            case CheckpointWritten():
                self._written.append(event.payload)
            case RunResumed():
                self._take(event.t_ns, event.payload)
            case _:
                pass

    def result(self) -> Recovery:
        """The figures so far."""
        last = self._written[-1] if self._written else None
        return Recovery(
            checkpoints=len(self._written),
            last_update=last.update if last else None,
            last_bytes=last.manifest.size_bytes if last else None,
            save_s=sum(item.save_s for item in self._written),
            stall_s=sum(item.stall_s for item in self._written),
            resumes=tuple(self._resume(item) for item in self._taken),
        )

    def _forget(self, episode: EpisodeId) -> None:
        """A sealed attempt has no action under way; what its takeovers left unknown is still looked at."""
        stages = self._stages.pop(episode, {})
        waiting = {action for taken in self._taken for action in taken.intended}
        for action in stages:
            self._pure.discard(action)
            if action not in waiting:
                self._committed.discard(action)

    def _take(self, t_ns: int, resumed: RunResumed) -> None:
        stages = [(action, stage) for actions in self._stages.values() for action, stage in actions.items()]
        intended = frozenset(action for action, stage in stages if stage == 1)
        counts = [sum(stage == wanted for _, stage in stages) for wanted in (3, 2)]
        self._taken.append(_Takeover(t_ns, resumed, counts[0], counts[1], intended))

    def _resume(self, taken: _Takeover) -> Resume:
        again = len(taken.intended & self._committed)
        actions = ActionsFound(taken.observed, taken.committed, again, len(taken.intended) - again)
        return Resume((taken.t_ns - (self._start_ns or 0)) / 1e9, taken.resumed, actions)
