"""Keeps attempts away from an environment whose infrastructure fails, and ends a run that waits for it too long.

* consumes: attempts that want to start, and how those that started ended.
* waits for: the pause of an open breaker, or the end of the attempt that tries the environment again.
* unblocked by: either.
* produces: `BreakerChanged` at every change of state.
"""

import asyncio
import contextlib

from headrace.control.recorder import Recorder
from headrace.control.signal import Changed
from headrace.errors import EnvironmentFault, HeadraceError
from headrace.records.run import BreakerChanged
from headrace.records.streams import stream
from headrace.records.terminal import InfraError, Terminal
from headrace.scheduling.breaker import BreakerRule, BreakerState, Health

_LEAST_WAIT_S = 1e-3
_UNUSED = Health()


class EnvironmentBroken(HeadraceError):
    """An environment failed for so long that the run has ended."""


class Breakers:
    """One breaker for each environment, by name.

    Args:
        rule: decides.
        recorder: where changes are said.
        changed: notified at every change.
        seed: root of the jitter.
    """

    def __init__(self, rule: BreakerRule, recorder: Recorder, changed: Changed, seed: int) -> None:
        self._rule = rule
        self._recorder = recorder
        self._changed = changed
        self._seed = seed
        self._health: dict[str, Health] = {}

    def hold_reason(self) -> str | None:
        """Why no group should start: every environment that was used is broken. None where one works, or none was used."""
        broken = [name for name, health in self._health.items() if health.state is not BreakerState.CLOSED]
        if not broken or len(broken) < len(self._health):
            return None
        return f"environment {', '.join(sorted(broken))} is broken"

    async def enter(self, environment: str) -> None:
        """Returns once an attempt may start; `leave` has to follow, whatever comes of the attempt.

        Raises:
            EnvironmentBroken: when the environment was broken for too long.
        """
        while True:
            health, now_s = self._of(environment), self._now_s()
            entry = self._rule.enter(health, now_s)
            if entry.may_start:
                self._become(environment, entry.health)
                return
            if self._rule.is_given_up(health, now_s):
                raise EnvironmentBroken(
                    f"environment {environment} is broken for {now_s - health.since_s:.0f} s: {entry.reason}; the bound is "
                    f"timeouts.broken_environment_s = {self._rule.give_up_s:g}. Its failures are in the report"
                )
            left_s = self._rule.give_up_s - (now_s - health.since_s)
            wait_s = left_s if entry.wait_s is None else min(entry.wait_s, left_s)
            with contextlib.suppress(TimeoutError):
                # A clock that rounds could end a wait just before its time, again and again.
                async with asyncio.timeout(max(wait_s, _LEAST_WAIT_S)):
                    await self._changed.wait_until(lambda seen=health: self._of(environment) is not seen)

    def leave(self, environment: str, terminal: Terminal | None) -> None:
        """The attempt that was let in is over: how it ended, or None where it was given up and says nothing."""
        health, now_s = self._of(environment), self._now_s()
        if terminal is None:
            self._become(environment, self._rule.released(health, now_s))
            return
        failed = isinstance(terminal, InfraError) and terminal.boundary == EnvironmentFault.boundary
        jitter = float(stream(self._seed, "breaker", environment, health.openings).random()) if failed else 0.0
        self._become(environment, self._rule.leave(health, failed, now_s, jitter=jitter))

    def _become(self, environment: str, health: Health) -> None:
        before = self._of(environment)
        self._health[environment] = health
        if health.state is not before.state:
            changed = BreakerChanged(health.state.value, before.failures, len(before.recent))
            if health.state is BreakerState.OPEN and before.state is BreakerState.CLOSED:
                changed = BreakerChanged(health.state.value, health.failures, len(health.recent))
            self._recorder.record(changed, key=environment)
            self._changed.notify()

    def _of(self, environment: str) -> Health:
        return self._health.get(environment, _UNUSED)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
