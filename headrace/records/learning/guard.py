"""When an update pauses the run before its version is published."""

import msgspec


class Guard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When an update pauses the run before its version is published. 0 turns a bound off.

    Attributes:
        max_kl: k3 estimate of KL(behaviour, policy) per trained token, nats.
        max_step_kl: exact KL(new, previous) on the fixed sequences, nats per token. A healthy step moves by hundredths; one
            that moves by more than a nat has replaced the policy.
        min_entropy_share: entropy per token over that of the first update.
    """

    max_kl: float = 1.0
    max_step_kl: float = 1.0
    min_entropy_share: float = 0.01
