"""What engine and trainer cost, as data. Figures of a cost model, never of hardware."""

import math
from typing import Literal

from headrace.config import Section
from headrace.simulation.laws import Constant, Law


class EngineCost(Section, frozen=True):
    """A processor-sharing engine in token work.

    Attributes:
        slots: requests decoded at the same time; later ones wait by the age of their trajectory.
        decode: (active requests, tokens per second of all together), rising in the first; linear in between and from
            (0, 0), constant beyond. One point at `slots` makes the rate of a request independent of load.
        prefill_tokens_per_s: tokens per second in which a prompt, or a cache after a swap, is computed; None is free.
        turn_start_s: seconds of the engine that every turn takes before its first token, besides computing what is not
            cached.
        context_half_tokens: context of all active requests at which decoding is half as fast; None is never.
        while_training: share of the rate that is left while a trainer computes on the same cores; 1 with cores of its own.
        swap_pause_s: seconds without a token at each new version, besides the rebuilding of caches.
        on_swap: `rebuild` computes running caches again under the new version, `keep_kv` goes on with the old ones.
        stage_s: seconds to load a version aside.
    """

    slots: int = 32
    decode: tuple[tuple[int, float], ...] = ((1, 2_400.0), (8, 10_400.0), (32, 17_200.0))
    prefill_tokens_per_s: float | None = None
    turn_start_s: float = 0.0
    context_half_tokens: float | None = None
    while_training: float = 1.0
    swap_pause_s: float = 0.0
    on_swap: Literal["rebuild", "keep_kv"] = "rebuild"
    stage_s: Law = Constant(value=0.0)

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"engine.slots is {self.slots}; it must be at least 1")
        active = [point[0] for point in self.decode]
        if not self.decode or active != sorted(set(active)) or active[0] < 1:
            raise ValueError(f"engine.decode is {self.decode}; numbers of active requests must rise from at least 1")
        if any(rate <= 0.0 for _, rate in self.decode):
            raise ValueError(f"engine.decode is {self.decode}; every rate must be positive")
        for name in ("prefill_tokens_per_s", "context_half_tokens"):
            value = getattr(self, name)
            if value is not None and not value > 0.0:
                raise ValueError(f"engine.{name} is {value}; it must be positive or absent")
        if not 0.0 < self.while_training <= 1.0:
            raise ValueError(f"engine.while_training is {self.while_training}; it must be above 0 and at most 1")
        for name in ("swap_pause_s", "turn_start_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"engine.{name} is {getattr(self, name)}; it must be finite and at least 0, or absent")

    def request_rates(self) -> list[float]:
        """Tokens per second of one request at 0, 1, …, `slots` active ones; index 0 is unused."""
        points = [(0, 0.0), *self.decode]
        rates, index = [0.0], 1
        for active in range(1, self.slots + 1):
            while index < len(points) - 1 and points[index][0] < active:
                index += 1
            (low, slow), (high, fast) = points[index - 1], points[index]
            total = fast if active >= high else slow + (fast - slow) * (active - low) / (high - low)
            rates.append(total / active)
        return rates


class TrainerCost(Section, frozen=True):
    """A trainer that takes so long.

    Attributes:
        update_s: seconds of one update.
        update_s_per_token: seconds for each trained token besides.
        score_s: seconds to score a batch before the update.
        score_s_per_token: seconds for each trained token besides.
        canary_s: seconds to score the canary.
        save_s: seconds to save a checkpoint, and to load one.
        drift: standard deviation of a token's log-ratio per version of lag; 0 leaves old tokens on policy.
        weights_bytes: size that is reported for a version.
    """

    update_s: Law = Constant(value=1.0)
    update_s_per_token: float = 0.0
    score_s: Law = Constant(value=0.0)
    score_s_per_token: float = 0.0
    canary_s: float = 0.0
    save_s: float = 0.0
    drift: float = 0.0
    weights_bytes: int = 4_000_000

    def __post_init__(self) -> None:
        for name in ("update_s_per_token", "score_s_per_token", "canary_s", "save_s", "drift", "weights_bytes"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"trainer.{name} is {getattr(self, name)}; it must be finite and at least 0, or absent"
                )
