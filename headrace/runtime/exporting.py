"""`headrace export`: sealed trajectories for other tools.

Invariant: nothing is computed that the journal does not hold. Absent stays absent: a missing reward is null and never 0, and
a token that nobody sampled has mask 0.

Parquet: one row for each path of a sealed attempt on which the policy sampled, the first path at least; an attempt that
forked has several, with one reward. The token fields carry the names of verl's agent-loop output: `prompt_ids` is everything
before the first token sampled on the path, `response_ids` the rest, `response_mask` 1 where the policy sampled it there,
`response_logprobs` 0.0 where it did not, `num_turns` user, assistant and tool turns of the attempt.

ATIF: JSON lines, one Agent Trajectory Interchange Format document each, version 1.4.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace import __version__
from headrace.errors import ConfigError
from headrace.harness.codec import TextCodec
from headrace.records.arrays import FloatArray, IntArray
from headrace.records.reward import RewardRule, reward_of
from headrace.records.segment import Origin, TokenSegment
from headrace.records.task import Task
from headrace.records.terminal import terminal_name
from headrace.records.trajectory import ActionOutcome, SideRecord, Transcript, TranscriptSealed
from headrace.records.verdict import Scored, Unscored, Verdict, VerdictSealed
from headrace.runtime.models import export_model, open_model, run_config
from headrace.store.reader import JournalReader, open_reader

BATCH_ROWS = 256
ATIF_VERSION = "ATIF-v1.4"


class Trajectory(msgspec.Struct, frozen=True):
    """One sealed attempt, with what belongs to it.

    Attributes:
        task: what was asked.
        transcript: the sealed record.
        side: times and metering.
        verdict: the one that counts; None while there is none.
        reward: None when there is no score.
    """

    task: Task
    transcript: Transcript
    side: SideRecord
    verdict: Verdict | None
    reward: float | None


def export_trajectories(run: Path, kind: str, purpose: str | None, out: Path | None) -> str:
    """Writes the file; what was written, in one line. Raises ConfigError."""
    file = out or run / ("trajectories.parquet" if kind == "parquet" else "trajectories.atif.jsonl")
    file.parent.mkdir(parents=True, exist_ok=True)
    written = (export_parquet if kind == "parquet" else export_atif)(run, file, purpose)
    dropped = _num_dropped(run, purpose)
    told = f"; {dropped} more were dropped by `headrace compact`, only a copy of the run from before has them"
    return f"{written} trajectories of {run} in {file}, {file.stat().st_size} bytes{told if dropped else ''}"


def export_model_to(name: str, runs: Path, out: Path | None) -> str:
    """Writes the model's folder; what was written, in one line. Raises ConfigError."""
    with tempfile.TemporaryDirectory(prefix="headrace-export-") as scratch:
        model = open_model(name, runs, Path(scratch))
        folder = out or model.folder / f"model-{model.policy.version}"
        files = export_model(model, folder)
    return f"{model.name} in {folder}: {', '.join(file.name for file in files)}"


