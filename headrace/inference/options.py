"""What the embedded engine can be told. Every value is checked once, here and against the model at construction."""

from typing import Literal

from headrace.config import Section
from headrace.errors import ConfigError


class EngineOptions(Section, frozen=True):
    """Attributes:
    worker: name under which the engine reports.
    slots: sequences whose keys and values are held; running and parked ones together.
    context: largest prefix + max_tokens of a request.
    prefill_chunk: most tokens of one sequence in one prefill pass.
    prefill_budget: most tokens, padding included, that one step prefills before it decodes again.
    cache_bucket: attended lengths are rounded up to a multiple of this many positions, or doubled from it.
    shared_prefix_min: fewest common tokens worth waiting for another sequence's prefill.
    attention: attention implementation of `transformers`.
    dtype: of weights and cache; log-probs are float32 in any case.
    is_recorded: record the model's forward pass once, to interpret no Python at every token; the bits stay the same.
    on_swap: what new weights do to a running sequence: `rebuild` computes its cache again, `keep_kv` goes on in the cache
        that older versions computed, which costs nothing and makes log-probs that no single version gives again. A
        sequence that is still prefilled starts over in either case.
    num_threads: torch threads of the process; more than the cores that are free makes it slower, not faster.
    deterministic: log-probs of a request do not depend on what runs beside it: all slots are computed in every pass,
        prefill chunks lie at fixed positions, attended lengths are doubling buckets of a sequence's own length.
    """

    worker: str = "engine"
    slots: int = 64
    context: int = 512
    prefill_chunk: int = 128
    prefill_budget: int = 2048
    cache_bucket: int = 16
    shared_prefix_min: int = 16
    attention: Literal["sdpa", "eager"] = "sdpa"
    dtype: Literal["float32", "bfloat16"] = "float32"
    is_recorded: bool = True
    on_swap: Literal["rebuild", "keep_kv"] = "rebuild"
    num_threads: int = 1
    deterministic: bool = False

    @property
    def cache_bound(self) -> str:
        """The option that the size of the cache is proportional to."""
        return "slots"

    def cache_bytes(self, position_bytes: int) -> int:
        """Size of the cache, where a token's keys and values take so much."""
        return self.slots * (self.context + 1) * position_bytes

    def check(self) -> None:
        """Raises ConfigError for a value out of its bounds."""
        for name in (
            "slots",
            "context",
            "prefill_chunk",
            "prefill_budget",
            "cache_bucket",
            "shared_prefix_min",
            "num_threads",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"inference.options.{name} is {getattr(self, name)}; it must be at least 1")
        if self.context < 2:
            raise ConfigError(f"inference.options.context is {self.context}; a prefix and one token need at least 2")
