"""C4 and C5, the action journal: INTENT < COMMIT < OBSERVED, each at most once, and no turn before the last one's end.

C4: at most one of each per action, and no second attempt of a member once an external action of the first is intended.
C5: their order; turns of an episode count 0, 1, 2, …; a turn comes only after every action of the turn before it was
observed, and an action only in the episode's present turn.
"""

import dataclasses

from headrace.checkers.law import Violation
from headrace.records.action import ActionCommitted, ActionIntended, EffectClass
from headrace.records.events import Event
from headrace.records.ids import ActionId, EpisodeId, GroupId
from headrace.records.observation import ActionObserved
from headrace.records.segment import TurnGenerated
from headrace.records.trajectory import EpisodeStarted, TranscriptSealed

_INTENDED, _COMMITTED, _OBSERVED = 1, 2, 3


@dataclasses.dataclass
class _Progress:
    """How far an open episode has come."""

    step: int = -1
    stages: dict[ActionId, int] = dataclasses.field(default_factory=dict[ActionId, int])


class ActionOrder:
    """Checks C4 and C5."""

    def __init__(self) -> None:
        self._open: dict[EpisodeId, _Progress] = {}
        self._external: dict[tuple[GroupId, int], ActionId] = {}

    def observe(self, event: Event) -> list[Violation]:
        match event.payload:
            case EpisodeStarted():
                found = self._start(EpisodeId.parse(event.key))
            case TurnGenerated(episode=episode, step=step):
                found = self._turn(episode, step)
            case ActionIntended():
                found = self._intend(event.payload)
            case ActionCommitted(action_id=action):
                found = self._advance(action, _COMMITTED, "COMMIT")
            case ActionObserved(action_id=action):
                found = self._advance(action, _OBSERVED, "OBSERVED")
            case TranscriptSealed():
                self._open.pop(EpisodeId.parse(event.key), None)
                found = []
            case _:
                found = []
        return [Violation(law, event.seq, message) for law, message in found]

    def _start(self, episode: EpisodeId) -> list[tuple[str, str]]:
        earlier = self._external.get((episode.group, episode.member))
        if earlier is not None and earlier.episode.attempt < episode.attempt:
            return [("C4", f"{episode} starts although {earlier} may have changed the world outside; park it instead")]
        return []

    def _turn(self, episode: EpisodeId, step: int) -> list[tuple[str, str]]:
        progress = self._open.setdefault(episode, _Progress())
        found: list[tuple[str, str]] = []
        if step != progress.step + 1:
            found.append(("C5", f"{episode} generates turn {step} after turn {progress.step}; turns rise by one"))
        waiting = [str(action) for action, stage in progress.stages.items() if stage < _OBSERVED]
        if waiting:
            found.append(("C5", f"{episode} generates turn {step} before {', '.join(waiting)} was observed"))
        progress.step = max(step, progress.step)
        progress.stages.clear()
        return found

    def _intend(self, intent: ActionIntended) -> list[tuple[str, str]]:
        action = intent.action.id
        progress = self._open.setdefault(action.episode, _Progress())
        found: list[tuple[str, str]] = []
        if action in progress.stages:
            found.append(("C4", f"second INTENT of {action}"))
        if action.step != progress.step:
            found.append(("C5", f"INTENT of {action}, but the episode is at turn {progress.step}"))
        progress.stages.setdefault(action, _INTENDED)
        if intent.effect is EffectClass.EXTERNAL:
            member = (action.episode.group, action.episode.member)
            earlier = self._external.setdefault(member, action)
            if earlier.episode != action.episode:
                found.append(("C4", f"external {action} although {earlier} of another attempt was intended"))
        return found

    def _advance(self, action: ActionId, stage: int, name: str) -> list[tuple[str, str]]:
        progress = self._open.setdefault(action.episode, _Progress())
        reached = progress.stages.get(action, 0)
        if reached < stage:
            progress.stages[action] = stage
        if reached >= stage:
            return [("C4", f"second {name} of {action}")]
        if reached != stage - 1:
            missing = "INTENT" if reached == 0 else "COMMIT"
            return [("C5", f"{name} of {action} without {missing}")]
        return []
