"""A simulated environment: latency and failures from the workload, receipts, fencing and revisions as of a real executor.

Every opening and every restore is an incarnation of its own.

Invariants: an action runs at most once per incarnation, whoever asks and however often; its receipt is fixed when it
starts and is handed out when its latency is over, also to a caller that comes later; a lease older than the newest seen for
the episode runs nothing.
"""

import asyncio
import collections
import dataclasses
from collections.abc import Sequence

from headrace.errors import EnvironmentFault, EnvironmentFenced, Outcome
from headrace.ports import UNKNOWN_INCARNATION, Handle
from headrace.records.action import Action, EffectClass
from headrace.records.execution import ExecutionStatus, IncarnationLost, Lease, Metering, Receipt
from headrace.records.harness import ToolSchema
from headrace.records.ids import ActionId, Address, EpisodeId
from headrace.records.provenance import content_version
from headrace.records.task import Task
from headrace.records.terminal import Failure, Success, Terminal
from headrace.simulation.harness import TOOL
from headrace.simulation.pending import PendingCalls, Slots
from headrace.simulation.workload import Draws, StepDraw

_EMPTY_REVISION = content_version("pure")


@dataclasses.dataclass(frozen=True)
class _Run:
    """One action that was started.

    Attributes:
        receipt: what it ends with.
        arguments: hash of what was asked.
        end_s: when it ends.
    """

    receipt: Receipt
    arguments: Address
    end_s: float


@dataclasses.dataclass
class _World:
    """One open environment.

    Attributes:
        task_index: which task.
        incarnation: life of the executor that holds it.
        revision: hash over everything that was done to it, where actions leave snapshots.
        runs: every action that it took.
    """

    task_index: int
    incarnation: str
    revision: Address
    runs: dict[ActionId, _Run] = dataclasses.field(default_factory=dict)


