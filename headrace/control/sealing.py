"""Seals an episode: transcript and side record become durable together with the event that names them.

Invariant: what is sealed passed `Transcript.check` (equal lengths, versions that never fall, all versions present) and
`Harness.check` (the ids are those of the texts and calls on record, and only the template placed control tokens).
"""

from collections.abc import Sequence

import msgspec

from headrace.control.past import AttemptPast
from headrace.control.recorder import Recorder, sealed_row
from headrace.errors import IntegrityError
from headrace.ports import Harness, ObservedTokens, Rewritten
from headrace.records.execution import Metering
from headrace.records.ids import Address, EpisodeId
from headrace.records.provenance import PolicyVersion, Provenance
from headrace.records.segment import TokenSegment, TurnGenerated, num_tokens
from headrace.records.task import Task
from headrace.records.terminal import Limit, Terminal, terminal_name
from headrace.records.trajectory import ActionOutcome, Path, PathParent, SideRecord, Transcript, TranscriptSealed
from headrace.records.verdict import Verdict

AGENT = "policy"
"""Name of the one agent of an episode."""


class EpisodeTrace(msgspec.Struct):
    """What has happened in a running episode. Owned by its driver; becomes records when sealed.

    Attributes:
        segments: the whole sequence of the present path, what it shares with its parent in front.
        num_tokens: tokens of all paths, shared ones once.
    """

    episode: EpisodeId
    task: Task
    task_address: Address
    segments: list[TokenSegment] = []
    left: list[Path] = []
    parent: PathParent | None = None
    actions: list[ActionOutcome] = []
    limits_hit: list[Limit] = []
    final_text: str = ""
    artifact: bytes = b""
    num_tokens: int = 0
    turns: int = 0
    malformed: int = 0
    neutralized: int = 0
    generate_s: float = 0.0
    wait_s: float = 0.0
    tool_s: float = 0.0
    service_s: float = 0.0
    preemptions: int = 0
    metering: Metering = Metering()

    def extend(self, segments: tuple[TokenSegment, ...]) -> None:
        """Appends segments to the sequence."""
        self.segments.extend(segments)
        self.num_tokens += num_tokens(segments)

    def take_turn(self, turn: TurnGenerated) -> None:
        """Appends what the policy said."""
        self.extend(turn.segments)
        self.turns += 1
        self.wait_s += turn.wait_s
        self.generate_s += turn.generate_s
        self.preemptions += turn.preemptions

    def take_observed(self, observed: ObservedTokens) -> None:
        """Appends what the policy is shown."""
        self.extend(observed.segments)
        self.neutralized += sum(observed.neutralized)
        if any(observed.is_cut):
            self.limits_hit.append(Limit.OBSERVATION_TOKENS)

    def fork(self, rewritten: Rewritten) -> None:
        """Goes on as a new path, from where the sequence stays as it is."""
        path = len(self.left)
        self.left.append(self.present())
        self.parent = PathParent(path, rewritten.kept, rewritten.cause)
        del self.segments[rewritten.kept :]
        self.extend(rewritten.segments)

    def present(self) -> Path:
        """The present path, as far as it goes."""
        return Path(AGENT, tuple(self.segments[self.own_start :]), self.parent)

    @property
    def own_start(self) -> int:
        """Segments that the present path shares with its parent."""
        return 0 if self.parent is None else self.parent.segment


class Sealed(msgspec.Struct, frozen=True):
    """A sealed transcript with its address.

    Attributes:
        transcript: the record.
        address: its address.
        artifact: what the grader may read besides.
        verdicts: verdicts that are sealed already, in order of the tries.
    """

    transcript: Transcript
    address: Address
    artifact: bytes
    verdicts: tuple[Verdict, ...] = ()


class Sealer:
    """Turns a trace into sealed records.

    Args:
        recorder: where they go.
        harness: made the sequences, and judges them.
        environment: content version of the environment.
        weights: version number to weights address, for every version that was ever committed.
    """

    def __init__(self, recorder: Recorder, harness: Harness, environment: Address, weights: dict[int, Address]) -> None:
        self._recorder = recorder
        self._harness = harness
        self._environment = environment
        self._weights = weights

    def seal(self, trace: EpisodeTrace, terminal: Terminal, wall_s: float, cause: int) -> Sealed:
        """The sealed transcript.

        Raises:
            IntegrityError: when the trace breaks a law of sealing.
        """
        artifact = [sealed_row("artifact", trace.artifact)] if trace.artifact else []
        paths = (*trace.left, trace.present())
        policies = self._policies(trace.episode, paths)
        transcript = Transcript(
            episode=trace.episode,
            task=trace.task_address,
            provenance=Provenance(trace.task_address, policies, self._harness.version, self._environment),
            paths=paths,
            actions=tuple(trace.actions),
            terminal=terminal,
            limits_hit=tuple(trace.limits_hit),
            final_text=trace.final_text,
            artifact=artifact[0].address if artifact else None,
        )
        transcript.check()
        self._harness.check(transcript)
        row = sealed_row("transcript", transcript)
        side = sealed_row(
            "side",
            SideRecord(
                transcript=row.address,
                turns=trace.turns,
                generate_s=trace.generate_s,
                tool_s=trace.tool_s,
                service_s=trace.service_s,
                wait_s=trace.wait_s,
                wall_s=wall_s,
                preemptions=trace.preemptions,
                metering=trace.metering,
                neutralized=trace.neutralized,
            ),
        )
        self._recorder.record(
            TranscriptSealed(
                transcript=row.address,
                side=side.address,
                task=trace.task_address,
                terminal=terminal_name(terminal),
                sampled_tokens=transcript.num_sampled_tokens,
                total_tokens=trace.num_tokens,
                versions=tuple(sorted({policy.version for policy in policies})),
            ),
            key=str(trace.episode),
            cause=cause,
            rows=(*artifact, row, side),
        )
        return Sealed(transcript, row.address, trace.artifact)

    def recall(self, past: AttemptPast) -> Sealed:
        """A sealed attempt from the journal. Raises IntegrityError when a row is damaged."""
        read, sealed = self._recorder.read, past.sealed
        assert sealed is not None, "only a sealed attempt can be recalled"
        transcript = msgspec.msgpack.decode(read(sealed.transcript), type=Transcript)
        artifact = b"" if transcript.artifact is None else msgspec.msgpack.decode(read(transcript.artifact), type=bytes)
        verdicts = tuple(msgspec.msgpack.decode(read(address), type=Verdict) for address in past.verdicts)
        return Sealed(transcript, sealed.transcript, artifact, verdicts)

    def _policies(self, episode: EpisodeId, paths: Sequence[Path]) -> tuple[PolicyVersion, ...]:
        found = {segment.policy for path in paths for segment in path.segments if segment.policy is not None}
        missing = [policy for policy in found if policy.version not in self._weights]
        if missing:
            raise IntegrityError(f"{episode}: sampled by {missing[0]}, which was never committed")
        return tuple(PolicyVersion(p.policy_id, p.version, self._weights[p.version]) for p in sorted(found))
