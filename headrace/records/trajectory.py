"""Stage 10, trajectory: the transcript that is sealed, and the side record bound to it.

Invariant: a transcript's address is the SHA-256 of its canonical bytes and covers only what training and grading read.
Times and metering differ between two identical runs, so they lie in the side record.
"""

import enum
from collections.abc import Iterator

import msgspec

from headrace.errors import IntegrityError
from headrace.records.action import Action
from headrace.records.execution import ExecutionStatus, Metering
from headrace.records.ids import Address, EpisodeId, PolicyRef
from headrace.records.provenance import Provenance, address_of, canonical_bytes
from headrace.records.segment import ENVIRONMENT, HISTORY, POLICY, TokenSegment, num_tokens
from headrace.records.terminal import Limit, Terminal


class ForkCause(enum.Enum):
    """Why a path is not a continuation of its parent's token sequence."""

    COMPACTION = "compaction"
    SUB_AGENT = "sub_agent"
    HISTORY_REWRITTEN = "history_rewritten"
    THINKING_DROPPED = "thinking_dropped"


class PathParent(msgspec.Struct, frozen=True, gc=False):
    """Where a path leaves its parent.

    Attributes:
        path: index of the parent path.
        segment: the first `segment` segments of the parent are this path's prefix, shared by reference.
        cause: why it forked.
    """

    path: int
    segment: int
    cause: ForkCause


class Path(msgspec.Struct, frozen=True, gc=False):
    """One token sequence of an episode.

    Attributes:
        agent: name of the agent whose context this is.
        segments: its own segments; with the parent's prefix in front they are the whole sequence.
        parent: None for the first path.
    """

    agent: str
    segments: tuple[TokenSegment, ...]
    parent: PathParent | None = None

    @property
    def num_carried(self) -> int:
        """Leading segments of its own that only show again what its parent held: up to the last of origin HISTORY."""
        places = [place for place, segment in enumerate(self.segments) if segment.origin is HISTORY]
        return places[-1] + 1 if places else 0


class ActionOutcome(msgspec.Struct, frozen=True, gc=False):
    """One action as it went: what was asked, what came back, and where its observation stands.

    Attributes:
        action: the validated call.
        status: how the execution ended.
        output: bytes shown to the policy, before tokenization.
        output_bytes: size before the executor's bound.
        path: index of the path that holds the observation.
        segment: index of the observation segment within the path's own segments.
        revision: environment revision after the action, if it keeps revisions.
    """

    action: Action
    status: ExecutionStatus
    output: bytes
    output_bytes: int
    path: int
    segment: int
    revision: Address | None = None


class Transcript(msgspec.Struct, frozen=True, gc=False):
    """Everything that training and grading read of one episode attempt.

    Attributes:
        episode: who.
        task: address of the task.
        provenance: task, policy, harness and environment versions.
        paths: token sequences; the first is the root.
        actions: in the order executed.
        terminal: the environment's claim.
        limits_hit: every limit that cut or ended something, in order.
        final_text: text of the closing turn, empty when the policy gave none.
        artifact: address of what the environment handed over for grading, if anything.
    """

    episode: EpisodeId
    task: Address
    provenance: Provenance
    paths: tuple[Path, ...]
    actions: tuple[ActionOutcome, ...]
    terminal: Terminal
    limits_hit: tuple[Limit, ...] = ()
    final_text: str = ""
    artifact: Address | None = None

    @property
    def address(self) -> Address:
        return address_of(canonical_bytes(self))

    def sequence(self, path: int) -> tuple[TokenSegment, ...]:
        """All segments of a path, the shared prefix first."""
        node = self.paths[path]
        if node.parent is None:
            return node.segments
        return self.sequence(node.parent.path)[: node.parent.segment] + node.segments

    def own_start(self, path: int) -> int:
        """Number of prefix segments of a path that belong to its ancestors and are trained there."""
        parent = self.paths[path].parent
        return 0 if parent is None else parent.segment

    def sampled(self) -> list[TokenSegment]:
        """Every policy segment once, in path order."""
        return [segment for path in self.paths for segment in path.segments if segment.origin is POLICY]

    @property
    def sampled_paths(self) -> tuple[int, ...]:
        """Paths with sampled segments of their own: each is a row of its own in training."""
        return tuple(
            index for index, path in enumerate(self.paths) if any(segment.origin is POLICY for segment in path.segments)
        )

    def first_shown(self) -> Iterator[TokenSegment]:
        """Every segment where it stood first, in path order; what a fork shows again is left out."""
        for path in self.paths:
            yield from path.segments[path.num_carried :]

    def turns(self) -> list[list[TokenSegment]]:
        """Sampled segments of each policy turn, by step."""
        turns: list[list[TokenSegment]] = [[]]
        for segment in self.sampled():
            turns[-1].append(segment)
            if segment.finish is not None:
                turns.append([])
        return [turn for turn in turns if turn]

    @property
    def num_sampled_tokens(self) -> int:
        return num_tokens(self.sampled())

    @property
    def num_tokens(self) -> int:
        """Tokens of all paths, shared prefixes counted once."""
        return num_tokens([segment for path in self.paths for segment in path.segments])

    @property
    def versions(self) -> tuple[int, ...]:
        """Distinct policy versions that sampled, rising. Span is last minus first; lag is measured against the trainer."""
        return tuple(sorted({segment.policy.version for segment in self.sampled() if segment.policy}))

    def check(self) -> None:
        """Raises IntegrityError when the transcript breaks a law of sealing; see `_check_path`."""
        if not self.paths or self.paths[0].parent is not None:
            raise IntegrityError(f"{self.episode}: the first path must exist and have no parent")
        self.provenance.require_complete()
        known = {PolicyRef(policy.policy_id, policy.version) for policy in self.provenance.policies}
        for index in range(len(self.paths)):
            _check_path(self, index, known)
        for outcome in self.actions:
            _check_outcome(self, outcome)


