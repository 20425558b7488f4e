"""Which stored bytes an event or a row names: the edges along which verification looks up, repair reaches and a sweep marks.

Invariant: whatever a reader of the run may look up by address is named here, so what nothing names can go.
"""

from typing import Any

import msgspec

from headrace.config import Config
from headrace.records.action import ActionCommitted
from headrace.records.batch import BatchPlan, BatchPlanned, GroupClosed
from headrace.records.compaction import DropList, RunCompacted
from headrace.records.events import Event
from headrace.records.execution import StoredReceipt
from headrace.records.ids import Address
from headrace.records.run import RunStarted
from headrace.records.task import Task, TaskDrawn
from headrace.records.trajectory import EpisodeStarted, SideRecord, Transcript, TranscriptSealed
from headrace.records.verdict import Verdict, VerdictDisputed, VerdictSealed

ROW_TYPES: dict[str, Any] = {
    "artifact": bytes,
    "compaction": DropList,
    "config": Config,
    "plan": BatchPlan,
    "receipt": StoredReceipt,
    "side": SideRecord,
    "task": Task,
    "transcript": Transcript,
    "verdict": Verdict,
}
"""What the rows of each kind decode to."""

Named = list[tuple[str, Address]]
"""Addresses, each with what it is to whoever names it."""


def named_by_event(event: Event) -> Named:
    """Rows that the event names. Weights and files of checkpoints are blobs, and not among them."""
    found: list[tuple[str, Address | None]] = []
    match event.payload:
        case RunStarted(config=config):
            found = [("config", config)]
        case TaskDrawn(task=task) | EpisodeStarted(task=task):
            found = [("task", task)]
        case ActionCommitted(receipt=receipt):
            found = [("receipt", receipt)]
        case TranscriptSealed(transcript=transcript, side=side, task=task):
            found = [("transcript", transcript), ("side record", side), ("task", task)]
        case VerdictSealed(transcript=transcript, verdict=verdict):
            found = [("transcript", transcript), ("verdict", verdict)]
        case VerdictDisputed(transcript=transcript, first=first, second=second):
            found = [("transcript", transcript), ("first verdict", first), ("second verdict", second)]
        case GroupClosed(members=members):
            found = [("member transcript", item.transcript) for item in members]
            found += [("member verdict", item.verdict) for item in members]
        case BatchPlanned(plan=plan):
            found = [("plan", plan)]
        case RunCompacted(lists=lists):
            found = [("compaction", address) for address in lists]
        case _:
            pass
    return [(role, address) for role, address in found if address is not None]


def named_by_row(record: object) -> Named:
    """Rows and blobs that the record of a row names."""
    match record:
        case Transcript(task=task, artifact=artifact, paths=paths):
            found: Named = [("task", task)]
            found += [] if artifact is None else [("artifact", artifact)]
            attachments = (item for path in paths for segment in path.segments for item in segment.attachments)
            return found + [("attachment", item.blob) for item in attachments]
        case Verdict(transcript=transcript):
            return [("graded transcript", transcript)]
        case SideRecord(transcript=transcript):
            return [("transcript", transcript)]
        case BatchPlan(rows=rows):
            return [("planned transcript", row.transcript) for row in rows]
        case _:
            return []


def decode_row(kind: str, data: bytes) -> object:
    """The record of a row.

    Raises:
        ValueError: when the kind is unknown or the bytes are no record of it.
    """
    known = ROW_TYPES.get(kind)
    if known is None:
        raise ValueError(f"kind {kind!r} is none of {', '.join(ROW_TYPES)}")
    try:
        return msgspec.msgpack.decode(data, type=known)
    except (msgspec.DecodeError, ValueError) as error:
        raise ValueError(f"cannot be decoded: {error}") from error
