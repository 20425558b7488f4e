"""Stage 8, grader: the verdict, sealed by (transcript, grader version). A value or a cause, never both, never neither."""

import enum
import math

import msgspec

from headrace.errors import IntegrityError
from headrace.records.ids import Address, EpisodeId
from headrace.records.provenance import address_of, canonical_bytes
from headrace.records.task import Task


class UnscoredCause(enum.Enum):
    """Why there is no score."""

    INFRA = "infra"
    GRADER_CRASH = "grader_crash"
    GRADER_TIMEOUT = "grader_timeout"
    GRADER_INVALID = "grader_invalid"
    DECLINED = "declined"
    UNKNOWN_EFFECT = "unknown_effect"


class Scored(msgspec.Struct, frozen=True, gc=False, tag="scored"):
    """The grader measured something.

    Attributes:
        components: named scores, finite, each in the grader's declared range [0, 1].
        evidence: bounded text that a person can check the score by.
    """

    components: tuple[tuple[str, float], ...]
    evidence: str


class Unscored(msgspec.Struct, frozen=True, gc=False, tag="unscored"):
    """There is no score. Nothing turns this into 0.

    Attributes:
        cause: why.
        detail: one line.
    """

    cause: UnscoredCause
    detail: str


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What the grader said of one transcript. The first durable one counts; a second is a disagreement.

    Attributes:
        transcript: address of what was graded.
        grader: content version of the grader's code and options.
        outcome: score or cause.
    """

    transcript: Address
    grader: Address
    outcome: Scored | Unscored

    @property
    def address(self) -> Address:
        return address_of(canonical_bytes(self))

    def check(self) -> None:
        """Raises IntegrityError when a component is unnamed, doubled, not finite or outside [0, 1]."""
        if len(self.grader) != 64:
            raise IntegrityError(f"verdict.grader is {self.grader!r}: a 64-digit content version is needed")
        if isinstance(self.outcome, Unscored):
            return
        names = [name for name, _ in self.outcome.components]
        if not names or len(set(names)) != len(names) or not all(names):
            raise IntegrityError(f"score components {names}: at least one is needed, each with its own name")
        for name, value in self.outcome.components:
            # A grader in this process may hand over anything, and a bool is an int to Python.
            if type(value) not in {int, float} or not (math.isfinite(value) and 0.0 <= value <= 1.0):
                raise IntegrityError(f"score {name!r} is {value!r}; it must be a finite number in [0, 1]")


class Submission(msgspec.Struct, frozen=True, gc=False):
    """What the grader receives: the task, and the artifact as copied out of the episode.

    Attributes:
        transcript: address of the sealed transcript.
        episode: who made it.
        task: the task as the policy saw it; the grader finds or derives the answer itself.
        final_text: text of the policy's final turn, empty when there is none.
        artifact: bytes that the environment handed over, empty when it keeps none.
    """

    transcript: Address
    episode: EpisodeId
    task: Task
    final_text: str
    artifact: bytes = b""


class VerdictSealed(msgspec.Struct, frozen=True, gc=False, tag="verdict_sealed"):
    """A verdict is durable, together with its row.

    Attributes:
        transcript: what was graded.
        verdict: address of the verdict.
        is_scored: whether it carries a value.
        try_number: how many gradings this transcript had before, from 0.
    """

    transcript: Address
    verdict: Address
    is_scored: bool
    try_number: int


class VerdictDisputed(msgspec.Struct, frozen=True, tag="verdict_disputed"):
    """A second, different verdict came in after the first was durable; it is counted and not used.

    Attributes:
        transcript: what was graded.
        first: address of the verdict that counts.
        second: address of the one that does not.
    """

    transcript: Address
    first: Address
    second: Address
