"""The twelve stages of a task's life, in order, with who owns what. The table in `docs/lifecycle.md` is made from here.

Invariant: every stage has a record type, and its event types are those that say what went in and what came out.
"""

import dataclasses
from types import UnionType

from headrace.records import (
    action,
    batch,
    checkpoint,
    compaction,
    execution,
    gate,
    observation,
    segment,
    task,
    terminal,
    trajectory,
    update,
    verdict,
    weighing,
)
from headrace.records.harness import ParsedTurn
from headrace.records.reward import RewardRule


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        name: the field's term.
        record: the noun that the stage makes, or its alternatives.
        events: what the journal says of it.
        owner: worker kind that owns it.
        verb: module of the control plane, or adapter package, that does it.
        next: stages that may follow.
    """

    name: str
    record: type | UnionType
    events: tuple[type, ...]
    owner: str
    verb: str
    next: tuple[str, ...]


STAGES: tuple[Stage, ...] = (
    Stage(
        "task",
        task.Task,
        (task.TaskDrawn, batch.GroupAdmitted, batch.CapacityDecided),
        "rollout",
        "control/source.py",
        ("harness",),
    ),
    Stage("harness", ParsedTurn, (trajectory.EpisodeStarted,), "rollout", "harness/", ("inference",)),
    Stage(
        "inference",
        segment.TokenSegment,
        (segment.TurnGenerated,),
        "inference",
        "inference/",
        ("action", "harness", "terminal"),
    ),
    Stage("action", action.Action, (action.ActionIntended,), "rollout", "control/acting.py", ("execution",)),
    Stage(
        "execution",
        execution.Receipt,
        (action.ActionCommitted, execution.EnvironmentRestored),
        "environment",
        "environments/",
        ("observation", "terminal"),
    ),
    Stage(
        "observation",
        observation.ActionObserved,
        (observation.ActionObserved,),
        "rollout",
        "control/episode.py",
        ("inference", "terminal"),
    ),
    Stage("terminal", terminal.Terminal, (), "environment", "control/episode.py", ("trajectory",)),
    Stage("grader", verdict.Verdict, (verdict.VerdictSealed,), "grader", "control/grading.py", ("reward",)),
    Stage("reward", RewardRule, (batch.GroupClosed, batch.GroupRejected), "rollout", "records/reward.py", ("batch",)),
    Stage(
        "trajectory",
        trajectory.Transcript,
        (trajectory.TranscriptSealed,),
        "rollout",
        "control/sealing.py",
        ("grader",),
    ),
    Stage(
        "batch",
        batch.BatchPlan,
        (
            batch.BatchSelected,
            batch.BatchRefilled,
            update.UpdateSkipped,
            update.BatchScored,
            gate.BatchGated,
            weighing.StrataWeighed,
            batch.BatchPlanned,
        ),
        "trainer",
        "control/updating.py",
        ("update",),
    ),
    Stage(
        "update",
        update.UpdateResult,
        (
            update.UpdateCompleted,
            update.TrainingPaused,
            update.GenerationPaused,
            update.GenerationResumed,
            update.WeightsStaged,
            update.WeightsPrepared,
            update.CanaryChecked,
            update.WeightsCommitted,
            update.WeightsActivated,
            checkpoint.CheckpointWritten,
            checkpoint.RecordQuarantined,
            compaction.RunCompacted,
        ),
        "trainer",
        "control/publishing.py",
        ("inference",),
    ),
)


@dataclasses.dataclass(frozen=True)
class Ownership:
    """What a worker kind may touch.

    Attributes:
        worker: the kind.
        owns: state that only it changes.
        reads: what it is given.
        never_sees: what it has no way to reach.
    """

    worker: str
    owns: str
    reads: str
    never_sees: str


OWNERSHIP: tuple[Ownership, ...] = (
    Ownership(
        "rollout",
        "harness, episode state, journal, sealed transcripts, admission and staleness state",
        "tasks, sampled segments, receipts, verdicts",
        "answers, grader evidence before a verdict, optimizer state",
    ),
    Ownership(
        "inference",
        "its copies of committed weights, key-value cache, the version stamp of every token it samples",
        "token prefixes, staged weights by address",
        "tasks as text, answers, verdicts, rewards, the journal",
    ),
    Ownership(
        "environment",
        "processes and files of its sandboxes, receipts",
        "actions with a lease",
        "network, host files, answers, verdicts, weights, the journal",
    ),
    Ownership(
        "grader",
        "answers, evidence, the right to write verdicts",
        "the task, the final text and the artifact, copied out",
        "weights, other transcripts, the environment while it runs, the journal",
    ),
    Ownership(
        "trainer",
        "parameters, optimizer, random state, the weights files it writes",
        "batch plans, sealed transcripts by address (read-only)",
        "answers, environments, task text",
    ),
)


def lifecycle_markdown() -> str:
    """The generated document: stages with their records and events, transitions, ownership."""
    lines = [
        "# Life of one task",
        "",
        "Made by `make schema` from `headrace/lifecycle.py`; a test checks that it is current.",
        "",
        "| # | stage | record | events | owner | where | then |",
        "|---|---|---|---|---|---|---|",
    ]
    for number, stage in enumerate(STAGES, start=1):
        events = ", ".join(f"`{event.__name__}`" for event in stage.events) or "–"
        then = ", ".join(stage.next)
        lines.append(
            f"| {number} | {stage.name} | {_names(stage.record)} | {events} | {stage.owner} | `{stage.verb}` | {then} |"
        )
    lines += [
        "",
        "It is a loop: observations feed the harness, published weights feed inference. One trajectory holds many",
        "inference calls and many actions; a request is never a sample.",
        "",
        "## Who owns what",
        "",
        "| worker | owns | reads | never sees |",
        "|---|---|---|---|",
    ]
    lines += [f"| {o.worker} | {o.owns} | {o.reads} | {o.never_sees} |" for o in OWNERSHIP]
    return "\n".join(lines) + "\n"


def _names(record: type | UnionType) -> str:
    members = record.__args__ if isinstance(record, UnionType) else (record,)
    return ", ".join(f"`{member.__name__}`" for member in members)
