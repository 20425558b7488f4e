"""Names of things. An id comes from the run's seed and counters, never from a random source.

A *group* is all members that answer one drawn task; its ordinal is the task's position in the source. An *episode* is one
attempt of one member. A *step* is one policy turn of an episode; an *action* is one tool call of a step. The same id is
the idempotency key of everything that happens to the thing it names.
"""

import enum
from typing import NewType, Self

import msgspec

Address = NewType("Address", str)
"""SHA-256 of canonical bytes, 64 hexadecimal digits."""

PolicyId = NewType("PolicyId", str)
"""Name of a policy that is trained and published on its own."""

LeaseToken = NewType("LeaseToken", int)
"""Fencing token from a monotone counter; a lower one than the highest seen is refused."""


class Purpose(enum.Enum):
    """Why an episode runs. Only `TRAIN` takes credit and an ordinal of the data frontier."""

    TRAIN = "train"
    EVAL = "eval"
    CHECK = "check"


_PURPOSES = frozenset(purpose.value for purpose in Purpose)


def _purpose(text: str) -> str:
    """The text, which names a purpose. Raises ValueError when it names none."""
    if text not in _PURPOSES:
        raise ValueError(f"{text!r} names no purpose; known: {', '.join(sorted(_PURPOSES))}")
    return text


class GroupId(msgspec.Struct, frozen=True, gc=False, order=True, array_like=True):
    """Position of a drawn task within its purpose: `train.12`.

    Attributes:
        purpose: why the group runs; ordinals of different purposes are unrelated.
        ordinal: position in the source of that purpose, from 0.
    """

    purpose: str
    ordinal: int

    @classmethod
    def of(cls, purpose: Purpose, ordinal: int) -> Self:
        return cls(purpose.value, ordinal)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Inverse of `str`, also of a key that numbers a later closing: `train.12#2`. Raises ValueError on anything else."""
        name, sign, number = text.partition("#")
        if sign and not number.isdecimal():
            raise ValueError(f"{text!r} names no group")
        purpose, ordinal = name.split(".")
        return cls(_purpose(purpose), int(ordinal))

    def __str__(self) -> str:
        return f"{self.purpose}.{self.ordinal}"


class EpisodeId(msgspec.Struct, frozen=True, gc=False, order=True, array_like=True):
    """One attempt of one member of a group: `train.12.3.0`.

    Attributes:
        group: the drawn task that it answers.
        member: position in the group, from 0.
        attempt: rises only when the episode starts again in a fresh environment.
    """

    group: GroupId
    member: int
    attempt: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Inverse of `str`. Raises ValueError on anything else."""
        purpose, ordinal, member, attempt = text.split(".")
        return cls(GroupId(_purpose(purpose), int(ordinal)), int(member), int(attempt))

    @property
    def purpose(self) -> Purpose:
        return Purpose(self.group.purpose)

    def __str__(self) -> str:
        return f"{self.group.purpose}.{self.group.ordinal}.{self.member}.{self.attempt}"


class ActionId(msgspec.Struct, frozen=True, gc=False, order=True, array_like=True):
    """One tool call of one step: `train.12.3.0/2.0`. A call id minted by a model is data, never this key.

    Attributes:
        episode: who acts.
        step: the policy turn, from 0.
        ordinal: position of the call within the turn, from 0.
    """

    episode: EpisodeId
    step: int
    ordinal: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Inverse of `str`. Raises ValueError on anything else."""
        episode, _, position = text.partition("/")
        step, ordinal = position.split(".")
        return cls(EpisodeId.parse(episode), int(step), int(ordinal))

    def __str__(self) -> str:
        episode = self.episode
        group = episode.group
        return f"{group.purpose}.{group.ordinal}.{episode.member}.{episode.attempt}/{self.step}.{self.ordinal}"


class PolicyRef(msgspec.Struct, frozen=True, gc=False, order=True, array_like=True):
    """One published version of one policy. Versions are durable, monotone and never reused.

    Attributes:
        policy_id: publication and staleness are per policy.
        version: number of updates behind the weights; 0 is the starting point.
    """

    policy_id: PolicyId
    version: int

    def __str__(self) -> str:
        return f"{self.policy_id}@{self.version}"
