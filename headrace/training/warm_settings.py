"""Settings of the warm start, and its learning rates. Reading them loads no tensor library."""

import math
from typing import Literal

import msgspec


class WarmStartSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to fine-tune.

    Attributes:
        steps: optimizer steps; 0 leaves the model as it was initialised.
        batch_sequences: sequences of a step; the loss is the mean over their learned tokens.
        learning_rate: peak, reached after `ramp_steps` and falling along a cosine from the first step on.
        ramp_steps: steps of the linear rise.
        final_fraction: share of the peak that the cosine ends at.
        beta2: decay of AdamW's second moment.
        weight_decay: AdamW's decoupled decay.
        max_grad_norm: gradient norm bound.
        micro_batch_tokens: slots of one forward pass.
        num_threads: torch threads.
        initialization: `random`, or `induction`: random but for a circuit that copies from the context; see
            `headrace.training.initialization`.
    """

    steps: int = 200
    batch_sequences: int = 48
    learning_rate: float = 3e-3
    ramp_steps: int = 20
    final_fraction: float = 0.1
    beta2: float = 0.98
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    micro_batch_tokens: int = 4096
    num_threads: int = 1
    initialization: Literal["random", "induction"] = "random"

    def __post_init__(self) -> None:
        least = {"steps": 0, "batch_sequences": 1, "ramp_steps": 0, "micro_batch_tokens": 1, "num_threads": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"warm start {name} is {getattr(self, name)}; it must be at least {bound}")

    def rate(self, step: int) -> float:
        """Learning rate of a step, from 0."""
        ramp = min(1.0, (step + 1) / max(1, self.ramp_steps))
        cosine = 0.5 * (1.0 + math.cos(math.pi * (step + 1) / self.steps))
        return self.learning_rate * ramp * (self.final_fraction + (1.0 - self.final_fraction) * cosine)
