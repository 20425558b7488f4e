"""A starting point that can already look things up: an induction circuit in the first two layers.

A small transformer learns to copy from its context only after a long plateau, until two heads have found each other: one
that says which token came before, one that looks for where the present token came before and takes what followed. A warm
start of seconds has no time for that, so the circuit is laid out by hand in a random model of a stock architecture; nothing
is frozen, and training goes on from there.

* Layer 0, heads 0 and 1 attend to the token one and two places back, by biases of queries and keys alone: under rotary
  positions a constant key and a constant query, turned by the offset, score highest exactly there. They write a projection
  of that token into two scratch quarters of the residual stream.
* Layer 1, heads 0 and 2 score place j by how well (token j-1, token j-2) match (present token, token before it), in the
  slowest rotary dimensions, and write token j back into the embedding half. Together they write all of it.

Source: Olsson et al., "In-context learning and induction heads" (arXiv 2209.11895), for the circuit; Su et al., "RoFormer"
(arXiv 2104.09864), for the rotation.

Query heads may share key-value heads in pairs: the first two of layer 0 have the same keys and values anyway.

Dimensions: H hidden size, D head size = H / 4; embeddings fill the first H / 2 dimensions.
"""

import dataclasses
import math
from typing import Any, Self

import torch
from torch import Tensor

from headrace.errors import ConfigError

_EMBEDDING_STD = 0.5
_OFFSET_BIAS = 7.0
_LOGIT_SCALE = 0.5
_MATCH_SCALE = 1.0
"""Of queries and keys that match tokens. At 2 a laid-out model copies almost everything at once, and training then breaks
the circuit for one seed in three; at 1 it has the circuit to grow into."""

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
    if len(layers) < 2 or heads != 4 or config.num_key_value_heads not in (2, 4) or config.tie_word_embeddings:
        raise ConfigError(
            f"an induction circuit needs >= 2 layers, 4 heads, 2 or 4 key-value heads and untied embeddings; the model "
            f"has {len(layers)}, {heads}, {config.num_key_value_heads} and tie_word_embeddings is "
            f"{config.tie_word_embeddings}"
        )
    rates = _rotary_rates(config, hidden // heads)
    half = hidden // 2
    embedding = torch.randn(config.vocab_size, half, generator=generator) * _EMBEDDING_STD
    for matrix, scale in ((model.model.embed_tokens.weight, 1.0), (model.lm_head.weight, _LOGIT_SCALE)):
        matrix.zero_()
        matrix[:, :half] = embedding * scale
    basis, _ = torch.linalg.qr(torch.randn(half, half, generator=generator))
    size = hidden // heads
    for head, offset in ((0, 1), (1, 2)):
        place = _Head.of(config, head)
        _attend_back(layers[0], place, offset, rates)
        _carry_to_scratch(layers[0], place, basis[:size], half + head * size)
    for part, head in enumerate((0, 2)):
        _match_and_copy(layers[1], _Head.of(config, head), part, basis=basis, rates=rates)


@dataclasses.dataclass(frozen=True)
class _Head:
    """Where a query head and its key-value head lie in the projections.

    Attributes:
        query: rows of the query projection, and columns of the output projection.
        key_value: rows of the key and value projections.
    """

    query: slice
    key_value: slice

    @classmethod
    def of(cls, config: Any, head: int) -> Self:
        size = config.hidden_size // config.num_attention_heads
        shared = head * config.num_key_value_heads // config.num_attention_heads
        return cls(slice(head * size, (head + 1) * size), slice(shared * size, (shared + 1) * size))


def _rotary_rates(config: Any, size: int) -> Tensor:
    """Radians per place of each rotary pair [D / 2]; pair i turns dimensions i and i + D / 2."""
    theta = float(config.rope_parameters["rope_theta"])
    return theta ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)


def _attend_back(attention: Any, head: _Head, offset: int, rates: Tensor) -> None:
    """Makes a head attend to the token `offset` places back, whatever the tokens are."""
    query, key = attention.q_proj, attention.k_proj
    for projection, rows in ((query, head.query), (key, head.key_value)):
        projection.weight[rows] *= _SHARED_SCALE
        projection.bias[rows] = 0.0
    for pair in torch.nonzero(rates > _FAST).flatten().tolist():
        angle = -float(rates[pair]) * offset
        key.bias[head.key_value.start + pair] = _OFFSET_BIAS
        query.bias[head.query.start + pair] = _OFFSET_BIAS * math.cos(angle)
        query.bias[head.query.start + len(rates) + pair] = _OFFSET_BIAS * math.sin(angle)


def _carry_to_scratch(attention: Any, head: _Head, projection: Tensor, base: int) -> None:
    """The head's value is the projected embedding; its output goes to a scratch quarter of its own."""
    size = len(projection)
    attention.v_proj.weight[head.key_value] = 0.0
    attention.v_proj.weight[head.key_value, : projection.shape[1]] = projection
    attention.o_proj.weight[:, head.query] = 0.0
    # Normalisation brings an embedding that fills half of the dimensions to sqrt(2) each; undo it.
    attention.o_proj.weight[base : base + size, head.query] = torch.eye(size) * _EMBEDDING_STD / math.sqrt(2.0)


def _match_and_copy(attention: Any, head: _Head, part: int, *, basis: Tensor, rates: Tensor) -> None:
    """Looks for the place that follows what stands here, and writes half `part` of the token at that place."""
    half, pairs = len(basis), len(rates)
    size = 2 * pairs
    query, key, value = attention.q_proj, attention.k_proj, attention.v_proj
    for projection, rows in ((query, head.query), (key, head.key_value), (value, head.key_value)):
        projection.weight[rows] = 0.0
        projection.bias[rows] = 0.0
    slow = torch.nonzero(rates <= _SLOW).flatten().tolist()
    dimensions = [*slow, *(pairs + pair for pair in slow)]
    scratch_1, scratch_2 = half, half + size
    for index in range(len(dimensions) // 2):
        near, far = dimensions[2 * index], dimensions[2 * index + 1]
        feature = part * (len(dimensions) // 2) + index
        query.weight[head.query.start + near, :half] = basis[feature] * _MATCH_SCALE
        key.weight[head.key_value.start + near, scratch_1 + feature] = _MATCH_SCALE
        query.weight[head.query.start + far, scratch_1 + feature] = _MATCH_SCALE
        key.weight[head.key_value.start + far, scratch_2 + feature] = _MATCH_SCALE
    rows_of_part = basis[part * size : (part + 1) * size]
    value.weight[head.key_value, :half] = rows_of_part
    attention.o_proj.weight[:, head.query] = 0.0
    attention.o_proj.weight[:half, head.query] = rows_of_part.T * _EMBEDDING_STD
