"""Stage 6, observation: a projection of environment state back to the policy."""

import msgspec

from headrace.records.arrays import Int32Bytes
from headrace.records.ids import ActionId, Address


class ActionObserved(msgspec.Struct, frozen=True, gc=False, tag="action_observed"):
    """OBSERVED: the observation is fixed, in bytes and in token ids; the step is over for this action.

    Attributes:
        action_id: which action.
        output: address of the bytes shown.
        ids: token ids [T] of the observation, control tokens of the template left out.
        revision: environment revision after the action, if it keeps revisions.
        is_cut: the observation was longer than the budget and ends with a marker.
        neutralized: number of control literals that were encoded as ordinary text.
    """

    action_id: ActionId
    output: Address
    ids: Int32Bytes
    revision: Address | None
    is_cut: bool
    neutralized: int
