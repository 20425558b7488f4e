"""Which engine an `inference.kind` stands for, and how its child is started.

Invariant: a kind that is not known is a `ConfigError` that lists the known ones; options are checked before anything starts.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Protocol

from headrace.config import AdapterSection, decode_options
from headrace.control.publishing import WORKER
from headrace.errors import ConfigError
from headrace.inference.options import EngineOptions
from headrace.inference.vllm.options import VllmOptions
from headrace.processes.child import Child
from headrace.runtime.workers.settings import EngineSettings, command

_START_TIMEOUT_S = 120.0


class SlotOptions(Protocol):
    """What options of every engine say about its size."""

    @property
    def slots(self) -> int:
        """Sequences at the same time."""
        ...

    @property
    def context(self) -> int:
        """Largest prefix + max_tokens of a request."""
        ...

    @property
    def dtype(self) -> str:
        """Of weights and cache."""
        ...

    @property
    def cache_bound(self) -> str:
        """The option that the size of the cache is proportional to."""
        ...

    def cache_bytes(self, position_bytes: int) -> int:
        """Size of the cache, where a token's keys and values take so much."""
        ...


@dataclasses.dataclass(frozen=True)
class Engine:
    """A configured engine.

    Attributes:
        section: its part of the configuration.
        options: its options, checked.
        python: interpreter of its child.
        module: its worker.
        start_timeout_s: how long its child may take until it says hello.
        holds_one_version: whether it serves a single version at a time.
    """

    section: AdapterSection
    options: SlotOptions
    python: str
    module: str
    start_timeout_s: float
    holds_one_version: bool

    async def start(self, policy: Path, blobs: Path) -> Child:
        """Its child, once it has said hello. Raises ProcessError."""
        settings = EngineSettings(self.section.options, str(policy), str(blobs))
        argv = [self.python, *command(self.module, settings)[1:]]
        env = {"OMP_NUM_THREADS": "1"}
        return await Child.start(WORKER, argv, start_timeout_s=self.start_timeout_s, env=env)


def open_engine(section: AdapterSection) -> Engine:
    """The engine of a configuration. Raises ConfigError."""
    if section.kind == "embedded":
        options = decode_options(section.options, EngineOptions, "inference.options")
        options.check()
        return Engine(section, options, sys.executable, "engine", _START_TIMEOUT_S, holds_one_version=False)
    if section.kind == "vllm":
        served = decode_options(section.options, VllmOptions, "inference.options")
        served.check()
        python = str(Path(served.python).absolute())  # not resolved: a virtual environment's is a link
        return Engine(section, served, python, "vllm", served.start_timeout_s + 10.0, holds_one_version=True)
    raise ConfigError(f"inference.kind is {section.kind!r}; known: embedded, vllm")
