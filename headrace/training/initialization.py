"""A starting point that can already look things up: an induction circuit in the first two layers.

A small transformer learns to copy from its context only after a long plateau, until two heads have found each other: one
that says which token came before, one that looks for where the present token came before and takes what followed. A warm
start of seconds has no time for that, so the circuit is laid out by hand in a random model of a stock architecture; nothing
is frozen, and training goes on from there.

* Layer 0, heads 0 and 1 attend to the token one and two places back, by biases of queries and keys alone: under rotary
  positions a constant key and a constant query, turned by the offset, score highest exactly there. They write a projection
  of that token into two scratch quarters of the residual stream.
* Layer 1, heads 0 and 1 score place j by how well (token j-1, token j-2) match (present token, token before it), in the
  slowest rotary dimensions, and write token j back into the embedding half. Together they write all of it.

Source: Olsson et al., "In-context learning and induction heads" (arXiv 2209.11895), for the circuit; Su et al., "RoFormer"
(arXiv 2104.09864), for the rotation.

Dimensions: H hidden size, D head size = H / 4; embeddings fill the first H / 2 dimensions.
"""

import math
from typing import Any

import torch
from torch import Tensor

from headrace.errors import ConfigError

_EMBEDDING_STD = 0.5
_OFFSET_BIAS = 7.0
_LOGIT_SCALE = 0.5
_MATCH_SCALE = 2.0
"""Of queries and keys that match tokens; at 1 the right place gets too little of the attention to be copied from."""

_SHARED_SCALE = 0.1
"""What is left of the random content scores of a head that attends by position."""

_FAST = 0.05
"""Radians per place from which on a rotary pair tells neighbours apart."""

_SLOW = 0.7 / 60.0
"""Radians per place up to which a rotary pair is nearly the same over a prompt of 60 tokens."""


@torch.no_grad()
def lay_induction_circuit(model: Any, generator: torch.Generator) -> None:
    """Overwrites parts of a random model's first two layers, its embedding and its output layer.

    Args:
        model: a causal model of `transformers` with biases on queries and keys, such as Qwen2.
        generator: source of the random projections.

    Raises:
        ConfigError: when the architecture has no place for the circuit, naming what it needs.
    """
    config = model.config
    hidden, heads = config.hidden_size, config.num_attention_heads
    layers = [layer.self_attn for layer in model.model.layers]
    if getattr(layers[0].q_proj, "bias", None) is None:
        raise ConfigError(
            f"model_type {config.model_type} has no query and key biases; an induction circuit needs them"
        )
    if len(layers) < 2 or heads != 4 or config.num_key_value_heads != 4 or config.tie_word_embeddings:
        raise ConfigError(
            f"an induction circuit needs >= 2 layers, 4 heads, 4 key-value heads and untied embeddings; the model has "
            f"{len(layers)}, {heads}, {config.num_key_value_heads} and tie_word_embeddings = {config.tie_word_embeddings}"
        )
    rates = _rotary_rates(config, hidden // heads)
    half = hidden // 2
    embedding = torch.randn(config.vocab_size, half, generator=generator) * _EMBEDDING_STD
    for matrix, scale in ((model.model.embed_tokens.weight, 1.0), (model.lm_head.weight, _LOGIT_SCALE)):
        matrix.zero_()
        matrix[:, :half] = embedding * scale
    basis, _ = torch.linalg.qr(torch.randn(half, half, generator=generator))
    for head, offset in ((0, 1), (1, 2)):
        _attend_back(layers[0], head, offset, rates)
        _carry_to_scratch(layers[0], head, basis[: hidden // 4], half + head * hidden // 4)
    for head in (0, 1):
        _match_and_copy(layers[1], head, basis, rates)


def _rotary_rates(config: Any, size: int) -> Tensor:
    """Radians per place of each rotary pair [D / 2]; pair i turns dimensions i and i + D / 2."""
    theta = float(config.rope_parameters["rope_theta"])
    return theta ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)


def _attend_back(attention: Any, head: int, offset: int, rates: Tensor) -> None:
    """Makes a head attend to the token `offset` places back, whatever the tokens are."""
    size = 2 * len(rates)
    first = head * size
    rows = slice(first, first + size)
    for projection in (attention.q_proj, attention.k_proj):
        projection.weight[rows] *= _SHARED_SCALE
        projection.bias[rows] = 0.0
    for pair in torch.nonzero(rates > _FAST).flatten().tolist():
        angle = -float(rates[pair]) * offset
        attention.k_proj.bias[first + pair] = _OFFSET_BIAS
        attention.q_proj.bias[first + pair] = _OFFSET_BIAS * math.cos(angle)
        attention.q_proj.bias[first + len(rates) + pair] = _OFFSET_BIAS * math.sin(angle)


def _carry_to_scratch(attention: Any, head: int, projection: Tensor, base: int) -> None:
    """The head's value is the projected embedding; its output goes to a scratch quarter of its own."""
    size = len(projection)
    rows = slice(head * size, (head + 1) * size)
    attention.v_proj.weight[rows] = 0.0
    attention.v_proj.weight[rows, : projection.shape[1]] = projection
    attention.o_proj.weight[:, rows] = 0.0
    # Normalisation brings an embedding that fills half of the dimensions to sqrt(2) each; undo it.
    attention.o_proj.weight[base : base + size, rows] = torch.eye(size) * _EMBEDDING_STD / math.sqrt(2.0)


def _match_and_copy(attention: Any, head: int, basis: Tensor, rates: Tensor) -> None:
    """Looks for the place that follows what stands here, and writes the token at that place."""
    half, pairs = len(basis), len(rates)
    size = 2 * pairs
    first = head * size
    rows = slice(first, first + size)
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        projection.weight[rows] = 0.0
        projection.bias[rows] = 0.0
    slow = torch.nonzero(rates <= _SLOW).flatten().tolist()
    dimensions = [*slow, *(pairs + pair for pair in slow)]
    scratch_1, scratch_2 = half, half + size
    for index in range(len(dimensions) // 2):
        near, far = first + dimensions[2 * index], first + dimensions[2 * index + 1]
        feature = head * (len(dimensions) // 2) + index
        attention.q_proj.weight[near, :half] = basis[feature] * _MATCH_SCALE
        attention.k_proj.weight[near, scratch_1 + feature] = _MATCH_SCALE
        attention.q_proj.weight[far, scratch_1 + feature] = _MATCH_SCALE
        attention.k_proj.weight[far, scratch_2 + feature] = _MATCH_SCALE
    part = basis[head * size : (head + 1) * size]
    attention.v_proj.weight[rows, :half] = part
    attention.o_proj.weight[:, rows] = 0.0
    attention.o_proj.weight[:half, rows] = part.T * _EMBEDDING_STD
