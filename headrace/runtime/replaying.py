"""`headrace replay`: a sealed episode again, under its five versions.

Invariant: nothing is sampled. The recorded tokens go through the present harness, environment and grader, and whatever comes
out is compared with what was sealed; the recorded weights score the recorded tokens. The first difference is named.
"""

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.config import Config
from headrace.errors import ConfigError, InferenceError, IntegrityError, Outcome
from headrace.inference.scripted import ScriptedInference
from headrace.records.compaction import RecordDropped
from headrace.records.ids import EpisodeId
from headrace.records.provenance import PolicyVersion
from headrace.records.segment import GenerateRequest, Sampling, TokenSegment
from headrace.records.task import Task
from headrace.records.terminal import InfraError, Limit, Truncated, terminal_name
from headrace.records.trajectory import ActionOutcome, Transcript
from headrace.records.verdict import Scored, Verdict
from headrace.runtime.bench import Bench, Played, open_bench
from headrace.runtime.folders import BLOBS
from headrace.runtime.models import run_config
from headrace.runtime.rescoring import Rescored, Rescorer
from headrace.store.blobs import FileBlobs
from headrace.store.inspect import EpisodeView, inspect_episode
from headrace.store.reader import open_reader


@dataclasses.dataclass(frozen=True)
class VersionCheck:
    """One of the five versions.

    Attributes:
        name: task, policy, harness, environment or grader.
        recorded: as sealed.
        present: as it is now; empty when it is gone.
    """

    name: str
    recorded: str
    present: str

    @property
    def is_same(self) -> bool:
        """Whether the episode can be executed under the recorded one."""
        return self.recorded == self.present


@dataclasses.dataclass(frozen=True)
class ReplayReport:
    """What came of a replay.

    Attributes:
        episode: which.
        versions: the five, and a policy version each.
        divergences: where the execution went another way, in order; empty when it is the same.
        has_same_address: whether the new transcript is the old one, byte for byte.
        rescored: the tokens under the recorded weights; None when it did not come so far.
        tolerance: bound of the log-prob difference.
    """

    episode: str
    versions: tuple[VersionCheck, ...]
    divergences: tuple[str, ...] | None
    has_same_address: bool = False
    rescored: Rescored | None = None
    tolerance: float = 1e-3

    @property
    def is_same(self) -> bool:
        """Whether everything came out as recorded."""
        scores = self.rescored
        is_scored = scores is None or scores.fresh_abs_max is None or scores.fresh_abs_max <= self.tolerance
        return self.divergences == () and is_scored and all(version.is_same for version in self.versions)


def replay(run: Path, episode: str, *, is_forced: bool) -> ReplayReport:
    """The report.

    Raises:
        ConfigError: when there is no such episode, or it was never sealed.
        RecordDropped: when a compaction dropped it.
    """
    try:
        episode_id = EpisodeId.parse(episode)
    except ValueError as error:
        raise ConfigError(f"{episode!r} names no episode; write purpose.ordinal.member.attempt: train.3.0.0") from error
    with open_reader(run) as reader:
        try:
            view = inspect_episode(reader, episode_id)
        except RecordDropped:
            raise
        except KeyError as error:
            raise ConfigError(f"{run} has no episode {episode}; `headrace show` names those of a group") from error
        config = run_config(reader, run)
    return asyncio.run(_replay(run, config, view, is_forced=is_forced))


async def _replay(run: Path, config: Config, view: EpisodeView, *, is_forced: bool) -> ReplayReport:
    sealed = _Sealed(view)
    async with open_bench(config, run if (run / "tokenizer.json").is_file() else None) as bench:
        versions = tuple(_versions(run, bench, sealed))
        if not all(version.is_same for version in versions) and not is_forced:
            return ReplayReport(str(view.episode), versions, None)
        played = await _execute(bench, view, sealed.transcript, sealed.task)
    divergences = _divergences(sealed.transcript, played.transcript)
    if sealed.verdict is not None and (told := _verdict_difference(sealed.verdict, played.verdict)):
        divergences.append(told)
    rescored = None
    if (run / "config.json").is_file() and all(version.is_same for version in versions if version.name == "policy"):
        rescored = Rescorer(run, FileBlobs(run / BLOBS).read).rescore(sealed.transcript)
    return ReplayReport(
        str(view.episode),
        versions,
        tuple(divergences),
        played.transcript.address == sealed.transcript.address,
        rescored,
        config.policy.canary_tolerance,
    )


class _Sealed:
    """What the journal holds of an episode that can be executed again. Raises ConfigError when it cannot."""

    def __init__(self, view: EpisodeView) -> None:
        if view.transcript is None or view.task is None:
            raise ConfigError(f"{view.episode} was never sealed; only what is sealed can be executed again")
        terminal = view.transcript.terminal
        if isinstance(terminal, InfraError):
            raise ConfigError(
                f"{view.episode} was ended by {terminal.boundary}: {terminal.detail}; only what the policy did can be "
                "executed again"
            )
        self.transcript, self.task = view.transcript, view.task
        verdicts = [item.verdict for item in view.verdicts]
        scored = [verdict for verdict in verdicts if isinstance(verdict.outcome, Scored)]
        self.verdict = next(iter(scored or verdicts), None)


