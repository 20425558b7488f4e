"""What an engine counts, and where its time goes. The states partition time."""

from collections.abc import Callable

import msgspec


class Counters(msgspec.Struct):
    """Running totals of an engine.

    Attributes:
        prefill_tokens: prefix tokens computed.
        decoded_tokens: tokens sampled.
        reused_tokens: prefix tokens found in the cache of the same or another slot.
        rebuilt_tokens: cached tokens thrown away by new weights and computed again.
        turns: turns ended, whatever the way.
        failed_turns: turns that ended in a failure.
    """

    prefill_tokens: int = 0
    decoded_tokens: int = 0
    reused_tokens: int = 0
    rebuilt_tokens: int = 0
    turns: int = 0
    failed_turns: int = 0


class EngineStats(msgspec.Struct, frozen=True):
    """Attributes:
    seconds: time in each state since the start: idle, paused, serve, prefill, decode, sync, score; they sum to `wall_s`.
    wall_s: time since the start.
    counters: running totals.
    running: turns in slots.
    waiting: turns without one.
    versions: versions in memory.
    weights_bytes: bytes of one copy of the weights.
    cache_bytes: bytes of the key-value cache.
    """

    seconds: dict[str, float]
    wall_s: float
    counters: Counters
    running: int
    waiting: int
    versions: tuple[int, ...]
    weights_bytes: int
    cache_bytes: int


class Timeline:
    """Seconds per state. The states partition time: leaving one enters another at the same instant."""

    def __init__(self, clock: Callable[[], float], state: str) -> None:
        self._clock = clock
        self._state = state
        self._began_s = self._entered_s = clock()
        self._seconds: dict[str, float] = {}

    def enter(self, state: str) -> str:
        """The state left; the present one is `state` from now on."""
        now_s = self._clock()
        self._seconds[self._state] = self._seconds.get(self._state, 0.0) + now_s - self._entered_s
        left, self._state, self._entered_s = self._state, state, now_s
        return left

    def totals(self) -> tuple[dict[str, float], float]:
        """Seconds per state, and seconds in all."""
        self.enter(self._state)
        return dict(self._seconds), self._entered_s - self._began_s
