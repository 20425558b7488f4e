"""Stage 11, training batch: groups, order, advantages and weights by address; arrays are made where they are used.

Dimensions: B rows, T tokens of the longest row. A plan is durable before the first gradient and is the whole message to
the trainer; `TrainingBatch` is what the trainer makes of it.
"""

import dataclasses

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import IntegrityError
from headrace.records.arrays import FloatArray, IntArray
from headrace.records.experience import ReplayedGroup, RetiredGroup
from headrace.records.ids import Address, EpisodeId, GroupId, PolicyId
from headrace.records.provenance import address_of, canonical_bytes


class MemberResult(msgspec.Struct, frozen=True, gc=False):
    """One member of a closed group.

    Attributes:
        episode: the attempt that counts.
        transcript: its address; None when no attempt could be sealed.
        verdict: its verdict's address; None when ungraded.
        reward: aggregated reward; None when absent. Absent and 0.0 are different states.
    """

    episode: EpisodeId
    transcript: Address | None
    verdict: Address | None
    reward: float | None


class GroupAdmitted(msgspec.Struct, frozen=True, gc=False, tag="group_admitted"):
    """A slot is charged; it comes back at the version bump that consumes the group, or by a recorded rejection.

    Attributes:
        size: number of members expected.
        version: current policy version at admission.
        outstanding: groups that hold a slot, this one included.
    """

    size: int
    version: int
    outstanding: int


class GroupClosed(msgspec.Struct, frozen=True, gc=False, tag="group_closed"):
    """Every member has reached its last state.

    Attributes:
        members: in member order.
    """

    members: tuple[MemberResult, ...]


class GroupRejected(msgspec.Struct, frozen=True, tag="group_rejected"):
    """The group leaves without training, and its slot comes back. No drop without this record.

    Attributes:
        state: `filtered` (by a rule on the data) or `abandoned` (it could not be finished).
        reason: name of the rule or cause.
        oldest_lag: updates between its oldest sampled token and now; -1 when nothing was sampled.
        newest_lag: the same of its newest token.
        mean_lag: token-weighted.
        difficulty: stratum.
        mean_tokens: mean length of its members.
        duration_s: admission to rejection.
        is_requeued: its task is drawn again, under a new ordinal.
    """

    state: str
    reason: str
    oldest_lag: int
    newest_lag: int
    mean_lag: float
    difficulty: str
    mean_tokens: float
    duration_s: float
    is_requeued: bool = False


class CapacityDecided(msgspec.Struct, frozen=True, tag="capacity_decided"):
    """The credit was looked at, at a version bump; recorded where `schedule.credit_batches` is `auto`.

    Attributes:
        version: the new version.
        credit_batches: batches that may be admitted ahead from now on.
        max_outstanding: groups that may hold a slot from now on; those that hold one keep it.
        queued_batches: work that waited for a slot, or finished beyond the next batch, in batches.
        idle_share: share of the time since the last version in which the trainer had nothing to do.
        reason: why it moved, or did not.
    """

    version: int
    credit_batches: float
    max_outstanding: int
    queued_batches: float
    idle_share: float
    reason: str


class BatchSelected(msgspec.Struct, frozen=True, tag="batch_selected"):
    """The ready groups that the next update will use, in batch order.

    Attributes:
        update: number of the update, from 1.
        groups: ordinals in the order of the batch.
        replayed: groups that trained before and fill up the batch, by ordinal.
        retired: groups that trained before and are replayed no more, by ordinal.
    """

    update: int
    groups: tuple[GroupId, ...]
    replayed: tuple[ReplayedGroup, ...] = ()
    retired: tuple[RetiredGroup, ...] = ()


class BatchRefilled(msgspec.Struct, frozen=True, tag="batch_refilled"):
    """Ready groups took the places of samples that the statistical gate rejected; the batch is judged once more.

    Attributes:
        update: number of the update.
        rejected: samples that left.
        groups: those that came, by ordinal.
    """

    update: int
    rejected: int
    groups: tuple[GroupId, ...]


class BatchRow(msgspec.Struct, frozen=True, gc=False):
    """One token sequence to train on.

    Attributes:
        transcript: address of the transcript.
        path: which of its paths.
        group: the drawn task.
        member: position in the group.
        use: k-th use of this transcript, 1 unless a replay policy says otherwise.
        reward: aggregated reward.
        advantage: one number for the whole row; broadcast over its trained tokens.
        weight: loss weight of the row, >= 0.
    """

    transcript: Address
    path: int
    group: GroupId
    member: int
    use: int
    reward: float
    advantage: float
    weight: float


