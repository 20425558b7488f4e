"""Warm start: a fresh model, fine-tuned on given token sequences, as a folder that every loader reads.

Invariant: the folder is a pure function of model configuration, sequences, settings and seed (on one platform with one
version of torch), and appears whole or not at all. Only tokens marked True are learned; all are attended to.

Dimensions: T tokens of one sequence, B sequences of a step.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from headrace.errors import ConfigError
from headrace.records.arrays import IntArray
from headrace.records.streams import stream, stream_key
from headrace.training.initialization import lay_induction_circuit
from headrace.training.packing import PackedTokens, boundaries
from headrace.training.policy import Policy, micro_batches
from headrace.training.warm_settings import WarmStartSettings
from headrace.training.weights import weights_bytes

Demonstration = tuple[IntArray, npt.NDArray[np.bool_]]
"""Token ids [T], and True where the token is to be learned."""


@dataclasses.dataclass(frozen=True)
class WarmStartProgress:
    """Where a warm start is.

    Attributes:
        step: steps done.
        steps: steps in all.
        loss: mean negative log-prob of the learned tokens of the last step, in nats.
        tokens: tokens seen so far.
    """

    step: int
    steps: int
    loss: float
    tokens: int


def warm_start(
    model_config: Mapping[str, Any],
    sequences: Sequence[Demonstration],
    settings: WarmStartSettings,
    *,
    seed: int,
    out_dir: Path,
    progress: Callable[[WarmStartProgress], None] = lambda _: None,
) -> Path:
    """The folder, with `config.json` and `model.safetensors`.

    Sequences are taken in an order drawn from the seed, each once before any is taken again.

    Args:
        model_config: a Hugging Face configuration with its `model_type`, such as {"model_type": "llama", …}.
        sequences: what to learn from.
        settings: how.
        seed: of initialisation and order.
        out_dir: folder to make; it must not exist.
        progress: called after every step.

    Raises:
        ConfigError: when the configuration names no known model, a sequence does not fit, or the folder exists.
    """
    if out_dir.exists():
        raise ConfigError(f"{out_dir} exists; a warm start does not overwrite")
    torch.set_num_threads(settings.num_threads)
    policy = _fresh_policy(model_config, seed, settings)
    _check_sequences(sequences, settings, policy.vocabulary)
    optimizer = torch.optim.AdamW(
        policy.model.parameters(),
        lr=settings.learning_rate,
        betas=(0.9, settings.beta2),
        weight_decay=settings.weight_decay,
        fused=True,
    )
    tokens = 0
    order = _order(len(sequences), seed)
    for step in range(settings.steps):
        packed = _packed([sequences[next(order)] for _ in range(settings.batch_sequences)])
        for group in optimizer.param_groups:
            group["lr"] = settings.rate(step)
        loss = _step(policy, optimizer, packed, settings)
        tokens += len(packed.ids_N)
        progress(WarmStartProgress(step + 1, settings.steps, loss, tokens))
    return _saved(policy, out_dir)


def _fresh_policy(model_config: Mapping[str, Any], seed: int, settings: WarmStartSettings) -> Policy:
    rest = dict(model_config)
    try:
        config = AutoConfig.for_model(rest.pop("model_type"), **rest)
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(
            f"model configuration {dict(model_config)!r} names no known model: {str(error)[:120]}"
        ) from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_key(seed, "warm_start", "weights") % (1 << 63))
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if settings.initialization == "induction":
        generator = torch.Generator().manual_seed(stream_key(seed, "warm_start", "circuit") % (1 << 63))
        lay_induction_circuit(model, generator)
    model.config.architectures = [type(model).__name__]
    return Policy(model)


def _check_sequences(sequences: Sequence[Demonstration], settings: WarmStartSettings, vocabulary: int) -> None:
    if settings.steps and not sequences:
        raise ConfigError(f"{settings.steps} steps of a warm start need sequences, there are none")
    for index, (ids_T, mask_T) in enumerate(sequences):
        if ids_T.shape != mask_T.shape or ids_T.ndim != 1 or not len(ids_T):
            raise ConfigError(
                f"sequence {index} has ids {ids_T.shape} and mask {mask_T.shape}; both must be [T], T >= 1"
            )
        if not 0 <= int(ids_T.min()) <= int(ids_T.max()) < vocabulary:
            raise ConfigError(f"sequence {index} has an id outside the vocabulary of {vocabulary}")
        if mask_T[0] or not mask_T.any():
            raise ConfigError(f"sequence {index} learns its first token or none; the first has no context")


def _order(count: int, seed: int) -> Iterator[int]:
    epoch = 0
    while True:
        yield from stream(seed, "warm_start", "order", epoch).permutation(count).tolist()
        epoch += 1


def _packed(batch: Sequence[Demonstration]) -> PackedTokens:
    mask_N = np.concatenate([mask_T for _, mask_T in batch])
    count = len(mask_N)
    return PackedTokens(
        ids_N=np.concatenate([ids_T for ids_T, _ in batch]),
        action_mask_N=mask_N,
        behavior_logprobs_N=np.full(count, np.nan, dtype=np.float32),
        temperature_N=np.ones(count, dtype=np.float32),
        versions_N=np.full(count, -1, dtype=np.int32),
        is_fresh_context_N=np.zeros(count, dtype=np.bool_),
        **boundaries([len(ids_T) for ids_T, _ in batch]),
    )


def _step(policy: Policy, optimizer: torch.optim.Optimizer, packed: PackedTokens, settings: WarmStartSettings) -> float:
    total = 0.0
    learned = int(packed.action_mask_N.sum())
    for micro in micro_batches(packed, range(len(packed.cu_seqlens) - 1), settings.micro_batch_tokens):
        log_p_NV = policy.log_distribution(micro)
        loss = -log_p_NV.gather(1, micro.targets_N[:, None]).sum() / learned
        torch.autograd.backward(loss)
        total += float(loss.detach())
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), settings.max_grad_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total


def _saved(policy: Policy, out_dir: Path) -> Path:
    partial = out_dir.with_name(f"{out_dir.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    policy.model.config.to_json_file(partial / "config.json")
    (partial / "model.safetensors").write_bytes(weights_bytes(policy.model))
    return partial.rename(out_dir)
