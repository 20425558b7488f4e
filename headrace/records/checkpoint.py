"""Checkpoints and resumption: what a trainer's state is made of, and from where a process goes on with a run.

Invariant: a manifest names every part of the state by content address, so it loads whole or not at all. The journal is the
truth about everything else; a checkpoint only shortens the replay of batch plans.
"""

from typing import Literal

import msgspec

from headrace.records.ids import Address, EpisodeId, LeaseToken, PolicyId
from headrace.records.provenance import address_of

InFlight = Literal["resume", "reissue"]
"""What becomes of an attempt that was running when its process ended."""


class Manifest(msgspec.Struct, frozen=True):
    """State of a trainer after an update, as files by content address.

    Attributes:
        policy_id: whose.
        version: number of updates behind the weights.
        weights: address of the weights file that was published as this version.
        parts: the other files by name: `optimizer`, `random`, with a critic also `critic` and `critic_optimizer`.
        size_bytes: bytes of all files together.
        scheduler: name of the learning-rate schedule; its state is the number of updates.
        algorithm: content version of the algorithm's configuration that the state follows from.
    """

    policy_id: PolicyId
    version: int
    weights: Address
    parts: dict[str, Address]
    size_bytes: int
    scheduler: str
    algorithm: Address

    def to_json(self) -> bytes:
        """The manifest as it lies in the store: JSON, keys sorted."""
        return msgspec.json.encode(self, order="sorted")

    @property
    def address(self) -> Address:
        return address_of(self.to_json())

    @property
    def blobs(self) -> frozenset[Address]:
        """Every file that it names, itself included."""
        return frozenset((self.address, self.weights, *self.parts.values()))


class GuardState(msgspec.Struct, frozen=True):
    """What the guard of a run remembers between updates.

    Attributes:
        first_entropy: of the first update that measured one, nats per token; None before it.
    """

    first_entropy: float | None = None


class CheckpointWritten(msgspec.Struct, frozen=True, tag="checkpoint_written"):
    """The trainer's state is on disk, manifest and all; recovery may replay from here.

    Recovery of the queue, one rule each: what was drawn and not started is started under its own ordinal and seeds; what was
    in flight goes by `in_flight`; what was finished and not consumed stays ready and is neither rolled nor graded again.

    Attributes:
        update: number of the update that it follows.
        manifest: of the trainer's files.
        drawn: tasks drawn.
        trained: of those, trained.
        filtered: of those, filtered.
        abandoned: of those, abandoned.
        open: ordinals that are open.
        last_seq: ledger high-water mark: the counts are of the events up to this one.
        lease_token: highest token granted.
        in_flight: rule for attempts in flight.
        save_s: seconds from the request to the answer.
        stall_s: of those, seconds in which the next update had to wait.
        guard: what the guard remembers.
    """

    update: int
    manifest: Manifest
    drawn: int
    trained: int
    filtered: int
    abandoned: int
    open: tuple[int, ...]
    last_seq: int
    lease_token: LeaseToken
    in_flight: InFlight
    save_s: float
    stall_s: float
    guard: GuardState | None = None


class RunResumed(msgspec.Struct, frozen=True, tag="run_resumed"):
    """A process took over a run that another one had begun, and stands where the journal ends.

    Attributes:
        last_seq: the last event of its predecessors.
        version: newest committed version, which is served again.
        checkpoint: update whose checkpoint the trainer loaded; None when it started from version 0.
        replayed: batch plans computed again since.
        identical: of those, how many gave the recorded weights bit for bit; for the others the recorded ones were loaded.
        open_groups: groups that hold a slot.
        ready_groups: of those, finished ones.
        resumed: attempts in flight that go on where they were.
        reissued: attempts in flight that ended with their process; their members start again.
        restore_s: seconds that it took.
    """

    last_seq: int
    version: int
    checkpoint: int | None
    replayed: int
    identical: int
    open_groups: int
    ready_groups: int
    resumed: int
    reissued: int
    restore_s: float


class RecordQuarantined(msgspec.Struct, frozen=True, tag="record_quarantined"):
    """Stored bytes that did not verify, or were gone, were set aside; a repair says so, and nothing reads them any more.

    Attributes:
        address: of the bytes.
        record: kind of row that they were, or `blob`.
        reason: what was wrong with them.
        episode: attempt that is void from here on, since nothing trained on it yet: its member rolls again, and its group is
            open again. None where nothing has to be done again.
    """

    address: Address
    record: str
    reason: str
    episode: EpisodeId | None = None
