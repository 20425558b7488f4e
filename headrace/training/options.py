"""Options of the torch trainer: how it computes, none of which may change what it computes beyond the named rounding."""

from typing import Any, Literal

import msgspec

SchedulerName = Literal[
    "constant",
    "constant_with_warmup",
    "linear",
    "cosine",
    "cosine_with_restarts",
    "cosine_with_min_lr",
    "polynomial",
    "inverse_sqrt",
    "warmup_stable_decay",
]


class TrainerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the torch trainer.

    Attributes:
        micro_batch_tokens: slots of one forward pass, padding included; bounds memory and changes no result.
        layout: `padded`: rows of similar length side by side; `packed`: rows end to end with position ids that start anew
            and attention that ends at each row, so no slot is padding. The same values.
        precision: of forward and backward passes; `bfloat16` is autocast over float32 weights, and the mismatch that each
            update reports is then its own. The canary is always scored in float32.
        num_threads: torch threads of the process; more than the cores that are free makes it slower, not faster.
        weight_decay: AdamW's decoupled decay.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: added to the root of the second moment.
        scheduler: of the learning rate, one of `transformers`.
        warmup_updates: the learning rate rises linearly over so many updates.
        total_updates: over which a falling scheduler reaches its end; 0 with the constant ones.
        scheduler_options: further arguments of the scheduler, under its own names.
    """

    micro_batch_tokens: int = 4096
    layout: Literal["padded", "packed"] = "padded"
    precision: Literal["float32", "bfloat16"] = "float32"
    num_threads: int = 1
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    scheduler: SchedulerName = "constant_with_warmup"
    warmup_updates: int = 0
    total_updates: int = 0
    scheduler_options: dict[str, Any] = {}

    def __post_init__(self) -> None:
        for name, least in (
            ("micro_batch_tokens", 1),
            ("num_threads", 1),
            ("weight_decay", 0),
            ("warmup_updates", 0),
            ("total_updates", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"trainer.{name} is {getattr(self, name)}; it must be at least {least}")
        for name in ("beta1", "beta2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"trainer.{name} is {getattr(self, name)}; it must lie in [0, 1)")
        is_endless = self.scheduler in ("constant", "constant_with_warmup", "inverse_sqrt")
        if is_endless == (self.total_updates > 0):
            raise ValueError(
                f"trainer.total_updates is {self.total_updates} with scheduler {self.scheduler}; falling schedulers need "
                "at least 1, the others 0"
            )
