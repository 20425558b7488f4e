"""Identities that hold on every sample path, each from two independent counts, so that a wrong figure shows.

* lag: no group ended by a rule, then the sum over trained groups of (version at hand-over - version at admission) is the sum
  over version bumps of the groups that were admitted before it and handed over after it. Exact, in whole groups.
* Little: the time average of the number of groups that hold a slot is arrivals per second times mean residence. Exact when
  stays are cut at the ends of the window.
* slots: busy slot seconds of the engine are the seconds that its turns report. Exact when no turn was ended.
"""

import msgspec

from headrace.records.batch import BatchPlanned, BatchRefilled, BatchSelected, GroupAdmitted, GroupRejected
from headrace.records.events import Event
from headrace.records.segment import TurnGenerated
from headrace.records.update import WeightsActivated


class Identity(msgspec.Struct, frozen=True):
    """One quantity, counted twice.

    Attributes:
        left: one way.
        right: the other way.
        applies: whether the run meets the condition.
    """

    left: float
    right: float
    applies: bool

    @property
    def residual(self) -> float:
        """Relative difference; 0 where the identity does not apply."""
        if not self.applies:
            return 0.0
        return abs(self.left - self.right) / max(abs(self.left), abs(self.right), 1e-12)


class Identities(msgspec.Struct, frozen=True):
    """The identities of one run.

    Attributes:
        lag: summed lag of groups from admission to hand-over, in groups.
        little: mean number of groups that hold a slot.
        slots: busy slot seconds.
    """

    lag: Identity
    little: Identity
    slots: Identity

    @property
    def worst(self) -> float:
        """Largest residual."""
        return max(self.lag.residual, self.little.residual, self.slots.residual)


class IdentityFold:
    """Counts both sides."""

    def __init__(self) -> None:
        self._version = 0
        self._admitted: dict[str, tuple[int, int]] = {}
        self._waiting: set[str] = set()
        self._lag_sum = self._bump_sum = 0
        self._num_ended = 0
        self._area = self._residence = 0
        self._holding = 0
        self._last_ns = 0
        self._turn_s = 0.0
        self._batch: tuple[str, ...] = ()

    def observe(self, event: Event) -> None:
        """Takes the next event."""
        match event.payload:
            case GroupAdmitted():
                self._move(event.t_ns, +1)
                self._admitted[event.key] = (self._version, event.t_ns)
                self._waiting.add(event.key)
            case GroupRejected():
                self._leave(event.key, event.t_ns)
                self._num_ended += 1
                self._waiting.discard(event.key)
            case BatchSelected(groups=groups) | BatchRefilled(groups=groups):
                for group in groups:
                    key = str(group)
                    self._lag_sum += self._version - self._admitted[key][0]
                    self._waiting.discard(key)
            case BatchPlanned(groups=groups):
                self._batch = tuple(str(group) for group in groups)
            case WeightsActivated(policy=policy):
                self._activate(policy.version, event.t_ns)
            case TurnGenerated(generate_s=generate_s):
                self._turn_s += generate_s
            case _:
                pass

    def result(self, slot_seconds: float | None) -> Identities:
        """Both sides of each."""
        seconds = max(1, self._last_ns) / 1e9
        stays = self._residence + sum(self._last_ns - begin for _, begin in self._admitted.values())
        return Identities(
            lag=Identity(float(self._lag_sum), float(self._bump_sum), not self._num_ended and not self._waiting),
            little=Identity(self._area / 1e9 / seconds, stays / 1e9 / seconds, True),
            slots=Identity(self._turn_s, slot_seconds or 0.0, slot_seconds is not None and self._num_ended == 0),
        )

    def _activate(self, version: int, t_ns: int) -> None:
        """The bump: everything that is admitted and not yet handed over has one more version go by."""
        self._bump_sum += (version - self._version) * len(self._waiting)
        for key in self._batch:
            self._leave(key, t_ns)
        self._batch, self._version = (), version

    def _leave(self, key: str, t_ns: int) -> None:
        _, begin_ns = self._admitted.pop(key)
        self._move(t_ns, -1)
        self._residence += t_ns - begin_ns

    def _move(self, t_ns: int, change: int) -> None:
        self._area += self._holding * (t_ns - self._last_ns)
        self._last_ns = t_ns
        self._holding += change
