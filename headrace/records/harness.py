"""Stage 2, harness: what the policy is shown and how its text is read. Pure nouns; rendering is in `headrace.harness`."""

import enum

import msgspec


class ToolSchema(msgspec.Struct, frozen=True):
    """One tool as the policy sees it.

    Attributes:
        name: the name that a call carries.
        description: one sentence.
        parameters: JSON Schema of the arguments, as canonical JSON text.
    """

    name: str
    description: str
    parameters: str


class ParseStatus(enum.Enum):
    """How a policy turn was read. A malformed call never runs with empty arguments and never disappears."""

    CALLS = "calls"
    FINAL = "final"
    MALFORMED = "malformed"


class ParsedCall(msgspec.Struct, frozen=True, gc=False):
    """One well-formed call.

    Attributes:
        tool: name of the tool, not yet known to exist.
        arguments: canonical JSON object, keys sorted.
    """

    tool: str
    arguments: str


class ParsedTurn(msgspec.Struct, frozen=True, gc=False):
    """A policy turn as read by the harness.

    Attributes:
        status: calls to run, a final answer, or malformed.
        text: decoded text of the turn, without the closing control token.
        calls: in the order written; empty unless `status` is CALLS.
        problem: what is wrong, for the policy to read; empty unless MALFORMED.
    """

    status: ParseStatus
    text: str
    calls: tuple[ParsedCall, ...] = ()
    problem: str = ""
