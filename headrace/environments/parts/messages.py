"""What the environment and its host say to each other."""

import enum
from typing import Any

import msgspec

from headrace.records.action import EffectClass
from headrace.records.execution import ExecutionStatus, Metering
from headrace.records.harness import ToolSchema


class Hello(msgspec.Struct, frozen=True):
    """What a host that loaded the part found.

    Attributes:
        tools: schemas in order.
        effect: what the part declares of itself; None leaves it to the options.
        is_stateful: whether each episode has an instance of its own.
        hooks: hooks that the part has.
    """

    tools: tuple[ToolSchema, ...]
    effect: EffectClass | None
    is_stateful: bool
    hooks: frozenset[str]


class PartSettings(msgspec.Struct, frozen=True):
    """What a host is told on its command line.

    Attributes:
        name: of the part in its file or module.
        file: a Python file, or empty.
        module: an importable module, or empty.
        output_bytes: bound on one output and on the artifact.
        memory_bytes: address space of an episode's process; 0 for no bound.
    """

    name: str
    file: str
    module: str
    output_bytes: int
    memory_bytes: int


class Method(enum.Enum):
    """What a host can be asked about a session."""

    OPEN = "open"
    CALL = "call"
    CLAIM = "claim"
    ARTIFACT = "artifact"
    CLOSE = "close"


class Ask(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        session: which episode's instance.
        timeout_s: after so long the episode's process is killed.
        text: name of the tool, or the final text of a claim.
        arguments: of the tool, as JSON.
        question: of the task, on OPEN.
        difficulty: of the task, on OPEN.
        data: of the task, on OPEN.
    """

    session: str
    timeout_s: float
    text: str = ""
    arguments: str = "{}"
    question: str = ""
    difficulty: str = ""
    data: dict[str, Any] = {}


class Answer(msgspec.Struct, frozen=True):
    """How it went. Nothing here is an infrastructure failure.

    Attributes:
        status: how it ended.
        output: bytes for the policy, bounded.
        output_bytes: size before the bound.
        metering: what it used.
        claim: the part's own claim of success; None when it makes none.
    """

    status: ExecutionStatus = ExecutionStatus.OK
    output: bytes = b""
    output_bytes: int = 0
    metering: Metering = Metering()
    claim: bool | None = None
