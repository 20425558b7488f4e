"""C3, single owner: fencing tokens are granted once, never fall along an episode, and no older owner acts; epochs rise."""

from headrace.checkers.law import Violation
from headrace.records.action import ActionIntended
from headrace.records.events import Event
from headrace.records.execution import EpisodeClaimed
from headrace.records.ids import EpisodeId, LeaseToken
from headrace.records.trajectory import TranscriptSealed


class SingleOwner:
    """Checks C3. A claim's key is the episode, or the episode and a suffix after `#`, `@` or `/` that tells claims apart."""

    def __init__(self) -> None:
        self._granted: set[LeaseToken] = set()
        self._newest: dict[EpisodeId, LeaseToken] = {}
        self._epoch = 0

    def observe(self, event: Event) -> list[Violation]:
        problems: list[str] = []
        if event.epoch < self._epoch:
            problems.append(f"epoch {event.epoch} appends after epoch {self._epoch} has taken over")
        self._epoch = max(self._epoch, event.epoch)
        match event.payload:
            case EpisodeClaimed(token=token):
                problems += self._claim(claimed_episode(event.key), token)
            case ActionIntended(action=action, token=token):
                newest = self._newest.get(action.id.episode)
                if newest is None:
                    problems.append(f"action {action.id} under token {token}, but nobody ever claimed the episode")
                elif token != newest:
                    problems.append(f"action {action.id} under token {token}; the owner holds {newest}")
            case TranscriptSealed():
                self._newest.pop(EpisodeId.parse(event.key), None)
            case _:
                pass
        return [Violation("C3", event.seq, problem) for problem in problems]

    def _claim(self, episode: EpisodeId, token: LeaseToken) -> list[str]:
        problems: list[str] = []
        if token in self._granted:
            problems.append(f"token {token} is granted a second time, to {episode}")
        newest = self._newest.get(episode)
        if newest is not None and token < newest:
            problems.append(f"{episode} is claimed under token {token} after {newest}; tokens do not fall")
        self._granted.add(token)
        self._newest[episode] = max(token, newest or token)
        return problems


def claimed_episode(key: str) -> EpisodeId:
    """The episode of a claim's key. Raises ValueError when it names none."""
    for sign in "#@/":
        key = key.partition(sign)[0]
    return EpisodeId.parse(key)