class SimulatedEnvironment:
    """`Environment` that follows a workload.

    Attributes:
        effects: how often each action was really run, over all incarnations.
    """

    def __init__(
        self,
        draws: Draws,
        *,
        effect: EffectClass = EffectClass.PURE,
        num_slots: int | None = None,
        worker: str = "environment",
        effects: collections.Counter[ActionId] | None = None,
    ) -> None:
        """An executor without any environment.

        Args:
            draws: the workload under its seed.
            effect: what its actions do to the world.
            num_slots: actions that run at the same time; None has no bound.
            worker: its name.
            effects: where the world outside counts; one of its own by default.
        """
        self.effects: collections.Counter[ActionId] = collections.Counter() if effects is None else effects
        self.effect = effect
        self.version = content_version("simulated environment", effect.value)
        self.tools: tuple[ToolSchema, ...] = (TOOL,)
        self._draws = draws
        self._worker = worker
        self._num_slots = num_slots
        self._slots = Slots(num_slots)
        self._life = 0
        self._openings = 0
        self._pending = PendingCalls()
        self._worlds: dict[EpisodeId, _World] = {}
        self._highest: dict[EpisodeId, int] = {}
        self._revisions: dict[EpisodeId, dict[Address, _World]] = {}

    @property
    def incarnation(self) -> str:
        """Which life of the executor answers now."""
        return f"{self._worker}#{self._life}"

    @property
    def num_open(self) -> int:
        """Environments that are open."""
        return len(self._worlds)

    async def open(self, task: Task, episode: EpisodeId, lease: Lease, timeout_s: float) -> Handle:
        self._fence(episode, lease)
        drawn = self._draws.episode(task.index, episode)
        await self._pending.spend(
            drawn.open_s, timeout_s, lambda: _fault(f"{episode}: not open in {timeout_s} s", Outcome.LOST)
        )
        if drawn.fails_to_open:
            raise _fault(f"{episode}: the environment could not be created", Outcome.REJECTED)
        # Again, since a new owner may have come meanwhile.
        self._fence(episode, lease)
        revision = content_version("start", task.address) if self.effect is EffectClass.SNAPSHOT else _EMPTY_REVISION
        return self._hold(episode, _World(task.index, "", revision))

    def _hold(self, episode: EpisodeId, world: _World) -> Handle:
        """The handle of a world in a new incarnation; an older world of the episode ends."""
        self._openings += 1
        world.incarnation = f"{self.incarnation}.{self._openings}"
        self._worlds[episode] = world
        self._keep(episode, world)
        return Handle(episode, world.incarnation)

    def _keep(self, episode: EpisodeId, world: _World) -> None:
        """Stores the revision, with the receipts: what it holds is never run again after a restore."""
        if self.effect is EffectClass.SNAPSHOT:
            stored = self._revisions.setdefault(episode, {})
            stored[world.revision] = dataclasses.replace(world, runs=dict(world.runs))

    async def adopt(self, handle: Handle, done: Sequence[tuple[Action, Receipt]], timeout_s: float) -> None:
        world = self._world(handle)
        if not self.effect.is_resumable:
            raise _fault(
                f"{handle.episode} is {self.effect.value}; its receipts alone do not bring it back", Outcome.REJECTED
            )
        for action, receipt in done:
            world.runs[action.id] = _Run(receipt, action.arguments_hash, asyncio.get_running_loop().time())

    async def execute(self, handle: Handle, action: Action, lease: Lease, timeout_s: float) -> Receipt:
        self._fence(handle.episode, lease)
        world = self._world(handle)
        loop, is_lost = asyncio.get_running_loop(), False
        run = world.runs.get(action.id)
        if run is None:
            if self._slots.start_s(loop.time()) >= loop.time() + timeout_s:
                await self._pending.spend(
                    timeout_s, timeout_s, lambda: _fault(f"{action.id}: no slot in {timeout_s} s", Outcome.REJECTED)
                )
                raise _fault(f"{action.id}: no slot in {timeout_s} s", Outcome.REJECTED)
            run = self._start(world, action, lease, loop.time() + timeout_s)
            is_lost = self._drawn(world, action).is_answer_lost
        elif run.arguments != action.arguments_hash:
            raise _fault(f"{action.id} was taken before with other arguments", Outcome.REJECTED)
        await self._pending.spend(
            run.end_s - loop.time(), timeout_s, lambda: _fault(f"{action.id}: still running", Outcome.LOST)
        )
        if is_lost:
            raise _fault(f"{action.id}: the answer was lost on its way", Outcome.LOST)
        return run.receipt

    def _start(self, world: _World, action: Action, lease: Lease, deadline_s: float) -> _Run:
        """Runs the action: its effect, its receipt, and when it ends."""
        now_s = asyncio.get_running_loop().time()
        drawn = self._drawn(world, action)
        start_s = self._slots.start_s(now_s)
        tool_s = min(drawn.tool_s, deadline_s - start_s)
        is_known = action.tool == TOOL.name
        status = ExecutionStatus.OK if is_known and not drawn.raises else ExecutionStatus.TOOL_ERROR
        if tool_s < drawn.tool_s:
            status = ExecutionStatus.TIMEOUT
        end_s = self._slots.take(now_s, tool_s)
        self.effects[action.id] += 1
        if self.effect is EffectClass.SNAPSHOT:
            world.revision = content_version("action", world.revision, action.arguments_hash, status.value)
        output = b"o" * drawn.observation_tokens if is_known else b"error: unknown tool"
        receipt = Receipt(
            action_id=action.id,
            token=lease.token,
            arguments=action.arguments_hash,
            status=status,
            output=output,
            output_bytes=len(output),
            revision=world.revision if self.effect is EffectClass.SNAPSHOT else None,
            metering=Metering(wall_s=tool_s, cpu_s=tool_s * self._draws.workload.tool_cpu_share),
        )
        world.runs[action.id] = run = _Run(receipt, action.arguments_hash, end_s)
        self._keep(action.id.episode, world)
        return run

    def _drawn(self, world: _World, action: Action) -> StepDraw:
        return self._draws.step(world.task_index, action.id.episode, action.id.step)

    async def probe(self, handle: Handle, action_id: ActionId, timeout_s: float) -> Receipt | IncarnationLost | None:
        world = self._worlds.get(handle.episode)
        if world is None or world.incarnation != handle.incarnation:
            return IncarnationLost(handle.incarnation, self.incarnation if world is None else world.incarnation)
        run = world.runs.get(action_id)
        if run is None:
            return None
        await self._pending.spend(
            run.end_s - asyncio.get_running_loop().time(),
            timeout_s,
            lambda: _fault(f"{action_id}: still running", Outcome.LOST),
        )
        return run.receipt

    async def snapshot(self, handle: Handle, timeout_s: float) -> Address | None:
        world = self._world(handle)
        if self.effect is EffectClass.PURE:
            return _EMPTY_REVISION
        return world.revision if self.effect is EffectClass.SNAPSHOT else None

    async def restore(self, handle: Handle, revision: Address, timeout_s: float) -> Handle:
        if self.effect is EffectClass.PURE and revision == _EMPTY_REVISION:
            self._world(handle)
            return handle
        stored = self._revisions.get(handle.episode, {}).get(revision)
        if stored is None:
            raise _fault(f"{handle.episode}: no revision {revision} is stored", Outcome.REJECTED)
        return self._hold(handle.episode, dataclasses.replace(stored, runs=dict(stored.runs)))

    async def artifact(self, handle: Handle, timeout_s: float) -> bytes:
        self._world(handle)
        return b""

    async def claim(self, handle: Handle, final_text: str, timeout_s: float) -> Terminal:
        world = self._world(handle)
        if not final_text.strip():
            return Failure("no answer")
        is_claimed = self._draws.episode(world.task_index, handle.episode).is_claimed
        return Success() if is_claimed else Failure("not solved")

    async def close(self, handle: Handle) -> None:
        world = self._worlds.get(handle.episode)
        if world is not None and handle.incarnation in (world.incarnation, UNKNOWN_INCARNATION):
            del self._worlds[handle.episode]
            self._revisions.pop(handle.episode, None)

    def crash(self) -> None:
        """The executor dies with every environment and receipt, and comes back as another incarnation."""
        self._life += 1
        self._worlds = {}
        self._slots = Slots(self._num_slots)
        self._pending.fail_all(lambda: _fault(f"{self._worker} crashed", Outcome.LOST))

    def _fence(self, episode: EpisodeId, lease: Lease) -> None:
        highest = self._highest.get(episode, lease.token)
        if lease.token < highest:
            raise EnvironmentFenced(f"{episode}: lease {lease.token} is fenced, {highest} was seen", Outcome.REJECTED)
        self._highest[episode] = lease.token

    def _world(self, handle: Handle) -> _World:
        world = self._worlds.get(handle.episode)
        if world is None or world.incarnation != handle.incarnation:
            raise _fault(
                f"{handle.episode}: nothing is open under {handle.incarnation}, {self.incarnation} answers",
                Outcome.REJECTED,
            )
        return world


def _fault(message: str, outcome: Outcome) -> EnvironmentFault:
    return EnvironmentFault(message, outcome)
