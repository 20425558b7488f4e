"""Stage 1, task: what is asked, how hard it is, and what an attempt may spend."""

import msgspec

from headrace.records.ids import Address, GroupId
from headrace.records.provenance import address_of, canonical_bytes


class Budget(msgspec.Struct, frozen=True, gc=False):
    """What one episode may spend. Tokens per episode, turn and observation are separate limits.

    Attributes:
        turns: policy turns, >= 1.
        episode_tokens: tokens of the whole sequence, prompt included; of all paths when it forks, shared ones once.
        turn_tokens: sampled tokens of one turn.
        observation_tokens: tokens of one observation; a longer one is cut and marked.
        wall_s: seconds from start to terminal on the control plane's clock.
        environment_cpu_s: CPU seconds of the environment over the episode.
        malformed_calls: malformed or refused calls after which the episode ends.
    """

    turns: int = 6
    episode_tokens: int = 512
    turn_tokens: int = 128
    observation_tokens: int = 64
    wall_s: float = 60.0
    environment_cpu_s: float = 10.0
    malformed_calls: int = 4

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"budget.{name} is {value}; it must be positive")


class MessageAttachment(msgspec.Struct, frozen=True):
    """A non-text input of the task, by address; the harness places its tokens.

    Attributes:
        kind: media type, such as `image/png`.
        blob: address of the bytes.
    """

    kind: str
    blob: Address


class Task(msgspec.Struct, frozen=True, gc=False):
    """One task as the policy may see it. Answers are the grader's and are not here.

    Attributes:
        family: name of the generator or collection.
        difficulty: stratum, fixed before the run; figures are reported by it.
        seed: what the generator needs to make the task again.
        index: position in the generator's own order.
        question: the user's text.
        budget: limits of one episode.
        environment: name of the environment kind that it runs in.
        parameters: generator parameters as canonical JSON, for the grader and for people.
        attachments: non-text inputs.
    """

    family: str
    difficulty: str
    seed: int
    index: int
    question: str
    budget: Budget
    environment: str
    parameters: str = "{}"
    attachments: tuple[MessageAttachment, ...] = ()

    @property
    def address(self) -> Address:
        """Version and identity of the task: SHA-256 of its canonical bytes."""
        return address_of(canonical_bytes(self))


class TaskDrawn(msgspec.Struct, frozen=True, gc=False, tag="task_drawn"):
    """The source moved on: this ordinal is now open.

    Attributes:
        task: address of the drawn task.
        family: copied for folds over the log.
        difficulty: copied for folds over the log.
        requeued_from: the rejected group whose task this is, drawn again; None when it comes from the source.
    """

    task: Address
    family: str
    difficulty: str
    requeued_from: GroupId | None = None


class SourceExhausted(msgspec.Struct, frozen=True, tag="source_exhausted"):
    """The source has no further task; an explicit state, never an error and never a silent restart.

    Attributes:
        drawn: number of tasks drawn in all.
    """

    drawn: int