class SideRecord(msgspec.Struct, frozen=True, gc=False):
    """What the episode took; bound to the transcript by its address, and read by reports alone.

    Attributes:
        transcript: address of the transcript.
        turns: policy turns.
        generate_s: seconds in the engine.
        tool_s: seconds in the environment.
        service_s: seconds waiting for a turn at the external service behind the tools.
        wait_s: seconds waiting for an engine slot.
        wall_s: seconds from start to terminal.
        preemptions: how often a cache was rebuilt or a slot taken.
        metering: sum over all actions.
        neutralized: control literals in observations that were encoded as text.
    """

    transcript: Address
    turns: int
    generate_s: float
    tool_s: float
    service_s: float
    wait_s: float
    wall_s: float
    preemptions: int
    metering: Metering
    neutralized: int


class EpisodeStarted(msgspec.Struct, frozen=True, gc=False, tag="episode_started"):
    """An attempt begins.

    Attributes:
        task: address of the task.
        pin_version: the version it must use throughout; None follows publication.
    """

    task: Address
    pin_version: int | None


class TranscriptSealed(msgspec.Struct, frozen=True, gc=False, tag="transcript_sealed"):
    """The transcript, its side record and this event became durable at one sync.

    Attributes:
        transcript: address of the transcript.
        side: address of the side record.
        task: address of the task.
        terminal: label of the terminal state.
        sampled_tokens: tokens sampled by the policy.
        total_tokens: tokens of all paths.
        versions: distinct policy versions that sampled, rising.
    """

    transcript: Address
    side: Address
    task: Address
    terminal: str
    sampled_tokens: int
    total_tokens: int
    versions: tuple[int, ...]


def _check_path(transcript: Transcript, index: int, known: set[PolicyRef]) -> None:
    """Segment laws, versions that never fall along the sequence, and provenance that names each of them."""
    node = transcript.paths[index]
    if index and (node.parent is None or not 0 <= node.parent.path < index):
        raise IntegrityError(f"{transcript.episode}: path {index} needs a parent among the paths before it")
    if node.parent and not 0 <= node.parent.segment <= len(transcript.sequence(node.parent.path)):
        raise IntegrityError(
            f"{transcript.episode}: path {index} forks at segment {node.parent.segment}, out of its parent"
        )
    carried = node.segments[: node.num_carried]
    if carried and (node.parent is None or any(segment.origin is POLICY for segment in carried)):
        raise IntegrityError(f"{transcript.episode}: path {index} shows history where no fork put it")
    newest = -1
    for segment in transcript.sequence(index):
        segment.check()
        policy = segment.policy
        if policy is None:
            continue
        if policy.version < newest:
            raise IntegrityError(f"{transcript.episode}: version {policy.version} follows {newest} in path {index}")
        newest = policy.version
        if policy not in known:
            raise IntegrityError(f"{transcript.episode}: {policy} sampled tokens but provenance does not name it")


def _check_outcome(transcript: Transcript, outcome: ActionOutcome) -> None:
    if outcome.action.id.episode != transcript.episode:
        raise IntegrityError(f"{transcript.episode}: holds action {outcome.action.id} of another episode")
    if not 0 <= outcome.path < len(transcript.paths):
        raise IntegrityError(f"{outcome.action.id}: path {outcome.path} does not exist")
    segments = transcript.paths[outcome.path].segments
    if not 0 <= outcome.segment < len(segments) or segments[outcome.segment].origin is not ENVIRONMENT:
        raise IntegrityError(f"{outcome.action.id}: segment {outcome.segment} is no observation")
