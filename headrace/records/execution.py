"""Stage 5, environment execution: the receipt that the executor keeps, and what the call cost."""

import enum

import msgspec

from headrace.records.ids import ActionId, Address, LeaseToken
from headrace.records.provenance import address_of, canonical_bytes


class ExecutionStatus(enum.Enum):
    """How an execution ended. Every value is an observation for the policy, none is an infrastructure failure."""

    OK = "ok"
    TOOL_ERROR = "tool_error"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"


class Metering(msgspec.Struct, frozen=True, gc=False):
    """What one call, or one episode, used.

    Attributes:
        wall_s: elapsed seconds.
        cpu_s: CPU seconds of all its processes.
        memory_peak_bytes: highest resident size; 0 when the platform cannot tell, or not whose it is.
        io_bytes: bytes read and written; 0 when the platform cannot tell.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_peak_bytes: int = 0
    io_bytes: int = 0

    def __add__(self, other: "Metering") -> "Metering":
        return Metering(
            self.wall_s + other.wall_s,
            self.cpu_s + other.cpu_s,
            max(self.memory_peak_bytes, other.memory_peak_bytes),
            self.io_bytes + other.io_bytes,
        )


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What the executor keeps under (action_id, token), in the same atomic unit as the effect where it can.

    Attributes:
        action_id: which action.
        token: lease under which it ran.
        arguments: hash of the tool and arguments that ran, as of `Action.arguments_hash`; not part of the digest.
        status: how it ended.
        output: bytes for the policy, already bounded by the executor.
        output_bytes: size before the bound was applied.
        revision: environment revision after the action, if it keeps revisions.
        metering: what the call used; not part of the digest.
    """

    action_id: ActionId
    token: LeaseToken
    arguments: Address
    status: ExecutionStatus
    output: bytes
    output_bytes: int
    revision: Address | None = None
    metering: Metering = Metering()

    @property
    def stored(self) -> bytes:
        """Canonical bytes of everything that a replay gives again; token, arguments and metering are left out."""
        return canonical_bytes((self.action_id, self.status.value, self.output, self.output_bytes, self.revision))

    @property
    def digest(self) -> Address:
        """Address of the stored bytes."""
        return address_of(self.stored)

    @classmethod
    def from_stored(cls, data: bytes, token: LeaseToken, arguments: Address, metering: Metering) -> "Receipt":
        """The receipt of stored bytes. Raises msgspec.DecodeError, or its subclass ValidationError."""
        action_id, status, output, output_bytes, revision = msgspec.msgpack.decode(data, type=StoredReceipt)
        return cls(action_id, token, arguments, status, output, output_bytes, revision, metering)


StoredReceipt = tuple[ActionId, ExecutionStatus, bytes, int, Address | None]
"""What the stored bytes of a receipt decode to."""


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The right to act for one attempt until a deadline.

    Attributes:
        token: fencing token; whoever sees a higher one refuses this.
        deadline_s: control-plane time after which the lease is void.
    """

    token: LeaseToken
    deadline_s: float


class EpisodeClaimed(msgspec.Struct, frozen=True, gc=False, tag="episode_claimed"):
    """An attempt has an owner.

    Attributes:
        token: fencing token of the lease.
        deadline_s: control-plane time at which it lapses.
    """

    token: LeaseToken
    deadline_s: float


class EnvironmentRestored(msgspec.Struct, frozen=True, gc=False, tag="environment_restored"):
    """The environment of an attempt stands where it stood before an action of unknown outcome, which then runs again.

    Attributes:
        revision: of the state that was brought back.
        incarnation: life of the executor that holds it now.
        cause: why, in one line.
    """

    revision: Address
    incarnation: str
    cause: str


class IncarnationLost(msgspec.Struct, frozen=True):
    """Answer to a probe: the executor that was asked first is gone, and with it what it knew.

    Attributes:
        expected: incarnation that took the action.
        found: incarnation that answers now.
    """

    expected: str
    found: str
