"""How version 0 comes about: a folder that is given, or a warm start on the spot, cached by content.

Invariant: a cached folder is named by everything that it depends on, and appears whole or not at all.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headrace.config import Config, Section, decode_options
from headrace.errors import ConfigError
from headrace.harness import ChatMLHarness
from headrace.processes.child import Child
from headrace.records.provenance import canonical_bytes, content_version
from headrace.runtime.folders import cache_folder
from headrace.runtime.parts import part_files
from headrace.runtime.workers.settings import WarmStartJob, command
from headrace.tasks.demonstrations import Sloppiness
from headrace.training.warm_start import WarmStartSettings

WARM_START_TIMEOUT_S = 3600.0


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


async def prepare_policy(config: Config, harness: ChatMLHarness, report: WarmStartReport) -> Path:
    """Folder of version 0.

    Raises:
        ConfigError: when the folder given is none, or the kind is unknown.
        ProcessError: when the warm start failed.
    """
    match config.policy.kind:
        case "folder":
            path = Path(decode_options(config.policy.options, FolderOptions, "policy.options").path)
            if not (path / "config.json").is_file():
                raise ConfigError(f"policy.options.path is {path}; a folder with config.json is needed")
            return path
        case "warm_start":
            return await _warm_start(config, harness, report)
        case kind:
            raise ConfigError(f"policy.kind is {kind!r}; it must be `warm_start` or `folder`")


async def _warm_start(config: Config, harness: ChatMLHarness, report: WarmStartReport) -> Path:
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
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="making-") as making:
        out = Path(making) / "policy"
        argv = command("warm_start", WarmStartJob(config, str(out)))
        child = await Child.start("warm start", argv, start_timeout_s=120.0)
        try:
            async for item in child.stream("run", b"", timeout_s=WARM_START_TIMEOUT_S):
                report(msgspec.msgpack.decode(item, type=WarmStartState))
        finally:
            await child.close()
        if not target.exists():
            shutil.move(out, target)
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
            for name in ("initialization", "packing", "policy", "warm_start", "weights")
        ),
        root / "environments" / "calculator.py",
        root / "runtime" / "demonstrating.py",
    ]
