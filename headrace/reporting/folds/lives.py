"""What a log tells of one group, transcript, update or version, with the times of its life.

Invariant: a field is None until an event or a sealed row said it; nothing is inferred from absence.
"""

import dataclasses

from headrace.records.batch import BatchPlanned, BatchRow, GroupRejected, MemberResult
from headrace.records.execution import ExecutionStatus
from headrace.records.experience import RetiredGroup
from headrace.records.gate import BatchGated
from headrace.records.ids import Address, EpisodeId, GroupId, PolicyRef
from headrace.records.terminal import Limit
from headrace.records.trajectory import ForkCause, SideRecord, TranscriptSealed
from headrace.records.update import BatchScored, CanaryChecked, StratumUpdate, UpdateResult
from headrace.records.verdict import UnscoredCause
from headrace.records.weighing import StrataWeighed

END_OF_RUN = "run ended"
"""Reason under which the control plane closes whatever is open at the end: no rule rejected it."""


@dataclasses.dataclass
class GroupLife:
    """One group as far as the log tells."""

    id: GroupId
    family: str = ""
    difficulty: str = ""
    task: Address | None = None
    drawn_ns: int | None = None
    admitted_ns: int | None = None
    closed_ns: int | None = None
    members: tuple[MemberResult, ...] = ()
    rejected_ns: int | None = None
    rejection: GroupRejected | None = None
    selected_ns: int | None = None
    update: int | None = None
    trained_ns: int | None = None

    @property
    def fate(self) -> str:
        """`trained`, `filtered`, `abandoned` or `open`."""
        if self.trained_ns is not None:
            return "trained"
        return self.rejection.state if self.rejection else "open"

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Of its members; None where absent."""
        return tuple(member.reward for member in self.members)

    @property
    def was_ready(self) -> bool:
        """Whether it closed with enough rewards to train on."""
        if self.closed_ns is None:
            return False
        refused = self.rejection is not None and self.rejection.state == "abandoned"
        return not refused or (self.rejection is not None and self.rejection.reason == END_OF_RUN)


@dataclasses.dataclass
class TranscriptLife:
    """One sealed transcript with its side record and the verdict that counts."""

    episode: EpisodeId
    sealed: TranscriptSealed
    sealed_ns: int
    started_ns: int | None
    side: SideRecord
    limits_hit: tuple[Limit, ...]
    statuses: tuple[tuple[ExecutionStatus, int], ...]
    malformed_turns: int
    forks: tuple[ForkCause, ...]
    verdict_ns: int | None = None
    num_scored: int = 0
    reward: float | None = None
    cause: UnscoredCause | None = None


@dataclasses.dataclass
class UpdateLife:
    """One update from selection to publication."""

    update: int
    groups: tuple[GroupId, ...] = ()
    selected_ns: int | None = None
    retired: tuple[RetiredGroup, ...] = ()
    scored: BatchScored | None = None
    gated: tuple[BatchGated, ...] = ()
    weighed: StrataWeighed | None = None
    planned: BatchPlanned | None = None
    rows: tuple[BatchRow, ...] = ()
    completed_ns: int | None = None
    result: UpdateResult | None = None
    strata: tuple[StratumUpdate, ...] = ()


@dataclasses.dataclass
class VersionLife:
    """One committed version."""

    policy: PolicyRef
    committed_ns: int
    kl_to_previous: float | None
    update: int | None
    canary: CanaryChecked | None
    load_s: float | None
    activated_ns: int | None = None
    pause_s: float | None = None
    rebuilt_tokens: int | None = None
