"""Looks at every stored transcript once more with the harness that made it: what `verify` adds to the bytes."""

from pathlib import Path

import msgspec

from headrace.config import Config, decode_options
from headrace.environments.sandbox.options import SandboxOptions
from headrace.environments.tools import SCHEMAS
from headrace.errors import ConfigError, HeadraceError, IntegrityError
from headrace.harness import WritingHarness
from headrace.records.run import RunStarted
from headrace.records.trajectory import Transcript
from headrace.runtime.adapters import open_harness
from headrace.store.reader import JournalReader, open_reader


class NotJudged(HeadraceError):
    """The run's transcripts are none that a harness of ours can judge; nothing is wrong with that."""


def judge_transcripts(run: Path) -> tuple[list[str], str]:
    """(problems, how many transcripts were judged and why others were not)."""
    problems: list[str] = []
    num_judged = num_other = 0
    with open_reader(run) as reader:
        try:
            harness = _harness_of(reader, run)
        except NotJudged as reason:
            return [], f"no transcript was judged by its harness: {reason}"
        except HeadraceError as error:
            return [f"harness: {error}"], "no transcript was judged by its harness"
        for stored in reader.stored_rows():
            if stored.kind != "transcript":
                continue
            try:
                transcript = msgspec.msgpack.decode(stored.data, type=Transcript)
            except (msgspec.DecodeError, ValueError):
                continue  # the row itself is reported where bytes are checked
            if transcript.provenance.harness != harness.version:
                num_other += 1
                continue
            num_judged += 1
            try:
                harness.check(transcript)
            except IntegrityError as error:
                problems.append(f"transcript {stored.address}: {error}")
    others = f", {num_other} are of another harness version" if num_other else ""
    return problems, f"{num_judged} transcripts judged by their harness{others}"


def _harness_of(reader: JournalReader, run: Path) -> WritingHarness:
    """The harness of the run's stored configuration. Raises HeadraceError when there is none."""
    started = next((e.payload for e in reader.events() if isinstance(e.payload, RunStarted)), None)
    if started is None:
        raise ConfigError("the run never started")
    try:
        config = msgspec.msgpack.decode(reader.read(started.config), type=Config)
    except (KeyError, msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"its configuration cannot be read: {error}") from error
    if config.environment.kind != "sandbox":
        raise NotJudged(f"environment.kind is {config.environment.kind!r}")
    options = decode_options(config.environment.options, SandboxOptions, "environment.options")
    folder = run if (run / "tokenizer.json").is_file() else None
    return open_harness(config, tuple(SCHEMAS[name] for name in options.tools), folder)
