"""Runs one action through the journal: INTENT, execution, COMMIT.

Invariant: an action of unknown outcome is never run again without a probe, and an external one never by itself; where the
environment keeps revisions it runs again only on the one that its INTENT names. A receipt of another action, or from before
this one was intended, is no answer: it is recorded as refused, and the outcome is unknown.

* consumes: a validated action and a lease.
* waits for: the journal (unless the environment is pure) and the executor.
* unblocked by: the receipt, or a boundary error.
* produces: the receipt, committed.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from headrace.control.past import AttemptPast
from headrace.control.recorder import OwnerPen, WorkerClock
from headrace.errors import EnvironmentFault, EnvironmentFenced, IntegrityError, Outcome
from headrace.ports import Environment, Handle, Row
from headrace.records.action import Action, ActionCommitted, ActionIntended, EffectClass
from headrace.records.execution import EnvironmentRestored, IncarnationLost, Lease, Receipt
from headrace.records.ids import Address
from headrace.records.run import AnswerRefused

_TRIES = 3
_PURE: Final = EffectClass.PURE
Turn = Callable[[], Awaitable[float | None]]
"""Seconds that a call waited for its turn, once they are over; None when its episode has no time left."""


class UnknownEffect(EnvironmentFault):
    """An external action may or may not have happened, and nobody can tell."""


async def _at_once() -> float:
    return 0.0


class ActionRunner:
    """Executes actions of one attempt.

    Args:
        environment: where.
        recorder: where it is said.
        clock: times the environment.
        past: what was done of them before this process began.

    Attributes:
        has_intended: whether any action of the attempt has an INTENT.
        handle: the attempt's environment; another one once that was restored.
        revision: where it stands; None unless the environment keeps revisions.
    """

    __slots__ = ("_clock", "_environment", "_past", "_recorder", "handle", "has_intended", "revision")
    handle: Handle

    def __init__(self, environment: Environment, recorder: OwnerPen, clock: WorkerClock, past: AttemptPast) -> None:
        self.has_intended = bool(past.intents)
        self._past = past
        self._environment = environment
        self._recorder = recorder
        self._clock = clock
        self.revision: Address | None = None

    async def run(
        self, action: Action, lease: Lease, timeout_s: float, *, wait_s: float = 0.0, turn: Turn = _at_once
    ) -> tuple[Receipt, int]:
        """The receipt and the sequence number of its COMMIT.

        Args:
            action: what to do.
            lease: the right to.
            timeout_s: of each try.
            wait_s: seconds that it waited for its turn at the service.
            turn: waits for that of a further try.

        Raises:
            EnvironmentFault: when the boundary failed for good; `UnknownEffect` when an effect outside is possible.
        """
        effect, key, past = self._environment.effect, str(action.id), self._past
        intended = past.intents.get(action.id)
        if intended is not None and intended.action != action:
            raise IntegrityError(f"{action.id} was intended as {intended.action}, and is now {action}")
        if (known := past.commits.get(action.id)) is not None:
            receipt = stored_receipt(past, action, self._recorder.read)
            self.revision = receipt.revision
            return receipt, known[0]
        intent = 0
        if intended is None:
            self.has_intended = True
            intended = ActionIntended(action, lease.token, effect, self.revision, wait_s)
            intent = self._recorder.record(intended, key=key)
            if effect is not _PURE:
                await self._recorder.durable(intent)
        receipt = await self._execute(action, lease, timeout_s, turn)
        self.revision = receipt.revision
        row = Row("receipt", receipt.stored)
        commit = self._recorder.record(
            ActionCommitted(action.id, row.address, receipt.metering), key=key, cause=intent, rows=(row,)
        )
        return receipt, commit

    async def _execute(self, action: Action, lease: Lease, timeout_s: float, turn: Turn) -> Receipt:
        for try_number in range(1, _TRIES + 1):
            self._clock.enter(action.tool)
            try:
                receipt = await self._environment.execute(self.handle, action, lease, timeout_s)
                return self._checked(receipt, action, lease)
            except EnvironmentFenced as fault:
                self._recorder.refused("executor", str(action.id), str(fault))
                raise
            except EnvironmentFault as fault:
                if fault.outcome is Outcome.LOST:
                    receipt = await self._probe(action, lease, timeout_s, fault)
                    if receipt is not None:
                        return receipt
                if try_number == _TRIES or await turn() is None:
                    raise
            finally:
                self._clock.leave()
        raise AssertionError("unreachable: the last try returns or raises")

    async def _probe(self, action: Action, lease: Lease, timeout_s: float, fault: EnvironmentFault) -> Receipt | None:
        """The stored receipt; None when running again under the same id is safe."""
        try:
            answer = await self._environment.probe(self.handle, action.id, timeout_s)
            if isinstance(answer, Receipt):
                return self._checked(answer, action, lease)
        except EnvironmentFault as silent:
            answer = f"outcome unknown and the probe failed: {silent}"
        if isinstance(answer, IncarnationLost):
            answer = f"executor {answer.expected} is gone, {answer.found} cannot know whether it ran"
        if answer is None:
            return None
        effect = self._environment.effect
        if effect is _PURE:
            return None
        if effect is EffectClass.SNAPSHOT and self.revision is not None:
            await self._restore(action, self.revision, answer, timeout_s)
            return None
        kind = UnknownEffect if effect is EffectClass.EXTERNAL else EnvironmentFault
        raise kind(f"{action.id}: {answer}", Outcome.LOST) from fault

    async def _restore(self, action: Action, revision: Address, cause: str, timeout_s: float) -> None:
        """The environment stands where it stood at the action's INTENT. Raises EnvironmentFault."""
        self.handle = await self._environment.restore(self.handle, revision, timeout_s)
        self._recorder.record(EnvironmentRestored(revision, self.handle.incarnation, cause), key=str(action.id))

    def _checked(self, receipt: Receipt, action: Action, lease: Lease) -> Receipt:
        """The receipt, if it is of this action and ran under one of the leases that asked for it.

        Raises:
            EnvironmentFault: LOST otherwise; the refusal is recorded.
        """
        intended = self._past.intents.get(action.id)
        earliest = lease.token if intended is None else intended.token
        asked, given = (action.id, action.arguments_hash), (receipt.action_id, receipt.arguments)
        if asked == given and earliest <= receipt.token <= lease.token:
            return receipt
        problem = (
            f"asked for {action.id} with arguments {action.arguments_hash[:12]} under lease {earliest} to {lease.token}; "
            f"the receipt is of {receipt.action_id} with {receipt.arguments[:12]} under {receipt.token}"
        )
        self._recorder.record(AnswerRefused("environment", problem), key=str(action.id))
        raise EnvironmentFault(problem, Outcome.LOST)


def stored_receipt(past: AttemptPast, action: Action, read: Callable[[Address], bytes]) -> Receipt:
    """The receipt of a committed action, as its COMMIT stored it."""
    _, commit = past.commits[action.id]
    token = past.intents[action.id].token
    return Receipt.from_stored(read(commit.receipt), token, action.arguments_hash, commit.metering)
