"""Stage 4, tool call: a validated action, and the record that it is about to be executed."""

import enum

import msgspec

from headrace.records.execution import Metering
from headrace.records.ids import ActionId, Address, LeaseToken
from headrace.records.provenance import address_of


class EffectClass(enum.Enum):
    """What an environment's actions do to the world, and hence what recovery may do.

    PURE: nothing to snapshot, run again at will. SNAPSHOT: the state is restored to a revision. RESETTABLE: only a fresh
    start is possible. EXTERNAL: an effect on a world outside; never run again by itself.
    """

    PURE = "pure"
    SNAPSHOT = "snapshot"
    RESETTABLE = "resettable"
    EXTERNAL = "external"

    @property
    def is_resumable(self) -> bool:
        """Whether an attempt can go on in another executor: there is no state, or it can be brought back."""
        return self in (EffectClass.PURE, EffectClass.SNAPSHOT)


class Action(msgspec.Struct, frozen=True, gc=False):
    """One tool call whose arguments passed the tool's schema.

    Attributes:
        id: idempotency key.
        tool: name of the tool.
        arguments: canonical JSON object, keys sorted.
    """

    id: ActionId
    tool: str
    arguments: str

    @property
    def arguments_hash(self) -> Address:
        """A second INTENT under the same id with other arguments is refused by this."""
        return address_of(f"{self.tool}\0{self.arguments}".encode())


class ActionIntended(msgspec.Struct, frozen=True, gc=False, tag="action_intended"):
    """INTENT: durable before the executor sees the action, unless the environment is pure.

    Attributes:
        action: what will run.
        token: lease under which it runs.
        effect: class of the environment.
        revision: environment revision at the start of the step, if it keeps revisions.
        wait_s: seconds that it waited before for its turn at the external service; 0 where no rate limit is set.
    """

    action: Action
    token: LeaseToken
    effect: EffectClass
    revision: Address | None = None
    wait_s: float = 0.0


class ActionCommitted(msgspec.Struct, frozen=True, gc=False, tag="action_committed"):
    """COMMIT: the executor holds a receipt with this digest; the action is never run again.

    The receipt's stored bytes are a row under the digest, so whoever goes on with the episode need not ask anybody.

    Attributes:
        action_id: which action.
        receipt: digest of the receipt.
        metering: what the call used.
    """

    action_id: ActionId
    receipt: Address
    metering: Metering = Metering()
