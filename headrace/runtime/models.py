"""A model by name: a version of a run, or a Hugging Face folder; and a version of a run as such a folder.

Invariant: weights are named by the SHA-256 of their bytes, whichever way they came.
"""

import dataclasses
import shutil
from pathlib import Path

import msgspec

from headrace.config import Config
from headrace.errors import ConfigError
from headrace.records.ids import Address, PolicyId
from headrace.records.provenance import PolicyVersion
from headrace.records.run import RunStarted
from headrace.records.update import WeightsCommitted
from headrace.runtime.folders import BLOBS, find_run
from headrace.store.blobs import FileBlobs
from headrace.store.kept import ranges
from headrace.store.reader import JournalReader, open_reader

MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
"""What a model folder holds beside its weights; each is kept where the policy has it."""


@dataclasses.dataclass(frozen=True)
class Model:
    """Weights that an engine can serve.

    Attributes:
        name: for people.
        policy: version and address of the weights.
        folder: holds `config.json`, and `tokenizer.json` where there is one.
        blobs: folder of weights by content address.
    """

    name: str
    policy: PolicyVersion
    folder: Path
    blobs: Path


def open_model(name: str, runs: Path, scratch: Path) -> Model:
    """The model `run`, `run@version` or a Hugging Face folder, whose weights are brought into `scratch`.

    Raises:
        ConfigError: when there is none of that name, or the run has no such version.
    """
    folder, separator, version = name.rpartition("@")
    if not separator:
        folder, version = name, ""
    if (Path(name) / "config.json").is_file() and not (Path(name) / "journal.db").is_file():
        return _of_folder(Path(name), scratch)
    if version and not version.isdigit():
        raise ConfigError(f"model {name!r}: version {version!r} is no number; write RUN@VERSION, such as run-001@20")
    return _of_run(find_run(runs, folder), int(version) if version else None)


def run_config(reader: JournalReader, run: Path) -> Config:
    """The configuration that a run recorded. Raises ConfigError when it recorded none."""
    for event in reader.events_of_kind("run_started"):
        if isinstance(event.payload, RunStarted):
            return msgspec.msgpack.decode(reader.read(event.payload.config), type=Config)
    raise ConfigError(f"{run} has no start in its journal; it never began")


def keep_model_files(policy: Path, folder: Path) -> None:
    """Copies what a model folder needs beside its weights into a run's folder."""
    for file in MODEL_FILES:
        if (policy / file).is_file():
            shutil.copy(policy / file, folder / file)


def export_model(model: Model, out: Path) -> list[Path]:
    """Writes a folder that `transformers` loads; the files.

    Raises:
        ConfigError: when the folder exists and is not empty.
    """
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} exists and is not empty; name another --out")
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(FileBlobs(model.blobs).path(model.policy.weights), out / "model.safetensors")
    keep_model_files(model.folder, out)
    if (out / "tokenizer.json").is_file() and not (out / "tokenizer_config.json").is_file():
        text = msgspec.json.format(msgspec.json.encode({"tokenizer_class": "PreTrainedTokenizerFast"}))
        (out / "tokenizer_config.json").write_bytes(text)
    return sorted(out.iterdir())


def _of_run(run: Path, version: int | None) -> Model:
    if not (run / "config.json").is_file():
        raise ConfigError(f"{run} keeps no config.json of its model; it was made by an older version, train it again")
    with open_reader(run) as reader:
        committed = {
            event.payload.policy.version: event.payload
            for event in reader.events_of_kind("weights_committed")
            if isinstance(event.payload, WeightsCommitted)
        }
    chosen = max(committed, default=None) if version is None else version
    if chosen is None or chosen not in committed:
        raise ConfigError(f"{run} has no version {version}; it has {ranges(committed)}")
    found = committed[chosen]
    blobs = run / BLOBS
    try:
        FileBlobs(blobs).path(found.weights)
    except KeyError as error:
        raise ConfigError(
            f"{run}: the weights of version {chosen} are gone, {blobs} lacks {found.weights}; `headrace verify` names those "
            "of which versions are, checkpoint.keep_every keeps some for good"
        ) from error
    policy = PolicyVersion(found.policy.policy_id, chosen, found.weights)
    return Model(f"{run.name}@{chosen}", policy, run, blobs)


def _of_folder(folder: Path, scratch: Path) -> Model:
    from headrace.training.policy import Policy
    from headrace.training.weights import weights_bytes

    weights: Address = FileBlobs(scratch).put(weights_bytes(Policy.load(folder).model))
    return Model(str(folder), PolicyVersion(PolicyId("policy"), 0, weights), folder, scratch)
