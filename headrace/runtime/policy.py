"""How version 0 comes about: a folder that is given, or a warm start on the spot, cached by content.

Invariant: a cached folder is named by everything that it depends on, and appears whole or not at all.
"""

import contextlib
import hashlib
import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.config import Config, Section, decode_options
from headrace.errors import ConfigError
from headrace.harness import WritingHarness
from headrace.processes.child import Child
from headrace.records.provenance import canonical_bytes, content_version
from headrace.runtime.folders import cache_folder
from headrace.runtime.parts import part_files
from headrace.runtime.workers.settings import ConversionJob, WarmStartJob, command
from headrace.tasks.demonstrations import Sloppiness
from headrace.training.warm_settings import WarmStartSettings

WARM_START_TIMEOUT_S = 3600.0
CONVERSION_TIMEOUT_S = 1800.0


class WarmStartState(msgspec.Struct, frozen=True):
    """Progress of a warm start.

    Attributes:
        step: optimizer steps done.
        steps: steps in all; 0 when the policy came from the cache.
        loss: mean negative log-prob of a demonstrated token at this step, in nats.
        tokens: tokens seen so far.
    """

    step: int
    steps: int
    loss: float
    tokens: int


WarmStartReport = Callable[[WarmStartState], None]


class FolderOptions(Section, frozen=True):
    """Attributes:
    path: a Hugging Face folder with `config.json` and `model.safetensors`.
    """

    path: str


class GgufOptions(Section, frozen=True):
    """A GGUF file, converted once to a Hugging Face folder in the cache.

    Attributes:
        file: its path; with `package` its name among that package's files.
        package: an installed package that ships it.
    """

    file: str
    package: str = ""


class WarmStartOptions(Section, frozen=True):
    """A small model, fine-tuned on generated, deliberately sloppy demonstrations.

    Attributes:
        model: Hugging Face configuration; the vocabulary size is the tokenizer's.
        demonstrations: number of demonstrations.
        sloppiness: shares of what goes wrong in them, by name; see `headrace.tasks.demonstrations`.
        settings: how to fine-tune; see `headrace.training.warm_start`.
        seed: of demonstrations, initialisation and order; None takes the run's.
    """

    model: dict[str, Any]
    demonstrations: int
    sloppiness: Sloppiness = Sloppiness()
    settings: WarmStartSettings = WarmStartSettings()
    seed: int | None = None


async def given_policy(config: Config) -> Path | None:
    """Folder of a version 0 that exists already, whose tokenizer the harness goes by; None when it has to be trained first.

    Raises:
        ConfigError: when there is no such folder or file, or the kind is unknown.
        ProcessError: when a conversion failed.
    """
    match config.policy.kind:
        case "folder":
            path = Path(decode_options(config.policy.options, FolderOptions, "policy.options").path)
            if not (path / "config.json").is_file():
                raise ConfigError(f"policy.options.path is {path}; a folder with config.json is needed")
            return path
        case "gguf":
            return await _converted(decode_options(config.policy.options, GgufOptions, "policy.options"))
        case "warm_start":
            return None
        case kind:
            raise ConfigError(f"policy.kind is {kind!r}; it must be `warm_start`, `folder` or `gguf`")


async def prepare_policy(config: Config, harness: WritingHarness, report: WarmStartReport) -> Path:
    """Folder of version 0. Raises as `given_policy`, and ProcessError when a warm start failed."""
    return await given_policy(config) or await _warm_start(config, harness, report)


def tokenizer_folder(policy: Path | None) -> Path | None:
    """The folder, if it has a tokenizer of its own."""
    return policy if policy is not None and (policy / "tokenizer.json").is_file() else None


async def _converted(options: GgufOptions) -> Path:
    """The cached folder of a GGUF file. Raises ConfigError, or ProcessError when the conversion failed."""
    source = _gguf_file(options)
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    name = content_version(digest, (Path(__file__).parent.parent / "training" / "gguf.py").read_bytes())
    target = cache_folder() / "policies" / name
    if (target / "model.safetensors").is_file():
        return target
    with _making(target) as out:
        child = await Child.start(
            "convert", command("convert", ConversionJob(str(source), str(out))), start_timeout_s=120.0
        )
        try:
            await child.call("run", b"", timeout_s=CONVERSION_TIMEOUT_S)
        finally:
            await child.close()
    return target


def _gguf_file(options: GgufOptions) -> Path:
    if not options.package:
        path = Path(options.file)
    else:
        found = importlib.util.find_spec(options.package)
        if found is None or not found.submodule_search_locations:
            raise ConfigError(
                f"policy.options.package is {options.package!r}, which is not installed; see the README beside the "
                "configuration for the one line that installs it"
            )
        path = Path(found.submodule_search_locations[0]) / options.file
    if not path.is_file():
        raise ConfigError(f"policy.options.file: {path} does not exist; name a GGUF file")
    return path


@contextlib.contextmanager
def _making(target: Path) -> Iterator[Path]:
    """A folder to make, which becomes `target` once it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="making-") as making:
        out = Path(making) / "policy"
        yield out
        if not target.exists():
            shutil.move(out, target)


async def _warm_start(config: Config, harness: WritingHarness, report: WarmStartReport) -> Path:
    options = decode_options(config.policy.options, WarmStartOptions, "policy.options")
    name = content_version(
        canonical_bytes((options, options.seed if options.seed is not None else config.run.seed)),
        canonical_bytes((config.tasks, config.budget, config.harness)),
        harness.version,
        *(path.read_bytes() for path in _sources()),
        *(path.read_bytes() for path in (*part_files(config.tasks.options), *part_files(config.environment.options))),
    )
    target = cache_folder() / "policies" / name
    if (target / "model.safetensors").is_file():
        report(WarmStartState(0, 0, 0.0, 0))
        return target
    with _making(target) as out:
        argv = command("warm_start", WarmStartJob(config, str(out)))
        child = await Child.start("warm start", argv, start_timeout_s=120.0)
        try:
            async for item in child.stream("run", b"", timeout_s=WARM_START_TIMEOUT_S):
                report(msgspec.msgpack.decode(item, type=WarmStartState))
        finally:
            await child.close()
    return target


def _sources() -> list[Path]:
    """Code that a warm start depends on besides the harness."""
    root = Path(__file__).parent.parent
    return [
        root / "tasks" / "demonstrations.py",
        root / "tasks" / "families.py",
        root / "tasks" / "reasoning_gym.py",
        *(
            root / "training" / f"{name}.py"
            for name in ("initialization", "packing", "policy", "warm_settings", "warm_start", "weights")
        ),
        root / "environments" / "calculator.py",
        root / "runtime" / "demonstrating.py",
    ]
