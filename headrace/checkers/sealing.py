"""C10, sealing: an episode is sealed once, nothing happens in it afterwards, and the transcript says what the event says."""

from headrace.checkers.law import Violation
from headrace.checkers.leases import claimed_episode
from headrace.errors import IntegrityError
from headrace.records.action import ActionCommitted, ActionIntended
from headrace.records.events import Event
from headrace.records.execution import EpisodeClaimed
from headrace.records.ids import Address, EpisodeId
from headrace.records.observation import ActionObserved
from headrace.records.provenance import Read, read_record
from headrace.records.segment import TurnGenerated
from headrace.records.terminal import terminal_name
from headrace.records.trajectory import EpisodeStarted, Transcript, TranscriptSealed
from headrace.records.verdict import VerdictSealed


class Sealing:
    """Checks C10.

    Args:
        read: looks up transcripts.
    """

    def __init__(self, read: Read | None = None) -> None:
        self._read = read
        self._sealed: dict[EpisodeId, Address] = {}
        self._transcripts: set[Address] = set()
        self._tasks: dict[EpisodeId, Address] = {}

    def observe(self, event: Event) -> list[Violation]:
        match event.payload:
            case TranscriptSealed():
                problems = self._seal(EpisodeId.parse(event.key), event.payload)
            case VerdictSealed(transcript=transcript):
                is_known = transcript in self._transcripts
                problems = [] if is_known else [f"a verdict on {transcript}, which was never sealed"]
            case _:
                problems = self._happen(event)
        return [Violation("C10", event.seq, problem) for problem in problems]

    def _happen(self, event: Event) -> list[str]:
        episode = _episode_of(event)
        if episode is None:
            return []
        if episode in self._sealed:
            return [f"{event.kind} {event.key} after {episode} was sealed as {self._sealed[episode]}"]
        if isinstance(event.payload, EpisodeStarted):
            self._tasks[episode] = event.payload.task
        return []

    def _seal(self, episode: EpisodeId, sealed: TranscriptSealed) -> list[str]:
        problems: list[str] = []
        if episode in self._sealed:
            problems.append(
                f"{episode} is sealed as {sealed.transcript} after it was sealed as {self._sealed[episode]}"
            )
        elif sealed.transcript in self._transcripts:
            problems.append(f"{episode} is sealed as {sealed.transcript}, which another episode is")
        task = self._tasks.pop(episode, sealed.task)
        if task != sealed.task:
            problems.append(f"{episode} started on task {task} and is sealed on task {sealed.task}")
        self._sealed[episode] = sealed.transcript
        self._transcripts.add(sealed.transcript)
        if self._read is not None:
            problems += _disagreements(episode, sealed, read_record(self._read, sealed.transcript, Transcript))
        return problems


def _disagreements(episode: EpisodeId, sealed: TranscriptSealed, transcript: Transcript) -> list[str]:
    """What the transcript says otherwise than its event, and what breaks a law of sealing."""
    pairs = (
        ("episode", episode, transcript.episode),
        ("task", sealed.task, transcript.task),
        ("task version", sealed.task, transcript.provenance.task),
        ("terminal state", sealed.terminal, terminal_name(transcript.terminal)),
        ("sampled tokens", sealed.sampled_tokens, transcript.num_sampled_tokens),
        ("tokens", sealed.total_tokens, transcript.num_tokens),
        ("versions", sealed.versions, transcript.versions),
    )
    problems = [
        f"{episode}: the event says {name} {said}, the transcript {is_}" for name, said, is_ in pairs if said != is_
    ]
    try:
        transcript.check()
    except IntegrityError as error:
        problems.append(str(error))
    return problems


def _episode_of(event: Event) -> EpisodeId | None:
    """The episode in which this happened; None for what happens elsewhere."""
    match event.payload:
        case EpisodeStarted():
            return EpisodeId.parse(event.key)
        case EpisodeClaimed():
            return claimed_episode(event.key)
        case TurnGenerated(episode=episode):
            return episode
        case ActionIntended(action=action):
            return action.id.episode
        case ActionCommitted(action_id=action_id) | ActionObserved(action_id=action_id):
            return action_id.episode
        case _:
            return None