def _versions(run: Path, bench: Bench, sealed: _Sealed) -> list[VersionCheck]:
    provenance, blobs = sealed.transcript.provenance, FileBlobs(run / BLOBS)
    checks = [VersionCheck("task", provenance.task, sealed.task.address)]
    checks += [VersionCheck("policy", policy.weights, _present(blobs, policy)) for policy in provenance.policies]
    checks.append(VersionCheck("harness", provenance.harness, bench.harness.version))
    checks.append(VersionCheck("environment", provenance.environment, bench.environment.version))
    if sealed.verdict is not None:
        checks.append(VersionCheck("grader", sealed.verdict.grader, bench.grader.version))
    return checks


def _present(blobs: FileBlobs, policy: PolicyVersion) -> str:
    try:
        blobs.verify(policy.weights)
    except (KeyError, IntegrityError):
        return ""
    return policy.weights


async def _execute(bench: Bench, view: EpisodeView, transcript: Transcript, task: Task) -> Played:
    turns = transcript.turns()
    sampling = next((turn[0].sampling for turn in turns if turn[0].sampling), Sampling())

    async def speak(request: GenerateRequest) -> Sequence[TokenSegment]:
        step = int(request.request_id.rpartition("/")[2])
        if step >= len(turns):
            raise InferenceError(
                f"turn {step} was never recorded; the episode went on where it had ended", Outcome.REJECTED
            )
        return turns[step]

    runner = bench.runner(ScriptedInference(speak), transcript.provenance.policies, has_wall_limit=False)
    return await runner.run(task, view.episode.group, view.episode.member, sampling)


def _divergences(old: Transcript, new: Transcript) -> list[str]:
    """Differences of two transcripts: actions in order, then the sequence, then how it ended."""
    found = _action_differences(old, new)
    found += sequence_differences(old, new)
    # A wall limit is a matter of the clock, which a replay does not have.
    if old.terminal not in (new.terminal, Truncated(Limit.WALL)):
        found.append(f"it ended as {terminal_name(old.terminal)}, and ends as {_told(new)}")
    ends = ((name, getattr(old, name), getattr(new, name)) for name in ("final_text", "artifact"))
    found += [f"{name} was {_short(left)}, is {_short(right)}" for name, left, right in ends if left != right]
    return found


def sequence_differences(old: Transcript, new: Transcript) -> list[str]:
    """Where paths differ: the first token of each, then what one of them has more of."""
    found: list[str] = []
    for path, (left, right) in enumerate(zip(old.paths, new.paths, strict=False)):
        where = f" of path {path}" if path else ""
        if left.parent != right.parent:
            found.append(f"path {path} came of {_short(left.parent)}, comes of {_short(right.parent)}")
        for index, (before, after) in enumerate(zip(left.segments, right.segments, strict=False)):
            if (before.origin, before.ids) != (after.origin, after.ids):
                place = _first_difference(before, after)
                found.append(f"segment {index}{where} ({before.origin.value}): differs from token {place} on")
                break
        if len(left.segments) != len(right.segments):
            found.append(f"there were {len(left.segments)} segments{where}, there are {len(right.segments)}")
    if len(old.paths) != len(new.paths):
        found.append(f"there were {len(old.paths)} paths, there are {len(new.paths)}")
    return found


def _action_differences(old: Transcript, new: Transcript) -> list[str]:
    found: list[str] = []
    for number, (before, after) in enumerate(zip(old.actions, new.actions, strict=False)):
        was, now = _facts(before), _facts(after)
        found += [
            f"action {number} ({before.action.tool}): {name} was {_short(was[name])}, is {_short(now[name])}"
            for name in was
            if was[name] != now[name]
        ]
    if len(old.actions) != len(new.actions):
        found.append(f"there were {len(old.actions)} actions, there are {len(new.actions)}")
    return found


def _facts(outcome: ActionOutcome) -> dict[str, object]:
    """What of an action does not depend on when it ran."""
    return {
        "call": (outcome.action.tool, outcome.action.arguments),
        "status": outcome.status.value,
        "output": outcome.output,
        "output size": outcome.output_bytes,
        "revision": outcome.revision,
    }


def _verdict_difference(old: Verdict, new: Verdict) -> str:
    return "" if old.outcome == new.outcome else f"verdict was {_short(old.outcome)}, is {_short(new.outcome)}"


def _told(transcript: Transcript) -> str:
    terminal = transcript.terminal
    return (
        f"{terminal_name(terminal)}: {terminal.detail}" if isinstance(terminal, InfraError) else terminal_name(terminal)
    )


def _first_difference(before: TokenSegment, after: TokenSegment) -> int:
    pairs = zip(before.ids_T.tolist(), after.ids_T.tolist(), strict=False)
    return next((place for place, (left, right) in enumerate(pairs) if left != right), min(len(before), len(after)))


def _short(value: object) -> str:
    text = repr(msgspec.to_builtins(value)) if isinstance(value, msgspec.Struct) else repr(value)
    return text if len(text) <= 120 else text[:119] + "…"
