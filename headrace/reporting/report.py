"""The whole report of a run, folded from its event log and sealed rows alone.

Invariant: the same events and rows give the same report, byte for byte; nothing here reads a clock.
"""

from collections.abc import Iterable, Mapping

import msgspec

from headrace.config import Config
from headrace.records.compaction import RunCompacted
from headrace.records.events import Event
from headrace.records.provenance import Read
from headrace.reporting.folds.claims import Claims, claims
from headrace.reporting.folds.flow import Flow, FlowRates
from headrace.reporting.folds.funnel import Funnel, StageFunnel
from headrace.reporting.folds.guards import NONE_LATE, GuardFold, Guards
from headrace.reporting.folds.heldout import HeldOut, HeldOutCurve
from headrace.reporting.folds.index import Fold, RunIndex
from headrace.reporting.folds.information import FlipRates, Information, information
from headrace.reporting.folds.limits import Limits, limits
from headrace.reporting.folds.order import Order, order
from headrace.reporting.folds.recovery import Recovery, RecoveryTimes
from headrace.reporting.folds.signal import LearningSignal, learning_signal
from headrace.reporting.folds.slowdown import LengthSlowdown, slowdowns
from headrace.reporting.folds.stages import Stages, StageTimes
from headrace.reporting.folds.strata import Strata, strata
from headrace.reporting.folds.turns import Turns, TurnTimes
from headrace.reporting.folds.updates import Updates, updates
from headrace.reporting.folds.workers import Workers, WorkerTimes


class RunFacts(msgspec.Struct, frozen=True):
    """What the run was and how it ended.

    Attributes:
        run_id: name.
        seed: root of every random stream.
        runtime: composition root; `simulated` measures scheduling, not hardware.
        wall_clock: ISO 8601 time of the start; empty under virtual time.
        resources: what it may use, by name.
        notes: what the platform gave, by name.
        starts: how often a process took it over.
        wall_s: first event to last, seconds.
        ending: how it ended; None while it runs, or when it stopped without a word.
        updates_done: versions made.
        updates_planned: of the configuration; None when it is not in the log.
        events: number of events but for compactions, which are in no figure.
        config: the effective configuration, if the log holds it.
    """

    run_id: str
    seed: int | None
    runtime: str
    wall_clock: str
    resources: dict[str, float]
    notes: dict[str, str]
    starts: int
    wall_s: float
    ending: str | None
    updates_done: int
    updates_planned: int | None
    events: int
    config: Config | None


class RunReport(msgspec.Struct, frozen=True):
    """Everything that the report shows, as plain data.

    Attributes:
        facts: what the run was.
        held_out: success on tasks that never train.
        information: effective training information with the resources used.
        funnel: what entered each stage, and why everything else left.
        strata: fates by difficulty, length and duration.
        slowdowns: what waiting for a slot cost trajectories, by length.
        stages: waiting per stage and Little's law.
        flow: rates, backlog, starvation, throughput.
        turns: what sharing devices with the trainer cost generation.
        updates: every update.
        signal: the learning signal by difficulty.
        recovery: checkpoints and resumes.
        workers: where time went, and copies of weights.
        limits: timeouts and other limits.
        claims: claims against verdicts.
        order: order of training against order of drawing.
        guards: rates that rose, environments that were shut, late writes and wrong answers that were refused.
    """

    facts: RunFacts
    held_out: HeldOut
    information: Information
    funnel: Funnel
    strata: Strata
    slowdowns: tuple[LengthSlowdown, ...]
    stages: Stages
    flow: Flow
    turns: Turns
    updates: Updates
    signal: LearningSignal
    recovery: Recovery
    workers: Workers
    limits: Limits
    claims: Claims
    order: Order
    guards: Guards


class RunFold:
    """All folds of one run, fed together.

    Args:
        read: bytes of a sealed row.
        late: events by kind that writers which had been taken over were refused.
    """

    def __init__(self, read: Read, late: Mapping[str, int] = NONE_LATE) -> None:
        self._index = RunIndex(read)
        self._funnel = StageFunnel(self._index)
        self._held_out = HeldOutCurve()
        self._flips = FlipRates(self._index)
        self._stages = StageTimes(self._index)
        self._flow = FlowRates(self._index)
        self._recovery = RecoveryTimes()
        self._turns = TurnTimes()
        self._workers = WorkerTimes(self._index)
        self._guards = GuardFold(self._index, late)
        self._folds: tuple[Fold, ...] = (
            self._index,
            self._funnel,
            self._held_out,
            self._flips,
            self._stages,
            self._flow,
            self._recovery,
            self._turns,
            self._workers,
            self._guards,
        )
        self._events = 0

    def observe(self, event: Event) -> None:
        """Takes the next event."""
        if isinstance(event.payload, RunCompacted):
            return
        self._events += 1
        for fold in self._folds:
            fold.observe(event)

    def result(self) -> RunReport:
        """The report so far."""
        index = self._index
        return RunReport(
            facts=self._facts(),
            held_out=self._held_out.result(),
            information=information(index, self._flips),
            funnel=self._funnel.result(),
            strata=strata(index),
            slowdowns=slowdowns(index),
            stages=self._stages.result(),
            flow=self._flow.result(),
            turns=self._turns.result(),
            updates=updates(index),
            signal=learning_signal(index),
            recovery=self._recovery.result(),
            workers=self._workers.result(),
            limits=limits(index),
            claims=claims(index),
            order=order(index),
            guards=self._guards.result(),
        )

    def _facts(self) -> RunFacts:
        index, started = self._index, self._index.started
        return RunFacts(
            run_id=started.run_id if started else "",
            seed=started.seed if started else None,
            runtime=started.runtime if started else "",
            wall_clock=started.wall_clock if started else "",
            resources=dict(sorted(started.resources.items())) if started else {},
            notes=dict(sorted(started.notes.items())) if started else {},
            starts=index.starts,
            wall_s=index.wall_ns / 1e9,
            ending=index.ended.reason if index.ended else None,
            updates_done=sum(life.update is not None for life in index.versions.values()),
            updates_planned=index.config.run.updates if index.config else None,
            events=self._events,
            config=index.config,
        )


def report_run(events: Iterable[Event], read: Read, late: Mapping[str, int] = NONE_LATE) -> RunReport:
    """The report of a log.

    Args:
        events: in order, from the first.
        read: bytes of a sealed row; raises KeyError when there is none.
        late: events by kind that writers which had been taken over were refused.

    Raises:
        KeyError: when a row that an event names is missing.
        IntegrityError: when a row is damaged.
    """
    fold = RunFold(read, late)
    for event in events:
        fold.observe(event)
    return fold.result()
