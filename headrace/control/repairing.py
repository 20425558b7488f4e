"""What the loss of stored bytes means for a run: what is done again, what goes on without them, and what cannot.

Invariant: nothing is trained from bytes that are gone, and nothing that was trained is trained again. A trajectory that no
update consumed is void as a whole, transcript and verdict together, and its member rolls again as the next attempt.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping

from headrace.control.past import RunPast
from headrace.control.recovery import RunFold
from headrace.records.action import ActionCommitted, ActionIntended, EffectClass
from headrace.records.batch import BatchPlan, BatchSelected, GroupRejected
from headrace.records.checkpoint import Manifest, RecordQuarantined
from headrace.records.events import Event, OrdinalState
from headrace.records.ids import Address, EpisodeId, GroupId, Purpose
from headrace.records.task import TaskDrawn
from headrace.records.trajectory import TranscriptSealed
from headrace.records.verdict import VerdictSealed


@dataclasses.dataclass(frozen=True)
class Loss:
    """Bytes that are not there, or not as they were written.

    Attributes:
        record: kind of row, or `blob`.
        reason: what is wrong with them.
        transcript: the one that names them, for an artifact or an attachment.
    """

    record: str
    reason: str
    transcript: Address | None = None


@dataclasses.dataclass(frozen=True)
class Assessment:
    """What has to be recorded, and what stands in the way of a resumption.

    Attributes:
        quarantined: one for each loss, in order of address.
        rejected: groups that cannot be finished, since an effect outside must not happen twice.
        cut_seq: last event that a truncation would have to keep; None when none is necessary.
        cut_reason: why.
        obstacles: what neither a repair nor a truncation helps against.
    """

    quarantined: tuple[RecordQuarantined, ...]
    rejected: tuple[tuple[GroupId, GroupRejected], ...] = ()
    cut_seq: int | None = None
    cut_reason: str = ""
    obstacles: tuple[str, ...] = ()


class LossAssessor:
    """Fed with every event that is left, then asked."""

    def __init__(self) -> None:
        self._fold = RunFold()
        self._carriers: dict[Address, EpisodeId] = {}
        self._receipts: dict[Address, EpisodeId] = {}
        self._selected: dict[int, int] = {}
        self._external: set[EpisodeId] = set()
        self._difficulties: dict[GroupId, str] = {}

    @property
    def past(self) -> RunPast:
        """Where the run stands."""
        return self._fold.past

    def observe(self, event: Event) -> None:
        """One more event."""
        self._fold.observe(event)
        match event.payload:
            case TranscriptSealed(transcript=transcript):
                self._carriers[transcript] = EpisodeId.parse(event.key)
            case VerdictSealed(transcript=transcript, verdict=verdict) if transcript in self._carriers:
                self._carriers[verdict] = self._carriers[transcript]
            case ActionIntended(action=action, effect=EffectClass.EXTERNAL):
                self._external.add(action.id.episode)
            case ActionCommitted(action_id=action_id, receipt=receipt):
                self._receipts[receipt] = action_id.episode
            case BatchSelected(update=update):
                self._selected[update] = event.seq
            case TaskDrawn(difficulty=difficulty):
                self._difficulties[GroupId.parse(event.key)] = difficulty
            case _:
                pass

    def assess(
        self,
        losses: Mapping[Address, Loss],
        read_plan: Callable[[Address], BatchPlan],
        is_loadable: Callable[[Manifest], bool],
        dropped: Collection[Address] = frozenset(),
    ) -> Assessment:
        """What the losses mean.

        Args:
            losses: by address; those that the run knows of already are left out.
            read_plan: a plan that is not lost.
            is_loadable: whether every file of a checkpoint verifies.
            dropped: what compactions dropped, which is no loss but cannot be computed from.
        """
        void = {address: self._void(address, loss) for address, loss in sorted(losses.items())}
        external = {episode.group for episode in void.values() if episode is not None and episode in self._external}
        obstacles = [
            f"{group} is held out and its environment external: it cannot be rolled again"
            for group in sorted(external)
            if group.purpose != Purpose.TRAIN.value
        ]
        started = self.past.started
        if started is not None and started.config in losses:
            obstacles.append(
                f"the configuration {started.config} is lost; without it no process can go on with the run"
            )
        rejected = tuple(
            (group, self._rejection(group)) for group in sorted(external) if group.purpose == Purpose.TRAIN.value
        )
        cut_seq, reason = self._cut(void, losses.keys() | dropped, read_plan, is_loadable)
        return Assessment(
            tuple(
                RecordQuarantined(
                    address,
                    losses[address].record,
                    losses[address].reason,
                    None if episode is None or episode.group in external else episode,
                )
                for address, episode in void.items()
            ),
            rejected,
            cut_seq,
            reason,
            tuple(obstacles),
        )

    def _void(self, address: Address, loss: Loss) -> EpisodeId | None:
        """The attempt that counts no more: it is open, and whoever goes on with the run would read the bytes."""
        episode = self._carriers.get(loss.transcript or address) or self._receipts.get(address)
        attempt = None if episode is None else self.past.attempt(episode)
        if attempt is None or attempt.is_void or loss.record == "side":
            return None
        is_receipt = address in self._receipts and address not in self._carriers
        return None if is_receipt and attempt.sealed is not None else episode

    def _rejection(self, group: GroupId) -> GroupRejected:
        reason = "stored bytes are lost, and the effects outside must not happen twice"
        difficulty = self._difficulties.get(group, "")
        return GroupRejected(OrdinalState.ABANDONED.value, reason, 0, 0, 0.0, difficulty, 0.0, 0.0)

    def _cut(
        self,
        void: Mapping[Address, EpisodeId | None],
        gone: Collection[Address],
        read_plan: Callable[[Address], BatchPlan],
        is_loadable: Callable[[Manifest], bool],
    ) -> tuple[int | None, str]:
        """The first update that can be neither loaded nor computed again, as the last event before its selection."""
        past = self.past
        lost = past.lost.union(gone)
        loaded = next((item.update for item in reversed(past.checkpoints) if is_loadable(item.manifest)), 0)
        for update in sorted(past.plans):
            if update <= loaded:
                continue
            plan = past.plans[update]
            needed = {plan} & lost or {row.transcript for row in read_plan(plan).rows} & lost
            if needed:
                return self._selected[update] - 1, (
                    f"update {update} is not in the newest checkpoint that verifies ({loaded or 'none'}) and cannot be "
                    f"computed again: {min(needed)} is lost"
                )
        if past.update is not None:
            reopened = {episode.group for episode in void.values() if episode is not None}
            if strangers := reopened.intersection(past.update.groups):
                return self._selected[past.update.update] - 1, (
                    f"update {past.update.update} has selected {min(strangers)}, of which a trajectory is lost"
                )
        return None, ""
