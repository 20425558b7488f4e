"""Whether a run fits, before anything is loaded: model, context, slots, budgets and memory.

Invariant: what does not fit is a `ConfigError` that names every value, its bound and a remedy, at once and together; what
fits is said in one line with its numbers. Memory is an estimate for gated decoders, close for weights and cache.
"""

import dataclasses
import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from headrace.config import Config, decode_options
from headrace.errors import ConfigError
from headrace.harness import WritingHarness
from headrace.records.task import Task
from headrace.runtime.adapters import NamedTasks
from headrace.runtime.engines import SlotOptions, open_engine
from headrace.runtime.policy import WarmStartOptions, given_policy

Worker = Literal["engine", "trainer"]
WORKERS: tuple[Worker, ...] = ("engine", "trainer")
"""Workers of a training run that hold a model."""
_FLOAT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_MEASURED_PROMPTS = 32
_ENGINE_COPIES = 2
"""Weights in the engine: the current version, and the staged one beside it."""
_TRAINER_COPIES = 4
"""Weights, gradients and two moments in the trainer, float32."""
_LOGIT_COPIES = 3
"""Logits, log-probs and their gradient of one micro-batch."""
_PROCESS_BYTES = 600 * 1024**2
"""Interpreter and libraries of engine and trainer together."""


@dataclasses.dataclass(frozen=True)
class ModelShape:
    """What of a model decides what fits.

    Attributes:
        positions: longest sequence.
        vocabulary: rows of the embedding.
        layers: decoder layers.
        heads: key-value heads.
        head_size: of each.
        parameters: number of them.
    """

    positions: int
    vocabulary: int
    layers: int
    heads: int
    head_size: int
    parameters: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes that a run will hold.

    Attributes:
        engine_weights: in the engine.
        cache: keys and values.
        trainer: weights, gradients, moments and the logits of a micro-batch.
        processes: interpreters and libraries.
    """

    engine_weights: int
    cache: int
    trainer: int
    processes: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.engine_weights + self.cache + self.trainer + self.processes

    def __str__(self) -> str:
        parts = (("engine", self.engine_weights), ("cache", self.cache), ("trainer", self.trainer))
        return f"{_gib(self.total)} (" + ", ".join(f"{name} {_gib(size)}" for name, size in parts if size) + ")"


def preflight(
    config: Config,
    shape: ModelShape,
    vocabulary: int,
    prompts: Sequence[int],
    *,
    workers: Collection[Worker] = WORKERS,
    available: int | None = None,
) -> str:
    """One line that says what fits how.

    Args:
        config: the run to be.
        shape: of version 0.
        vocabulary: rows that the tokenizer needs.
        prompts: lengths of first prompts, in tokens.
        workers: that will hold a model; without any, memory is not looked at.
        available: bytes of memory; None asks the platform.

    Raises:
        ConfigError: naming everything that does not fit.
    """
    engine = open_engine(config.inference).options
    memory = memory_of(shape, engine, config, workers)
    free = available_bytes() if available is None else available
    problems = _lengths(config, engine, shape, max(prompts, default=0))
    if workers:
        problems += _memory(memory, engine, free)
    if vocabulary > shape.vocabulary:
        problems.append(
            f"the tokenizer needs {vocabulary} ids, the model has {shape.vocabulary}; use the model's own tokenizer"
        )
    if problems:
        raise ConfigError("the run does not fit:\n  " + "\n  ".join(problems))
    return (
        f"longest prompt {max(prompts, default=0)} of {config.budget.episode_tokens} tokens of an episode, "
        f"{engine.context} of a slot, {shape.positions} positions; memory about {memory} of {_gib(free)}"
    )


async def preflight_tasks(
    config: Config, harness: WritingHarness, tasks: Iterable[Task], *, workers: Collection[Worker] = WORKERS
) -> str | None:
    """How a run on these tasks would fit; None where the configuration names no policy, as one for `check` may.

    Raises:
        ConfigError: naming everything that does not fit.
    """
    if config.policy.kind == "warm_start" and not config.policy.options:
        return None
    vocabulary = tokenizer_ids(harness)
    shape = model_shape(config, await given_policy(config), vocabulary)
    return preflight(config, shape, vocabulary, prompt_lengths(harness, tasks), workers=workers)


def model_shape(config: Config, folder: Path | None, vocabulary: int) -> ModelShape:
    """The shape of version 0: of the folder, or of the warm start to be. Raises ConfigError when it cannot be read."""
    if folder is not None:
        try:
            described: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder}: its config.json cannot be read: {error}") from error
    else:
        described = decode_options(config.policy.options, WarmStartOptions, "policy.options").model
        described = {**described, "vocab_size": vocabulary}
    try:
        return _shape(described)
    except KeyError as error:
        raise ConfigError(f"the model's configuration has no {error.args[0]!r}; a decoder's has") from error


def memory_of(shape: ModelShape, engine: SlotOptions, config: Config, workers: Collection[Worker] = WORKERS) -> Memory:
    """What the workers will hold."""
    size = _FLOAT_BYTES[engine.dtype]
    cache = engine.cache_bytes(2 * shape.layers * shape.heads * shape.head_size * size)
    tokens = int(config.trainer.options.get("micro_batch_tokens", 4096))
    trainer = _TRAINER_COPIES * shape.parameters * 4 + _LOGIT_COPIES * tokens * shape.vocabulary * 4
    has_engine, has_trainer = "engine" in workers, "trainer" in workers
    return Memory(
        _ENGINE_COPIES * shape.parameters * size * has_engine,
        cache * has_engine,
        trainer * has_trainer,
        _PROCESS_BYTES * len(workers) // len(WORKERS),
    )


def measured_tasks(tasks: NamedTasks) -> list[Task]:
    """Tasks whose prompts are looked at before a run: all held-out ones and the first of the training stream."""
    return [*tasks.held_out(), *(tasks.task("train", ordinal) for ordinal in range(_MEASURED_PROMPTS))]


def prompt_lengths(harness: WritingHarness, tasks: Iterable[Task]) -> list[int]:
    """Tokens of the first prompt of each task."""
    return [sum(map(len, harness.open(task))) for task in tasks]


def tokenizer_ids(harness: WritingHarness) -> int:
    """Rows of the embedding that the harness's tokenizer needs."""
    return max(harness.codec.known_ids) + 1


