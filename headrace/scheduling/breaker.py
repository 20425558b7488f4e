"""The circuit breaker of one environment: while most attempts fail for its infrastructure, none is started in vain.

Invariant: an environment that fails is asked again by one attempt at a time, after a pause that doubles up to its bound; the
first attempt that ends without a fault of the environment's lets all others in. What a policy caused counts as working.
"""

import enum

import msgspec


class BreakerState(enum.Enum):
    """CLOSED: attempts start. OPEN: none does. PROBING: one is under way, and decides."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class Health(msgspec.Struct, frozen=True):
    """What is known of an environment.

    Attributes:
        recent: of the newest attempts, oldest first, whether the environment failed them.
        state: of the breaker.
        since_s: when it last was closed; meaningless while it is.
        until_s: when an open one may be tried again.
        openings: how often it opened since it was last closed.
    """

    recent: tuple[bool, ...] = ()
    state: BreakerState = BreakerState.CLOSED
    since_s: float = 0.0
    until_s: float = 0.0
    openings: int = 0

    @property
    def failures(self) -> int:
        """Failed ones among the newest attempts."""
        return sum(self.recent)


class Entry(msgspec.Struct, frozen=True):
    """Whether an attempt may start.

    Attributes:
        health: the environment's health from now on.
        may_start: whether it may.
        reason: why not.
        wait_s: seconds after which to ask again; None when only another attempt's end can change the answer.
    """

    health: Health
    may_start: bool
    reason: str = ""
    wait_s: float | None = None


class BreakerRule(msgspec.Struct, frozen=True):
    """Decides for one environment.

    Attributes:
        window: newest attempts that are looked at.
        min_attempts: fewer than this many never open it.
        rate: share of failed ones among them at which it opens.
        pause_s: before the first probe; doubles with each one that fails.
        max_pause_s: longest pause.
        give_up_s: a breaker that was not closed for so long ends the run.
    """

    window: int = 20
    min_attempts: int = 8
    rate: float = 0.5
    pause_s: float = 5.0
    max_pause_s: float = 60.0
    give_up_s: float = 600.0

    def enter(self, health: Health, now_s: float) -> Entry:
        """Whether an attempt may start now."""
        if health.state is BreakerState.CLOSED:
            return Entry(health, may_start=True)
        reason = f"{health.failures} of its last {len(health.recent)} attempts failed"
        if health.state is BreakerState.PROBING:
            return Entry(health, may_start=False, reason=f"{reason}; one tries it again")
        if now_s < health.until_s:
            return Entry(health, may_start=False, reason=reason, wait_s=health.until_s - now_s)
        return Entry(msgspec.structs.replace(health, state=BreakerState.PROBING), may_start=True)

    def leave(self, health: Health, failed: bool, now_s: float, *, jitter: float) -> Health:
        """The health after an attempt ended; `jitter` in [0, 1) spreads the pause over [0.5, 1.5) of its value."""
        if health.state is BreakerState.PROBING:
            return self._opened(health, now_s, jitter) if failed else Health()
        if health.state is BreakerState.OPEN:
            return health  # it started before; only a probe tells how things stand now
        recent = (*health.recent, failed)[-self.window :]
        health = Health(recent, health.state, now_s, health.until_s, health.openings)
        if not failed:
            return health
        is_broken = len(recent) >= self.min_attempts and sum(recent) >= self.rate * len(recent)
        return self._opened(health, now_s, jitter) if is_broken else health

    def released(self, health: Health, now_s: float) -> Health:
        """The health after a probe ended without telling anything; the next attempt is one."""
        if health.state is not BreakerState.PROBING:
            return health
        return msgspec.structs.replace(health, state=BreakerState.OPEN, until_s=now_s)

    def is_given_up(self, health: Health, now_s: float) -> bool:
        """Whether the environment was broken for too long."""
        return health.state is not BreakerState.CLOSED and now_s - health.since_s >= self.give_up_s

    def _opened(self, health: Health, now_s: float, jitter: float) -> Health:
        pause_s = min(self.max_pause_s, self.pause_s * 2.0**health.openings) * (0.5 + jitter)
        return msgspec.structs.replace(
            health,
            state=BreakerState.OPEN,
            until_s=now_s + pause_s,
            openings=health.openings + 1,
        )
