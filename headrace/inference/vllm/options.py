"""What the vLLM engine can be told."""

import functools
import subprocess
from typing import Literal

from headrace.config import Section
from headrace.errors import ConfigError
from headrace.processes.child import MINIMAL_ENV

_NEEDED = ("vllm", "aiohttp", "apsw", "headrace")
_LOOK = f"from importlib.util import find_spec; print(*[name for name in {_NEEDED} if not find_spec(name)])"
_LOOK_S = 60.0


class VllmOptions(Section, frozen=True):
    """Attributes:
    worker: name under which the engine reports.
    python: interpreter that has vLLM and this package.
    slots: sequences that run at the same time.
    context: largest prefix + max_tokens of a request.
    cache_gib: memory of the key-value cache.
    dtype: of weights and cache.
    on_swap: what new weights do to a running sequence: `rebuild` ends it in the server and goes on with its tokens as
        a prefix, under the new version; `keep_kv` freezes it and lets it go on with the cache of the old one.
    num_threads: OpenMP threads of the server.
    start_timeout_s: how long the server may take until it answers.
    """

    worker: str = "engine"
    python: str = ".venv-vllm/bin/python"
    slots: int = 64
    context: int = 512
    cache_gib: int = 1
    dtype: Literal["float32", "bfloat16"] = "float32"
    on_swap: Literal["rebuild", "keep_kv"] = "rebuild"
    num_threads: int = 1
    start_timeout_s: float = 300.0

    @property
    def cache_bound(self) -> str:
        """The option that the size of the cache is proportional to."""
        return "cache_gib"

    def cache_bytes(self, position_bytes: int) -> int:
        """Size of the cache: the server takes all that it is given, whatever a token's keys and values take."""
        return self.cache_gib * 1024**3

    def check(self) -> None:
        """Raises ConfigError for a value out of its bounds, and for an interpreter that does not run or lacks a module."""
        for name in ("slots", "cache_gib", "num_threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"inference.options.{name} is {getattr(self, name)}; it must be at least 1")
        if self.context < 2:
            raise ConfigError(f"inference.options.context is {self.context}; a prefix and one token need at least 2")
        problem = _problem_of(self.python)
        if problem:
            raise ConfigError(
                f"inference.options.python is {self.python!r}, {problem}; it must be an interpreter that has "
                f"{', '.join(_NEEDED)}; `make vllm` makes one in .venv-vllm"
            )


@functools.cache
def _problem_of(python: str) -> str | None:
    """What an engine would miss there. Nothing is imported: vLLM takes seconds."""
    try:
        found = subprocess.run(
            [python, "-c", _LOOK], env=MINIMAL_ENV, capture_output=True, text=True, timeout=_LOOK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"which does not run: {error}"
    if found.returncode:
        return f"which ended with status {found.returncode}: {found.stderr.strip()[-200:]}"
    missing = found.stdout.split()
    return f"which lacks {', '.join(missing)}" if missing else None