def available_bytes() -> int:
    """Memory that is free for a run: the machine's, or what the control group leaves of it."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            text = Path(limit).read_text(encoding="ascii").strip()
            if text != "max":
                free = min(free, max(0, int(text) - int(Path(used).read_text(encoding="ascii"))))
        except (OSError, ValueError):
            continue
    return free


def _lengths(config: Config, engine: SlotOptions, shape: ModelShape, prompt: int) -> list[str]:
    budget, problems = config.budget, list[str]()
    if budget.episode_tokens > engine.context:
        problems.append(
            f"budget.episode_tokens is {budget.episode_tokens}, inference.options.context {engine.context}; raise the "
            "context or lower the budget"
        )
    if engine.context > shape.positions:
        problems.append(
            f"inference.options.context is {engine.context}, the model has {shape.positions} positions; lower the context"
        )
    if prompt >= budget.episode_tokens:
        problems.append(
            f"the longest prompt has {prompt} tokens, budget.episode_tokens is {budget.episode_tokens}; no turn would fit, "
            "raise the budget or shorten the system prompt"
        )
    return problems


def _memory(memory: Memory, engine: SlotOptions, free: int) -> list[str]:
    if memory.total <= free:
        return []
    rest = free - (memory.total - memory.cache)
    fitting = max(0, rest * getattr(engine, engine.cache_bound) // max(1, memory.cache))
    remedy = "take a smaller model, or lower trainer.options.micro_batch_tokens"
    if fitting:
        remedy = f"lower inference.options.{engine.cache_bound} to {fitting} at most"
    return [f"memory of about {memory} is needed, {_gib(free)} is free; {remedy}"]


def _shape(described: dict[str, Any]) -> ModelShape:
    hidden, layers = int(described["hidden_size"]), int(described["num_hidden_layers"])
    heads = int(described["num_attention_heads"])
    key_heads = int(described.get("num_key_value_heads") or heads)
    head_size = int(described.get("head_dim") or hidden // heads)
    vocabulary, inner = int(described["vocab_size"]), int(described["intermediate_size"])
    attention = 2 * hidden * head_size * (heads + key_heads)
    embeddings = vocabulary * hidden * (1 if described.get("tie_word_embeddings", True) else 2)
    parameters = embeddings + layers * (attention + 3 * hidden * inner + 2 * hidden) + hidden
    positions = int(described["max_position_embeddings"])
    return ModelShape(positions, vocabulary, layers, key_heads, head_size, parameters)


def _gib(size: int) -> str:
    return f"{size / 1024**3:.2f} GiB"
