"""Follows the run and moves the credit at every version, where the configuration asks for it.

* consumes: what every run records: slot waits, tool calls, finished episodes, the trainer's states.
* waits for: nothing; it is asked at each version bump.
* unblocked by: -
* produces: `CapacityDecided`, and the limit that admission goes by.
"""

from statistics import median

from headrace.config import ScheduleSection
from headrace.records.action import ActionCommitted, ActionIntended
from headrace.records.batch import CapacityDecided
from headrace.records.events import Event
from headrace.records.ids import ActionId, EpisodeId, Purpose
from headrace.records.run import WorkerState, WorkerStateChanged
from headrace.records.segment import TurnGenerated
from headrace.records.trajectory import TranscriptSealed
from headrace.scheduling.capacity import Capacity, CapacityWindow


class CapacityWatch:
    """An observer of events: what the time since the last version showed."""

    def __init__(self) -> None:
        self._begin_ns = 0
        self._idle_ns = 0
        self._idle_since_ns: int | None = None
        self._intended_ns: dict[ActionId, int] = {}
        self._waited: dict[EpisodeId, float] = {}
        self._waits: list[float] = []

    def observe(self, event: Event) -> None:
        """Takes the next event."""
        match event.payload:
            case TurnGenerated(episode=episode, wait_s=wait_s) if episode.purpose is Purpose.TRAIN:
                self._waited[episode] = self._waited.get(episode, 0.0) + wait_s
            case ActionIntended(action=action, wait_s=wait_s) if action.id.episode.purpose is Purpose.TRAIN:
                self._intended_ns[action.id] = event.t_ns
                self._waited[action.id.episode] = self._waited.get(action.id.episode, 0.0) + wait_s
            case ActionCommitted(action_id=action_id, metering=metering) if action_id in self._intended_ns:
                elapsed_s = (event.t_ns - self._intended_ns.pop(action_id)) / 1e9
                waited_s = self._waited.get(action_id.episode, 0.0)
                self._waited[action_id.episode] = waited_s + max(0.0, elapsed_s - metering.wall_s)
            case TranscriptSealed():
                waited = self._waited.pop(EpisodeId.parse(event.key), None)
                if waited is not None:
                    self._waits.append(waited)
            case WorkerStateChanged(worker="trainer", state=state):
                self._settle(event.t_ns)
                self._idle_since_ns = event.t_ns if state is WorkerState.IDLE else None
            case _:
                pass

    def window(self, now_ns: int, ready_groups: int) -> CapacityWindow:
        """The window up to now; the next one begins."""
        self._settle(now_ns)
        interval_ns = max(1, now_ns - self._begin_ns)
        waits, idle_ns = self._waits, self._idle_ns
        self._begin_ns, self._idle_ns, self._waits = now_ns, 0, []
        return CapacityWindow(
            interval_s=interval_ns / 1e9,
            episodes=len(waits),
            wait_s=median(waits) if waits else 0.0,
            ready_groups=ready_groups,
            idle_share=min(1.0, idle_ns / interval_ns),
        )

    def _settle(self, now_ns: int) -> None:
        if self._idle_since_ns is not None:
            self._idle_ns += now_ns - max(self._idle_since_ns, self._begin_ns)
            self._idle_since_ns = now_ns


class CapacityControl:
    """The credit of one run.

    Args:
        schedule: the configured rule.
        watch: what it goes by; None leaves the configured credit as it is.
        credit_batches: where an earlier process of the run left it; None begins at the configured start.
    """

    def __init__(self, schedule: ScheduleSection, watch: CapacityWatch | None, credit_batches: float | None) -> None:
        self._watch = watch
        self._rule = Capacity(schedule.batch_groups, schedule.group_size, schedule.most_credit_batches)
        start = schedule.first_credit_batches if credit_batches is None else credit_batches
        self._credit_batches = float(start)

    @property
    def max_outstanding(self) -> int:
        """Groups that may hold a slot now."""
        return self._rule.max_outstanding(self._credit_batches)

    def decide(self, version: int, now_ns: int, ready_groups: int) -> CapacityDecided | None:
        """What is decided at a version bump; None where the credit is fixed."""
        if self._watch is None:
            return None
        window = self._watch.window(now_ns, ready_groups)
        decision = self._rule.decide(self._credit_batches, window)
        self._credit_batches = decision.credit_batches
        return CapacityDecided(
            version=version,
            credit_batches=decision.credit_batches,
            max_outstanding=self.max_outstanding,
            queued_batches=decision.queued_batches,
            idle_share=window.idle_share,
            reason=decision.reason,
        )