def export_parquet(run: Path, file: Path, purpose: str | None) -> int:
    """Writes the rows; of how many attempts.

    Raises:
        ConfigError: when pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError("Parquet needs pyarrow; pip install 'headrace[export]'") from error
    schema, written, batch = _schema(pa), 0, list[dict[str, Any]]()
    with open_reader(run) as reader, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for trajectory in trajectories(reader, run, purpose):
            batch += parquet_rows(trajectory)
            written += 1
            if len(batch) >= BATCH_ROWS:
                writer.write_table(pa.Table.from_pylist(batch, schema))
                batch.clear()
        writer.write_table(pa.Table.from_pylist(batch, schema))
    return written


def export_atif(run: Path, file: Path, purpose: str | None) -> int:
    """Writes the documents as JSON lines; how many."""
    written, codec = 0, TextCodec.from_folder(run)
    with open_reader(run) as reader, file.open("w", encoding="utf-8") as out:
        for trajectory in trajectories(reader, run, purpose):
            out.write(json.dumps(atif(trajectory, codec), ensure_ascii=False) + "\n")
            written += 1
    return written


def trajectories(reader: JournalReader, run: Path, purpose: str | None) -> Iterator[Trajectory]:
    """Every sealed attempt that no compaction dropped in the order of sealing; of one purpose, if it is named."""
    rule = RewardRule(run_config(reader, run).algorithm.reward_rule)
    verdicts: dict[str, Verdict] = {}
    for event in reader.events_of_kind("verdict_sealed"):
        if isinstance(event.payload, VerdictSealed):
            verdict = msgspec.msgpack.decode(reader.read(event.payload.verdict), type=Verdict)
            first = verdicts.get(verdict.transcript)
            if first is None or (isinstance(first.outcome, Unscored) and isinstance(verdict.outcome, Scored)):
                verdicts[verdict.transcript] = verdict
    drops = reader.drops()
    for sealed in _sealed(reader, purpose):
        if sealed.transcript in drops:
            continue
        verdict = verdicts.get(sealed.transcript)
        yield Trajectory(
            msgspec.msgpack.decode(reader.read(sealed.task), type=Task),
            msgspec.msgpack.decode(reader.read(sealed.transcript), type=Transcript),
            msgspec.msgpack.decode(reader.read(sealed.side), type=SideRecord),
            verdict,
            reward_of(verdict, rule),
        )


def _sealed(reader: JournalReader, purpose: str | None) -> Iterator[TranscriptSealed]:
    for event in reader.events_of_kind("transcript_sealed"):
        if isinstance(event.payload, TranscriptSealed) and (not purpose or event.key.startswith(f"{purpose}.")):
            yield event.payload


def _num_dropped(run: Path, purpose: str | None) -> int:
    with open_reader(run) as reader:
        drops = reader.drops()
        return sum(sealed.transcript in drops for sealed in _sealed(reader, purpose))


def parquet_rows(trajectory: Trajectory) -> list[dict[str, Any]]:
    """A row for each path with sampled tokens of its own; one for the first when there is none."""
    return [_parquet_row(trajectory, path) for path in trajectory.transcript.sampled_paths or (0,)]


def _parquet_row(trajectory: Trajectory, path: int) -> dict[str, Any]:
    transcript, task, side, verdict = trajectory.transcript, trajectory.task, trajectory.side, trajectory.verdict
    episode, segments, own = transcript.episode, transcript.sequence(path), transcript.own_start(path)
    sampled = [i for i, segment in enumerate(segments) if i >= own and segment.origin is Origin.POLICY]
    cut = sampled[0] if sampled else len(segments)
    scores = dict(verdict.outcome.components) if verdict and isinstance(verdict.outcome, Scored) else {}
    unscored = verdict.outcome if verdict and isinstance(verdict.outcome, Unscored) else None
    calls = len({(outcome.action.id.step) for outcome in transcript.actions})
    return {
        "episode": str(episode),
        "purpose": episode.group.purpose,
        "ordinal": episode.group.ordinal,
        "member": episode.member,
        "attempt": episode.attempt,
        "path": path,
        "family": task.family,
        "difficulty": task.difficulty,
        "question": task.question,
        "prompt_ids": _ids(segments[:cut]),
        "response_ids": _ids(segments[cut:]),
        "response_mask": _mask(segments[cut:]),
        "response_logprobs": _logprobs(segments[cut:]),
        "response_versions": _versions(segments[cut:]),
        "reward_score": trajectory.reward,
        "num_turns": 1 + side.turns + calls,
        "metrics": {
            "generate_sequences": side.generate_s,
            "tool_calls": side.tool_s,
            "num_preempted": side.preemptions,
            "service_s": side.service_s,
            "wait_s": side.wait_s,
            "wall_s": side.wall_s,
            "environment_cpu_s": side.metering.cpu_s,
        },
        "extra_fields": {
            "terminal": terminal_name(transcript.terminal),
            "final_text": transcript.final_text,
            "scores": [{"name": name, "value": value} for name, value in scores.items()],
            "unscored": unscored.cause.value if unscored else None,
            "num_paths": len(transcript.paths),
            "limits_hit": [limit.value for limit in transcript.limits_hit],
        },
        "transcript": transcript.address,
        "task_version": transcript.provenance.task,
        "policy_versions": [policy.weights for policy in transcript.provenance.policies],
        "harness_version": transcript.provenance.harness,
        "environment_version": transcript.provenance.environment,
        "grader_version": verdict.grader if verdict else None,
    }


def atif(trajectory: Trajectory, codec: TextCodec) -> dict[str, Any]:
    """One ATIF document: the question, then a step for each policy turn with its calls and what came of them."""
    transcript = trajectory.transcript
    steps: list[dict[str, Any]] = [{"step_id": 1, "source": "user", "message": trajectory.task.question}]
    by_step: dict[int, list[ActionOutcome]] = {}
    for outcome in transcript.actions:
        by_step.setdefault(outcome.action.id.step, []).append(outcome)
    for number, (prefix, turn) in enumerate(_turns(transcript)):
        steps.append(_atif_step(len(steps) + 1, prefix, turn, outcomes=by_step.get(number, []), codec=codec))
    policies = transcript.provenance.policies
    verdict = trajectory.verdict
    return {
        "schema_version": ATIF_VERSION,
        "session_id": str(transcript.episode),
        "agent": {
            "name": "headrace",
            "version": __version__,
            **({"model_name": f"{policies[-1].policy_id}@{policies[-1].version}"} if policies else {}),
        },
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": sum(step["metrics"]["prompt_tokens"] for step in steps[1:]),
            "total_completion_tokens": transcript.num_sampled_tokens,
            "total_steps": len(steps),
        },
        "extra": {
            "reward": trajectory.reward,
            "terminal": terminal_name(transcript.terminal),
            "evidence": verdict.outcome.evidence if verdict and isinstance(verdict.outcome, Scored) else None,
            "transcript": transcript.address,
            "provenance": msgspec.to_builtins(transcript.provenance),
        },
    }


def _turns(transcript: Transcript) -> Iterator[tuple[list[TokenSegment], list[TokenSegment]]]:
    """(what stood before it, its segments) of each policy turn, over all paths."""
    for index, path in enumerate(transcript.paths):
        prefix = list(transcript.sequence(index)[: transcript.own_start(index)])
        turn: list[TokenSegment] = []
        for segment in path.segments:
            if segment.origin is not Origin.POLICY:
                prefix.append(segment)
                continue
            turn.append(segment)
            if segment.finish is not None:
                yield prefix, turn
                prefix, turn = [*prefix, *turn], []


def _atif_step(
    step_id: int,
    prefix: list[TokenSegment],
    turn: list[TokenSegment],
    *,
    outcomes: list[ActionOutcome],
    codec: TextCodec,
) -> dict[str, Any]:
    prompt_ids, ids = _ids(prefix), _ids(turn)
    step: dict[str, Any] = {
        "step_id": step_id,
        "source": "agent",
        "message": codec.decode(ids.tolist()),
        "metrics": {
            "prompt_tokens": len(prompt_ids),
            "completion_tokens": len(ids),
            "prompt_token_ids": prompt_ids.tolist(),
            "completion_token_ids": ids.tolist(),
            "logprobs": _logprobs(turn).tolist(),
        },
    }
    if outcomes:
        step["tool_calls"] = [
            {
                "tool_call_id": str(outcome.action.id),
                "function_name": outcome.action.tool,
                "arguments": json.loads(outcome.action.arguments),
            }
            for outcome in outcomes
        ]
        step["observation"] = {
            "results": [
                {"source_call_id": str(outcome.action.id), "content": outcome.output.decode("utf-8", "replace")}
                for outcome in outcomes
            ]
        }
    return step


def _ids(segments: "list[TokenSegment] | tuple[TokenSegment, ...]") -> IntArray:
    return np.concatenate([segment.ids_T for segment in segments]) if segments else np.zeros(0, np.int32)


def _mask(segments: tuple[TokenSegment, ...]) -> np.ndarray[Any, np.dtype[np.int8]]:
    parts = [np.full(len(segment), segment.origin is Origin.POLICY, np.int8) for segment in segments]
    return np.concatenate(parts) if parts else np.zeros(0, np.int8)


def _logprobs(segments: "list[TokenSegment] | tuple[TokenSegment, ...]") -> FloatArray:
    parts = [
        np.zeros(len(segment), np.float32) if segment.behavior_logprobs_T is None else segment.behavior_logprobs_T
        for segment in segments
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _versions(segments: tuple[TokenSegment, ...]) -> IntArray:
    """The policy version of each response token; -1 where nobody sampled."""
    parts = [np.full(len(s), -1 if s.policy is None else s.policy.version, np.int32) for s in segments]
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def _schema(pa: Any) -> Any:
    """The Parquet schema; every column is named and typed, so that an empty run has the same one."""
    ids, text, number = pa.list_(pa.int32()), pa.string(), pa.float64()
    metrics = [(name, number) for name in ("generate_sequences", "tool_calls", "wait_s", "wall_s", "environment_cpu_s")]
    return pa.schema(
        [
            *((name, text) for name in ("episode", "purpose")),
            *((name, pa.int64()) for name in ("ordinal", "member", "attempt", "path")),
            *((name, text) for name in ("family", "difficulty", "question")),
            ("prompt_ids", ids),
            ("response_ids", ids),
            ("response_mask", pa.list_(pa.int8())),
            ("response_logprobs", pa.list_(pa.float32())),
            ("response_versions", ids),
            ("reward_score", number),
            ("num_turns", pa.int64()),
            ("metrics", pa.struct([*metrics, ("num_preempted", pa.int64())])),
            (
                "extra_fields",
                pa.struct(
                    [
                        ("terminal", text),
                        ("final_text", text),
                        ("scores", pa.list_(pa.struct([("name", text), ("value", number)]))),
                        ("unscored", text),
                        ("num_paths", pa.int64()),
                        ("limits_hit", pa.list_(text)),
                    ]
                ),
            ),
            *((name, text) for name in ("transcript", "task_version")),
            ("policy_versions", pa.list_(text)),
            *((name, text) for name in ("harness_version", "environment_version", "grader_version")),
        ]
    )
