"""The orchestrator: runs the loops on one set of ports, and stops everything when one fails.

The same class runs live and simulated; it sees ports and the event loop, nothing else. Synchronous training is lag 0 of
the same loop.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Sequence

from headrace.config import Config
from headrace.control.capacity import CapacityControl, CapacityWatch
from headrace.control.context import Ports, RunContext, RunFacts, Spawn
from headrace.control.loops import Loops
from headrace.control.recorder import Observer, Recorder, sealed_row
from headrace.control.recovery import recover
from headrace.control.resuming import check_same_run
from headrace.control.signal import Changed
from headrace.control.together import first_failure
from headrace.control.versions import Versions
from headrace.errors import HeadraceError
from headrace.records.ids import Address
from headrace.records.run import RunEnded, RunStarted


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """How a run ended.

    Attributes:
        reason: `completed` or `exhausted`.
        updates: updates completed.
        head: hash over all events.
    """

    reason: str
    updates: int
    head: str


class Orchestrator:
    """One run.

    Args:
        config: the checked configuration.
        ports: what it acts through.
        facts: what the composition root knows.
        observers: called with every event.
        watch: awaitables that end, with a reason, when a worker is gone; the run then stops.
    """

    def __init__(
        self,
        config: Config,
        ports: Ports,
        facts: RunFacts,
        *,
        observers: Sequence[Observer] = (),
        watch: Sequence[Awaitable[str]] = (),
    ) -> None:
        self._config = config
        self._ports = ports
        self._facts = facts
        self._observers = tuple(observers)
        self._watch = tuple(watch)

    async def run(self) -> RunSummary:
        """The summary, once every loop is done and the journal is durable.

        A journal that holds events of the run already is gone on with: see `headrace.control.recovery`.

        Raises:
            ConfigError: when the journal is of a run that this process cannot go on with; nothing was recorded then.
            HeadraceError: the first failure that stopped the run, already recorded in `RunEnded`.
        """
        journal, ports = self._ports.journal, self._ports
        past = recover(journal.events(), keeps_trained=self._config.algorithm.replay.kind != "none")
        check_same_run(
            past, self._config, journal.read, versions=_content_versions(ports), initial=self._facts.initial.weights
        )
        watch = CapacityWatch() if self._config.schedule.is_credit_found else None
        observers = self._observers if watch is None else (watch.observe, *self._observers)
        recorder = Recorder(journal, observers, start_ns=past.last_ns, recorded=past.recorded)
        recorder.updates = past.updates
        started = self._record_start(recorder)
        try:
            await recorder.durable(started)
            async with asyncio.TaskGroup() as tasks:
                context = RunContext(recorder, Versions(), Changed(), _spawner(tasks))
                capacity = CapacityControl(self._config.schedule, watch, past.credit_batches)
                loops = Loops(self._config, ports, self._facts, context, past=past, capacity=capacity)
                watchers = [context.spawn(_fail_when_lost(item), "watch") for item in self._watch]
                reason = await loops.run()
                for watcher in watchers:
                    watcher.cancel()
        except asyncio.CancelledError:
            await self._record_end(recorder, "stopped")
            raise
        except BaseExceptionGroup as group:
            first = first_failure(group)
            await self._record_end(recorder, f"failed: {type(first).__name__}: {first}")
            raise first from group
        await self._record_end(recorder, reason)
        return RunSummary(reason, recorder.updates, journal.head())

    def _record_start(self, recorder: Recorder) -> int:
        row, facts = sealed_row("config", self._config), self._facts
        started = RunStarted(
            facts.run_id,
            self._config.run.seed,
            row.address,
            facts.runtime,
            facts.wall_clock,
            facts.resources,
            facts.notes,
            _content_versions(self._ports),
        )
        seq = recorder.record(started, key=self._life, rows=(row,))
        for held in facts.copies:
            recorder.hold_weights(held)
        return seq

    async def _record_end(self, recorder: Recorder, reason: str) -> None:
        await recorder.durable(recorder.record(RunEnded(reason, recorder.updates), key=self._life))

    @property
    def _life(self) -> str:
        """Name of this process's part of the run: the run's own for the first one, then with the epoch."""
        epoch = self._ports.journal.epoch
        return self._facts.run_id if epoch == 1 else f"{self._facts.run_id}#{epoch}"


def _content_versions(ports: Ports) -> dict[str, Address]:
    return {
        "environment": ports.environment.version,
        "grader": ports.grader.version,
        "harness": ports.harness.version,
    }


def _spawner(tasks: asyncio.TaskGroup) -> Spawn:
    return lambda work, name: tasks.create_task(work, name=name)


async def _fail_when_lost(lost: Awaitable[str]) -> None:
    """Raises once a worker is gone: any dead worker reaches the trainer and whoever watches the run."""
    reason = await lost
    raise HeadraceError(f"a worker is gone: {reason}")
