"""Generated documents: `python -m headrace.documents DIR` writes the lifecycle table and the JSON Schemas.

Invariant: what stands in `docs/` is what the code says; a test compares them.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from headrace.config import Config
from headrace.lifecycle import lifecycle_markdown
from headrace.records.batch import BatchPlan, TrainingBatch
from headrace.records.events import Event
from headrace.records.segment import GenerateRequest
from headrace.records.task import Task
from headrace.records.trajectory import SideRecord, Transcript
from headrace.records.verdict import Submission, Verdict

_RECORDS: dict[str, type] = {
    "task": Task,
    "generate_request": GenerateRequest,
    "transcript": Transcript,
    "side_record": SideRecord,
    "submission": Submission,
    "verdict": Verdict,
    "batch_plan": BatchPlan,
    "event": Event,
    "config": Config,
}


def documents() -> dict[str, str]:
    """Text of every generated document by its path below `docs/`."""
    made = {"lifecycle.md": lifecycle_markdown()}
    for name, record in _RECORDS.items():
        made[f"schema/{name}.json"] = _json(msgspec.json.schema(record))
    made["schema/training_batch.json"] = _json(_batch_schema())
    return made


def _batch_schema() -> dict[str, Any]:
    """Named dimensions and types of the training batch's arrays, and its non-tensor fields."""
    described = _attributes(TrainingBatch.__doc__ or "")
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(TrainingBatch):
        _, _, dimensions = field.name.rpartition("_")
        is_array = dimensions in {"B", "BT"}
        fields[field.name] = {
            "dimensions": list(dimensions) if is_array else ["B"],
            "kind": "tensor" if is_array else "non-tensor",
            "description": described[field.name],
        }
    legend = {"B": "rows of the batch", "T": "tokens of the longest row"}
    return {"title": "TrainingBatch", "dimensions": legend, "fields": fields}


def _attributes(docstring: str) -> dict[str, str]:
    """Descriptions of a Google-style `Attributes:` section by name."""
    described: dict[str, str] = {}
    name = ""
    for line in docstring.partition("Attributes:")[2].splitlines():
        text = line.strip()
        head, colon, tail = text.partition(": ")
        if colon and head.isidentifier():
            name = head
            described[name] = tail
        elif name and text:
            described[name] += f" {text}"
    return described


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def main(folder: Path) -> None:
    """Writes every document below the folder."""
    for path, text in documents().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
