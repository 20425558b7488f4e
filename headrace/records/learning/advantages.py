"""Advantage estimators by name, with their numbers and the value model of `gae`."""

from typing import Literal

import msgspec

AdvantageName = Literal[
    "mean",
    "grpo",
    "rloo",
    "loo_std",
    "batch_std",
    "maxrl",
    "opo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "gdpo",
    "gae",
]


class EstimatorOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Numbers of the advantage estimators.

    Attributes:
        ddof: of the group deviation in `grpo`: 1 sample, 0 population; they differ by sqrt(n / (n - 1)).
        component_weights: of each named reward component, for `gdpo` alone.
        discount: gamma of `gae`, per action token.
        trace: lambda of `gae`.
    """

    ddof: Literal[0, 1] = 1
    component_weights: dict[str, float] = {}
    discount: float = 1.0
    trace: float = 1.0


class Critic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The value model of `gae`; it exists with that advantage and no other.

    Attributes:
        learning_rate: of its AdamW.
        value_clip: largest move of a value in one update that lowers the loss; 0 for none.
        warmup_updates: updates at the start in which the policy does not move.
    """

    learning_rate: float = 1e-3
    value_clip: float = 0.2
    warmup_updates: int = 0
