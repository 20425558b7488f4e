"""Stage 7, terminal state: four different things. It is the environment's claim; the verdict is separate."""

import enum

import msgspec


class Limit(enum.Enum):
    """Which bound of the budget ended or cut an episode."""

    TURNS = "turns"
    EPISODE_TOKENS = "episode_tokens"
    TURN_TOKENS = "turn_tokens"
    OBSERVATION_TOKENS = "observation_tokens"
    WALL = "wall_s"
    ENVIRONMENT_CPU = "environment_cpu_s"
    MALFORMED_CALLS = "malformed_calls"


class Success(msgspec.Struct, frozen=True, gc=False, tag="success"):
    """The environment claims that the task is done."""


class Failure(msgspec.Struct, frozen=True, gc=False, tag="failure"):
    """The environment claims that the task cannot be done any more, or the policy brought the environment down.

    Attributes:
        reason: one line.
    """

    reason: str


class Truncated(msgspec.Struct, frozen=True, gc=False, tag="truncated"):
    """A limit was reached. The policy caused it, so it is graded, never unscored.

    Attributes:
        limit: which one.
    """

    limit: Limit


class InfraError(msgspec.Struct, frozen=True, gc=False, tag="infra_error"):
    """A boundary failed. Not the policy's doing: no reward, no place in a baseline, a new attempt within bounds.

    Attributes:
        boundary: which port.
        detail: one line for people.
        is_effect_unknown: an external action may have taken effect; no new attempt by itself.
    """

    boundary: str
    detail: str
    is_effect_unknown: bool = False


Terminal = Success | Failure | Truncated | InfraError


def terminal_name(terminal: Terminal) -> str:
    """`success`, `failure`, `truncated:turns`, `infra_error:inference`, …; the label of counts and tables."""
    match terminal:
        case Truncated(limit=limit):
            return f"truncated:{limit.value}"
        case InfraError(boundary=boundary):
            return f"infra_error:{boundary}"
        case Success():
            return "success"
        case Failure():
            return "failure"
