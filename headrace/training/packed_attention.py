"""Causal attention over rows that lie end to end: each token attends to its own row alone.

Invariant: what a row gets is what it would get by itself. No mask of all tokens by all tokens is made, so cost grows with
the sum of squared row lengths, and not with the square of their sum. Registered with `transformers` under `NAME`; without
row boundaries it is plain causal attention.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from headrace.errors import ConfigError

NAME = "headrace_packed"


def packed_attention(  # noqa: PLR0917 - called by `transformers` with these
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """([batch, T, heads, D], None) of queries [batch, heads, T, D]; keys and values may have fewer heads.

    Args:
        module: the attention layer.
        query: queries.
        key: keys.
        value: values.
        attention_mask: None; boundaries come as `cu_seq_lens_q`.
        options: `scaling` and `cu_seq_lens_q` are read.
    """
    boundaries = options.get("cu_seq_lens_q")
    arguments = {"is_causal": True, "scale": options.get("scaling"), "enable_gqa": key.shape[1] != query.shape[1]}
    if boundaries is None:
        return scaled_dot_product_attention(query, key, value, **arguments).transpose(1, 2), None
    lengths = boundaries.diff().tolist()
    parts = zip(query.split(lengths, dim=2), key.split(lengths, dim=2), value.split(lengths, dim=2), strict=True)
    outputs = [scaled_dot_product_attention(q, k, v, **arguments) for q, k, v in parts]
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def _no_mask(*_: Any, **__: Any) -> None:
    """Boundaries stand in for a mask."""


def use_packed_attention(model: PreTrainedModel) -> None:
    """Makes the model's layers attend within rows.

    Raises:
        ConfigError: when a layer looks back over a window alone, which this attention does not do.
    """
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ConfigError(f"trainer.layout packed needs full attention in every layer; the model has {sorted(kinds)}")
    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, _no_mask)
    model.set_attn_implementation(NAME)