class BatchPlan(msgspec.Struct, frozen=True):
    """Everything that the update depends on, by address.

    Attributes:
        update: number of the update, from 1.
        policy_id: which policy.
        base_version: version that the gradient is taken at; the update makes base_version + 1.
        rows: in batch order, by (ordinal, member, path), never by arrival.
        algorithm: content version of the algorithm's configuration.
        seed_key: Philox key of any draw that the update makes.
    """

    update: int
    policy_id: PolicyId
    base_version: int
    rows: tuple[BatchRow, ...]
    algorithm: Address
    seed_key: bytes

    @property
    def address(self) -> Address:
        return address_of(canonical_bytes(self))


class MembersRemoved(msgspec.Struct, frozen=True, gc=False):
    """Members that a filter kept out of a batch, or whose reward it changed.

    Attributes:
        filter: its name.
        difficulty: stratum.
        members: how many.
    """

    filter: str
    difficulty: str
    members: int


class BatchPlanned(msgspec.Struct, frozen=True, tag="batch_planned"):
    """The plan is durable; replay of the update starts here.

    Attributes:
        update: number of the update.
        plan: address of the plan.
        groups: ordinals that it consumes.
        rows: number of rows.
        oldest_lag: largest lag of any trained token, replayed ones included, as in the next two.
        mean_lag: token-weighted lag.
        max_span: largest version span inside one trajectory.
        mean_reward: mean over members with a reward, as the grader gave it; replayed groups do not count again.
        removed: what filters did to members, by filter and difficulty.
        replayed: groups that trained before and have a row again, by ordinal.
    """

    update: int
    plan: Address
    groups: tuple[GroupId, ...]
    rows: int
    oldest_lag: int
    mean_lag: float
    max_span: int
    mean_reward: float
    removed: tuple[MembersRemoved, ...] = ()
    replayed: tuple[ReplayedGroup, ...] = ()


@dataclasses.dataclass(frozen=True)
class TrainingBatch:
    """Padded arrays of a plan. Padding changes no value: it is masked and never attended to.

    Attributes:
        ids_BT: token ids, 0 where padded, int32.
        action_mask_BT: True where the policy sampled the token and this row trains it.
        valid_mask_BT: True where there is a token.
        position_ids_BT: position within the sequence, int32.
        behavior_logprobs_BT: log-probs of the distribution sampled from; NaN where nothing was sampled, float32.
        temperature_BT: sampling temperature of the token; 1 where nothing was sampled, float32.
        versions_BT: policy version that sampled the token; -1 elsewhere, int32.
        is_fresh_context_BT: True where the token's whole context was computed under its own version.
        advantages_B: float32.
        weights_B: float32.
        rewards_B: float32.
        transcripts: address of each row's transcript.
        episodes: episode of each row.
        groups: group of each row.
    """

    ids_BT: IntArray
    action_mask_BT: npt.NDArray[np.bool_]
    valid_mask_BT: npt.NDArray[np.bool_]
    position_ids_BT: IntArray
    behavior_logprobs_BT: FloatArray
    temperature_BT: FloatArray
    versions_BT: IntArray
    is_fresh_context_BT: npt.NDArray[np.bool_]
    advantages_B: FloatArray
    weights_B: FloatArray
    rewards_B: FloatArray
    transcripts: tuple[Address, ...]
    episodes: tuple[EpisodeId, ...]
    groups: tuple[GroupId, ...]

    def check(self) -> None:
        """Raises IntegrityError when two arrays disagree in shape, or a trained token lacks a finite log-prob."""
        shape = self.ids_BT.shape
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_BT") and value.shape != shape:
                raise IntegrityError(f"batch.{field.name} has shape {value.shape}, ids_BT has {shape}")
            if not field.name.endswith("_BT") and len(value) != shape[0]:
                raise IntegrityError(f"batch.{field.name} has {len(value)} rows, ids_BT has {shape[0]}")
        if (self.action_mask_BT & ~self.valid_mask_BT).any():
            raise IntegrityError("batch.action_mask_BT marks padding as trained")
        trained = self.behavior_logprobs_BT[self.action_mask_BT]
        if not (np.isfinite(trained).all() and (trained <= 0).all()):
            raise IntegrityError(
                "batch.behavior_logprobs_BT: a trained token has a log-prob that is not finite and <= 0"
            )
        if (self.versions_BT[self.action_mask_BT] < 0).any():
            raise IntegrityError("batch.versions_BT: a trained token has no version")
