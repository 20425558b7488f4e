"""Runs one action through the journal: INTENT, execution, COMMIT.

Invariant: an action of unknown outcome is never run again without a probe, and an external one never by itself.

* consumes: a validated action and a lease.
* waits for: the journal (unless the environment is pure) and the executor.
* unblocked by: the receipt, or a boundary error.
* produces: the receipt, committed.
"""

from headrace.control.recorder import Recorder, WorkerClock
from headrace.errors import EnvironmentFault, Outcome
from headrace.ports import Environment, Handle
from headrace.records.action import Action, ActionCommitted, ActionIntended, EffectClass
from headrace.records.execution import IncarnationLost, Lease, Receipt

_TRIES = 3


class UnknownEffect(EnvironmentFault):
    """An external action may or may not have happened, and nobody can tell."""


class ActionRunner:
    """Executes actions of one environment."""

    def __init__(self, environment: Environment, recorder: Recorder, clock: WorkerClock) -> None:
        self._environment = environment
        self._recorder = recorder
        self._clock = clock

    async def run(self, handle: Handle, action: Action, lease: Lease, timeout_s: float) -> tuple[Receipt, int]:
        """The receipt and the sequence number of its COMMIT.

        Raises:
            EnvironmentFault: when the boundary failed for good; `UnknownEffect` when an effect outside is possible.
        """
        effect, key = self._environment.effect, str(action.id)
        intent = self._recorder.record(ActionIntended(action, lease.token, effect), key=key)
        if effect is not EffectClass.PURE:
            await self._recorder.durable(intent)
        receipt = await self._execute(handle, action, lease, timeout_s)
        commit = self._recorder.record(ActionCommitted(action.id, receipt.digest), key=key, cause=intent)
        return receipt, commit

    async def _execute(self, handle: Handle, action: Action, lease: Lease, timeout_s: float) -> Receipt:
        for try_number in range(1, _TRIES + 1):
            self._clock.enter(action.tool)
            try:
                return await self._environment.execute(handle, action, lease, timeout_s)
            except EnvironmentFault as fault:
                if fault.outcome is Outcome.LOST:
                    receipt = await self._probe(handle, action, timeout_s, fault)
                    if receipt is not None:
                        return receipt
                if try_number == _TRIES:
                    raise
            finally:
                self._clock.leave()
        raise AssertionError("unreachable: the last try returns or raises")

    async def _probe(self, handle: Handle, action: Action, timeout_s: float, fault: EnvironmentFault) -> Receipt | None:
        """The stored receipt; None when running again under the same id is safe."""
        effect = self._environment.effect
        try:
            answer = await self._environment.probe(handle, action.id, timeout_s)
        except EnvironmentFault as silent:
            if effect is EffectClass.PURE:
                return None
            kind = UnknownEffect if effect is EffectClass.EXTERNAL else EnvironmentFault
            raise kind(f"{action.id}: outcome unknown and the probe failed: {silent}", Outcome.LOST) from fault
        if isinstance(answer, IncarnationLost):
            if effect is EffectClass.PURE:
                return None
            kind = UnknownEffect if effect is EffectClass.EXTERNAL else EnvironmentFault
            raise kind(
                f"{action.id}: executor {answer.expected} is gone, {answer.found} cannot know whether it ran",
                Outcome.LOST,
            ) from fault
        return answer
