"""Decides whether an update has gone wrong before its version is served.

Invariant: synchronous and without I/O; the first figure out of its bound, in a fixed order, is the one named.
"""

from collections.abc import Mapping

from headrace.records.checkpoint import GuardState
from headrace.records.gate import Breach
from headrace.records.learning.guard import Guard


class CollapseGuard:
    """Remembers the first entropy of the run, and judges each update by it and by KL.

    Args:
        guard: the bounds.

    Attributes:
        state: what it remembers; checkpoints carry it.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.state = GuardState()

    def recall(self, state: GuardState) -> None:
        """Takes over what an earlier process of the run remembered."""
        self.state = state

    def judge(self, metrics: Mapping[str, float], step_kl: float | None) -> Breach | None:
        """The alarm of an update, if any.

        Args:
            metrics: of the update; `kl` and `entropy` are read where present.
            step_kl: exact KL(new, previous) on the fixed sequences; None when there was no previous version.
        """
        guard, kl, entropy = self._guard, metrics.get("kl", 0.0), metrics.get("entropy")
        if guard.max_step_kl > 0 and step_kl is not None and step_kl > guard.max_step_kl:
            return Breach("step KL", step_kl, guard.max_step_kl)
        if guard.max_kl > 0 and kl > guard.max_kl:
            return Breach("KL(behaviour, policy)", kl, guard.max_kl)
        if entropy is None:
            return None
        if self.state.first_entropy is None:
            self.state = GuardState(entropy)
        bound = guard.min_entropy_share * (self.state.first_entropy or 0.0)
        return Breach("entropy", entropy, bound) if entropy < bound else None
