"""C6, versions: they do not fall along a trajectory, and no token is sampled by one that is not committed yet.

Committed versions of a policy rise by one from 0, each with one content: what was staged under a number is what is
committed under it. A worker activates nothing that is not committed. A pinned episode is sampled by its version alone.
Whether a segment's version is the one that sampled it, only scoring it again can tell: `check_rescoring`.
"""

from collections.abc import Iterable

from headrace.checkers.law import Violation
from headrace.records.events import Event
from headrace.records.ids import Address, EpisodeId, PolicyId, PolicyRef
from headrace.records.segment import TurnGenerated
from headrace.records.trajectory import EpisodeStarted, TranscriptSealed
from headrace.records.update import (
    BatchScored,
    UpdateCompleted,
    WeightsActivated,
    WeightsCommitted,
    WeightsPrepared,
    WeightsStaged,
)


def check_rescoring(events: Iterable[Event], tolerance: float) -> list[Violation]:
    """C6 by the trainer's own pass: fresh tokens of the base version, scored again, have the log-probs on record.

    Args:
        events: the log.
        tolerance: largest absolute difference, in nats; 1e-4 between two float32 passes.
    """
    return [
        Violation(
            "C6",
            event.seq,
            f"update {scored.update}: a sampled token differs by {scored.mismatch:.3g} nats when scored again",
        )
        for event in events
        if isinstance(scored := event.payload, BatchScored)
        and scored.mismatch is not None
        and not scored.mismatch <= tolerance
    ]


class Versions:
    """Checks C6."""

    def __init__(self) -> None:
        self._newest: dict[PolicyId, int] = {}
        self._contents: dict[PolicyRef, Address] = {}
        self._made: dict[int, Address] = {}
        self._sampled: dict[EpisodeId, int] = {}
        self._pins: dict[EpisodeId, int] = {}

    def observe(self, event: Event) -> list[Violation]:
        match event.payload:
            case EpisodeStarted() | TurnGenerated() | TranscriptSealed():
                problems = self._sample(event)
            case _:
                problems = self._publish(event)
        return [Violation("C6", event.seq, message) for message in problems]

    def _sample(self, event: Event) -> list[str]:
        match event.payload:
            case EpisodeStarted(pin_version=pin) if pin is not None:
                self._pins[EpisodeId.parse(event.key)] = pin
            case TurnGenerated():
                return self._turn(event.payload)
            case TranscriptSealed(versions=versions):
                episode = EpisodeId.parse(event.key)
                self._pins.pop(episode, None)
                self._sampled.pop(episode, None)
                if list(versions) != sorted(set(versions)):
                    return [f"{episode} is sealed with versions {versions}; they are distinct and rise"]
            case _:
                pass
        return []

    def _publish(self, event: Event) -> list[str]:
        match event.payload:
            case UpdateCompleted(result=result):
                self._made[result.version] = result.weights
            case WeightsStaged(policy=policy, weights=weights):
                return self._content(policy, weights, "staged")
            case WeightsPrepared(policy=policy) if policy not in self._contents:
                return [f"a worker prepared {policy}, which was never staged"]
            case WeightsCommitted(policy=policy, weights=weights):
                return self._commit(policy, weights)
            case WeightsActivated(policy=policy, worker=worker):
                if policy.version > self._newest.get(policy.policy_id, -1):
                    return [f"{worker} activates {policy} before it is committed"]
            case _:
                pass
        return []

    def _turn(self, turn: TurnGenerated) -> list[str]:
        problems: list[str] = []
        pin = self._pins.get(turn.episode)
        for span in turn.spans:
            policy = span.policy
            if policy is None:
                problems.append(f"turn {turn.step} of {turn.episode} holds a segment that no policy sampled")
                continue
            newest = self._newest.get(policy.policy_id, -1)
            if policy.version > newest:
                problems.append(f"{turn.episode} was sampled by {policy}, but the newest committed version is {newest}")
            last = self._sampled.get(turn.episode, -1)
            if policy.version < last:
                problems.append(
                    f"{turn.episode} was sampled by version {policy.version} after {last}; versions do not fall"
                )
            if pin is not None and policy.version != pin:
                problems.append(f"{turn.episode} is pinned to version {pin} and was sampled by {policy.version}")
            self._sampled[turn.episode] = max(last, policy.version)
        return problems

    def _commit(self, policy: PolicyRef, weights: Address) -> list[str]:
        last = self._newest.get(policy.policy_id, -1)
        problems: list[str] = []
        if policy.version != last + 1:
            problems.append(f"{policy} is committed after version {last}; versions rise by one, from 0")
        if policy.version > 0 and policy not in self._contents:
            problems.append(f"{policy} is committed but was never staged")
        problems += self._content(policy, weights, "committed")
        self._newest[policy.policy_id] = max(last, policy.version)
        return problems

    def _content(self, policy: PolicyRef, weights: Address, verb: str) -> list[str]:
        """One content for one version number, from the update that made it to its commit."""
        known = self._contents.setdefault(policy, weights)
        made = self._made.get(policy.version, weights)
        return [
            f"{policy} is {verb} as {weights}, but {origin} {other}"
            for origin, other in (("it was staged as", known), ("its update made", made))
            if other != weights
        ]
