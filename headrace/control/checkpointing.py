"""Checkpoints: the trainer's state goes to disk while episodes go on.

Invariant: a checkpoint is recorded once its files are durable, and the next update begins after that; what is recorded of
the queue is a recount of the events before it. Files go only by the retention rule.

* consumes: the version of an update.
* waits for: the trainer to write its state.
* unblocked by: its manifest.
* produces: `CheckpointWritten`; files of dropped checkpoints and of versions that nothing needs any more are gone.
"""

import asyncio
import dataclasses

from headrace.control.context import RunContext
from headrace.control.frontier import DataFrontier
from headrace.control.past import RunPast
from headrace.control.recorder import WorkerClock
from headrace.ports import Leases, Trainer
from headrace.records.checkpoint import CheckpointWritten, GuardState, InFlight, Manifest
from headrace.records.events import OrdinalState
from headrace.records.ids import Address
from headrace.records.run import WorkerState
from headrace.scheduling.retention import Retention


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
    """What checkpoints go by.

    Attributes:
        every_updates: one after every so many updates; 0 for none.
        in_flight: what becomes of attempts in flight when a process ends.
        retention: which stay.
        timeout_s: deadline of a save.
    """

    every_updates: int
    in_flight: InFlight
    retention: Retention
    timeout_s: float


class Checkpointer:
    """Saves beside the run, and knows how long an update had to wait for it."""

    def __init__(
        self,
        trainer: Trainer,
        leases: Leases,
        context: RunContext,
        *,
        settings: CheckpointSettings,
        clock: WorkerClock,
    ) -> None:
        self._trainer = trainer
        self._leases = leases
        self._context = context
        self._settings = settings
        self._clock = clock
        self._manifests: list[Manifest] = []
        self._gone: set[Address] = set()
        self._saving: asyncio.Task[None] | None = None
        self._waiting_since_s: float | None = None

    def restore(self, past: RunPast) -> None:
        """Takes over the checkpoints of the run's earlier processes."""
        self._manifests = [written.manifest for written in past.checkpoints]

    def begin(self, update: int, frontier: DataFrontier, guard: GuardState) -> None:
        """Starts to save, if the update gets a checkpoint."""
        every = self._settings.every_updates
        if every and update % every == 0:
            self._saving = self._context.spawn(self._save(update, frontier, guard), f"checkpoint/{update}")

    async def settle(self) -> None:
        """Returns once nothing is being saved."""
        if self._saving is not None:
            self._waiting_since_s = self._context.recorder.elapsed_s
            await asyncio.gather(self._saving)
            self._saving = self._waiting_since_s = None

    async def _save(self, update: int, frontier: DataFrontier, guard: GuardState) -> None:
        recorder, settings = self._context.recorder, self._settings
        begin_s = recorder.elapsed_s
        self._clock.enter("checkpoint", WorkerState.SYNC)
        try:
            manifest = await self._trainer.save(settings.timeout_s)
        finally:
            self._clock.leave()
        now_s, since_s = recorder.elapsed_s, self._waiting_since_s
        written = CheckpointWritten(
            update=update,
            manifest=manifest,
            drawn=frontier.drawn,
            trained=frontier.count(OrdinalState.TRAINED),
            filtered=frontier.count(OrdinalState.FILTERED),
            abandoned=frontier.count(OrdinalState.ABANDONED),
            open=frontier.open,
            last_seq=recorder.last_seq,
            lease_token=self._leases.highest(),
            in_flight=settings.in_flight,
            save_s=now_s - begin_s,
            stall_s=0.0 if since_s is None else now_s - since_s,
            guard=guard,
        )
        await recorder.durable(recorder.record(written, key=str(update)))
        self._manifests.append(manifest)
        await self._sweep()

    async def _sweep(self) -> None:
        versions, retention = self._context.versions, self._settings.retention
        unneeded = retention.unneeded(self._manifests, versions.weights, versions.pinned)
        if going := [address for address in unneeded if address not in self._gone]:
            await self._trainer.forget(going, self._settings.timeout_s)
        self._gone = set(unneeded)
        self._manifests = retention.kept(self._manifests)
