"""Opens the environment of one attempt, where the attempt's past ends.

Invariant: an attempt acts on nothing but an environment that stands where its journal says. Where there is no such one, it
is only looked back on: what its journal holds is taken, and the first thing beyond that ends it.

* consumes: a task, a lease and what the journal holds of the attempt.
* waits for: the environment.
* unblocked by: a handle, or a boundary error.
* produces: the handle and the revision that its actions go by, `EnvironmentRestored`.
"""

from headrace.control.acting import ActionRunner, stored_receipt
from headrace.control.past import AttemptPast
from headrace.control.recorder import OwnerPen
from headrace.errors import BoundaryError, EnvironmentFault, Outcome
from headrace.ports import UNKNOWN_INCARNATION, Environment, Handle
from headrace.records.action import EffectClass
from headrace.records.execution import EnvironmentRestored, Lease
from headrace.records.ids import ActionId, EpisodeId
from headrace.records.task import Task


class RunInterrupted(BoundaryError):
    """The process that ran the attempt ended, and what its environment held ended with it."""

    boundary = "run"


class EnvironmentOpener:
    """Opens the environment of one attempt, and closes it.

    Args:
        environment: where.
        recorder: where it is said.
        episode: the attempt.
        past: what the journal holds of it.
        actions: gets the handle, and the revision that it stands at.
        timeout_s: deadline of a call.
        is_resumed: whether an attempt that was in flight goes on where its environment allows that.
    """

    __slots__ = (
        "_actions",
        "_environment",
        "_episode",
        "_goes_on",
        "_is_open",
        "_loss",
        "_past",
        "_recorder",
        "_timeout_s",
    )

    def __init__(  # noqa: PLR0913 - what it acts through, and for whom
        self,
        environment: Environment,
        recorder: OwnerPen,
        *,
        episode: EpisodeId,
        past: AttemptPast,
        actions: ActionRunner,
        timeout_s: float,
        is_resumed: bool,
    ) -> None:
        self._environment = environment
        self._recorder = recorder
        self._episode = episode
        self._past = past
        self._actions = actions
        self._timeout_s = timeout_s
        self._goes_on = not past.started_seq or (environment.effect.is_resumable and is_resumed)
        self._is_open = False
        self._loss = "its environment with it"

    async def open(self, task: Task, lease: Lease) -> None:
        """An environment stands where the past ends, and knows its receipts; none is opened to look back only.

        Raises:
            EnvironmentFault: when the environment failed.
        """
        past, actions, timeout_s = self._past, self._actions, self._timeout_s
        actions.handle = Handle(self._episode, "")
        if not self._goes_on:
            return
        try:
            actions.handle = await self._environment.open(task, self._episode, lease, timeout_s)
        except EnvironmentFault as fault:
            if fault.outcome is Outcome.LOST:
                # It may stand although nobody holds its handle; the episode's name is enough to end it.
                await self._environment.close(Handle(self._episode, UNKNOWN_INCARNATION))
            raise
        self._is_open = True
        if self._environment.effect is EffectClass.SNAPSHOT:
            if past.intents and not await self._restore():
                return
            actions.revision = await self._environment.snapshot(actions.handle, timeout_s)
        if past.commits:
            done = [past.intents[action_id].action for action_id in past.commits]
            receipts = [(action, stored_receipt(past, action, self._recorder.read)) for action in done]
            await self._environment.adopt(actions.handle, receipts, timeout_s)

    async def _restore(self) -> bool:
        """Whether the environment is at the revision that the past ends with; looking back only, where that is lost."""
        past, actions = self._past, self._actions
        pending = [intent for action_id, intent in past.intents.items() if action_id not in past.commits]
        if pending:
            revision = pending[-1].revision
        else:
            last = past.intents[next(reversed(past.commits))].action
            revision = stored_receipt(past, last, self._recorder.read).revision
        try:
            if revision is not None:
                actions.handle = await self._environment.restore(actions.handle, revision, self._timeout_s)
                cause = "the process of the attempt ended"
                restored = EnvironmentRestored(revision, actions.handle.incarnation, cause)
                self._recorder.record(restored, key=str(self._episode))
                return True
        except EnvironmentFault as fault:
            self._loss = f"its environment cannot be brought back: {fault}"
        await self.close()
        self.only_look_back()
        return False

    def only_look_back(self) -> None:
        """Nothing happens any more that the past does not hold."""
        self._goes_on = False

    def look_ahead(self, what: str | ActionId) -> None:
        """Raises RunInterrupted where the past of an attempt ends that may not go on."""
        if not self._goes_on:
            raise RunInterrupted(f"{self._episode}: its process ended before {what}, and {self._loss}")

    async def close(self) -> None:
        """The environment is closed, if it is open."""
        if self._is_open:
            await self._environment.close(self._actions.handle)
            self._is_open = False
