"""C14, token accounting: generated = trained + filtered + abandoned + discarded + open, in sampled tokens of training.

Counted twice, independently: turn by turn as the policy sampled, and transcript by transcript as they were sealed. A
sealed transcript holds exactly the tokens of its turns; a turn that is delivered twice, or lost on the way to the seal,
shows here. Evaluation has its own account.

Example: a group of two members with 10 tokens each, of which one trained, one was never scored: trained 10, discarded 10.
"""

from collections import Counter

import msgspec

from headrace.checkers.law import Violation
from headrace.checkers.tasks import Bumps
from headrace.records.batch import BatchPlan, BatchPlanned, GroupRejected
from headrace.records.events import Event, OrdinalState
from headrace.records.ids import Address, EpisodeId, GroupId, Purpose
from headrace.records.provenance import Read, read_record
from headrace.records.segment import TurnGenerated
from headrace.records.trajectory import TranscriptSealed


class TokenLedger(msgspec.Struct, frozen=True):
    """Where the sampled tokens of a run are.

    Attributes:
        generated: sampled in training episodes.
        trained: in transcripts that a committed update trained on.
        filtered: of groups that a rule on the data turned away.
        abandoned: of groups that could not be finished.
        discarded: of trained groups, but not trained on: unscored members, failed attempts.
        open: of groups that are still open.
        other: sampled for evaluation and checks; in no other figure.
    """

    generated: int
    trained: int
    filtered: int
    abandoned: int
    discarded: int
    open: int
    other: int


class TokenAccount:
    """Checks C14.

    Args:
        read: looks up batch plans; without it trained and discarded tokens cannot be told apart, and all count as trained.
    """

    def __init__(self, read: Read | None = None) -> None:
        self._read = read
        self._generated = 0
        self._other = 0
        self._running: Counter[EpisodeId] = Counter()
        self._sealed: dict[Address, int] = {}
        self._of_group: Counter[GroupId] = Counter()
        self._ended: dict[GroupId, OrdinalState] = {}
        self._planned: dict[GroupId, set[Address]] = {}
        self._booked: Counter[str] = Counter()
        self._bumps = Bumps()

    @property
    def ledger(self) -> TokenLedger:
        """Where the tokens are now."""
        return TokenLedger(
            generated=self._generated,
            trained=self._booked["trained"],
            filtered=self._booked["filtered"],
            abandoned=self._booked["abandoned"],
            discarded=self._booked["discarded"],
            open=self._booked["open"],
            other=self._other,
        )

    def observe(self, event: Event) -> list[Violation]:
        problems: list[str] = []
        for group in self._bumps.consumed(event):
            self._consume(group)
        match event.payload:
            case TurnGenerated():
                self._turn(event.payload)
            case TranscriptSealed(transcript=transcript, sampled_tokens=sampled):
                problems += self._seal(EpisodeId.parse(event.key), transcript, sampled)
            case BatchPlanned(plan=plan) if self._read is not None:
                for row in read_record(self._read, plan, BatchPlan).rows:
                    self._planned.setdefault(row.group, set()).add(row.transcript)
            case GroupRejected(state=state):
                self._end(GroupId.parse(event.key), OrdinalState(state))
            case _:
                return []
        booked = sum(self._booked.values())
        if booked != self._generated:
            problems.append(
                f"{self._generated} tokens were generated, {booked} are accounted for: {dict(self._booked)}"
            )
        return [Violation("C14", event.seq, problem) for problem in problems]

    def _turn(self, turn: TurnGenerated) -> None:
        sampled = turn.num_tokens
        self._running[turn.episode] += sampled
        if turn.episode.purpose is not Purpose.TRAIN:
            self._other += sampled
            return
        self._generated += sampled
        self._book(turn.episode.group, sampled)

    def _seal(self, episode: EpisodeId, transcript: Address, sampled: int) -> list[str]:
        running = self._running.pop(episode, 0)
        if episode.purpose is Purpose.TRAIN:
            self._sealed[transcript] = sampled
            self._book(episode.group, sampled - running)
        if sampled != running:
            return [f"{episode} is sealed with {sampled} sampled tokens; its turns hold {running}"]
        return []

    def _book(self, group: GroupId, tokens: int) -> None:
        """Tokens of a group that has ended already go where the group went; what was not planned is discarded."""
        self._of_group[group] += tokens
        state = self._ended.get(group, OrdinalState.OPEN)
        self._booked["discarded" if state is OrdinalState.TRAINED else state.value] += tokens

    def _consume(self, group: GroupId) -> None:
        total = self._of_group[group]
        planned = self._planned.pop(group, None)
        trained = total if self._read is None else sum(self._sealed.get(item, 0) for item in planned or ())
        self._booked["open"] -= total
        self._booked["trained"] += trained
        self._booked["discarded"] += total - trained
        self._ended[group] = OrdinalState.TRAINED

    def _end(self, group: GroupId, state: OrdinalState) -> None:
        total = self._of_group[group]
        self._booked["open"] -= total
        self._booked[state.value] += total
        self._ended[group] = state
