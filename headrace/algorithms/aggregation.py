"""Loss aggregation: how the losses of tokens become one number, as one weight per row with global denominators.

Invariant: the denominators come from the whole batch, so the loss is a plain sum over tokens and any cut into micro-batches
gives the same number and the same gradient. A row without trained tokens leaves numerator and denominator. A masked slot
may hold anything, NaN included.

Dimensions: B rows of the whole batch, E episodes that they are of, T tokens.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.records.learning.losses import AggregationName

Array = npt.NDArray[np.float64]
Aggregation = AggregationName


def token_weights_B(
    aggregation: Aggregation,
    num_tokens_B: Sequence[int] | npt.NDArray[np.integer],
    *,
    max_tokens: int | None = None,
    prompts_B: Sequence[object] | None = None,
    episodes_B: Sequence[object] | None = None,
) -> Array:
    """Weight of each trained token of each row; the loss is the sum over trained tokens of weight times token loss.

    A row's own loss weight multiplies this and changes no denominator: to weigh one row down weighs no other up.

    Args:
        aggregation: `token_mean`: every token alike. `seq_mean_token_mean`: every episode alike, its tokens averaged.
            `seq_mean_token_sum`: every episode alike, its tokens summed. `seq_mean_token_sum_norm`: the same over a constant
            length. `prompt_mean`: every prompt alike, all tokens of its rows averaged.
        num_tokens_B: trained tokens of each row that count in the denominators. Tokens rejected by an importance mask may be
            counted (the loss then shrinks with them) or not; the caller says which by what it passes.
        max_tokens: the constant length of `seq_mean_token_sum_norm`.
        prompts_B: the prompt of each row, for `prompt_mean`.
        episodes_B: the episode of each row; one that forked has several rows and still counts once. None: a row each.

    Example: rows of 3, 1 and 3 tokens: `token_mean` gives 1/7 each; `seq_mean_token_mean` 1/9, 1/3, 1/9, and 1/8, 1/8, 1/6
    when the first two are one episode.

    Source: token_mean DAPO arXiv:2503.14476 equation 8; seq_mean_token_mean GRPO arXiv:2402.03300 equation 3;
        seq_mean_token_sum_norm Dr. GRPO arXiv:2503.20783 section 3.2; prompt_mean SkyRL.

    Raises:
        ValueError: when no row holds a trained token, or an argument of the named aggregation is missing.
    """
    counts_B = np.asarray(num_tokens_B, dtype=np.float64)
    has_tokens_B = counts_B > 0
    episode_B = np.arange(len(counts_B)) if episodes_B is None else _numbered(episodes_B)
    tokens_E = np.bincount(episode_B, weights=counts_B)
    num_episodes = int((tokens_E > 0).sum())
    if not num_episodes:
        raise ValueError("no row holds a trained token; there is nothing to average over")
    match aggregation:
        case "token_mean":
            weights_B = np.full(counts_B.shape, 1.0 / counts_B.sum())
        case "seq_mean_token_mean":
            weights_B = 1.0 / (num_episodes * np.maximum(tokens_E, 1.0)[episode_B])
        case "seq_mean_token_sum":
            weights_B = np.full(counts_B.shape, 1.0 / num_episodes)
        case "seq_mean_token_sum_norm":
            if max_tokens is None or max_tokens < 1:
                raise ValueError(f"max_tokens is {max_tokens}; seq_mean_token_sum_norm needs a constant length >= 1")
            weights_B = np.full(counts_B.shape, 1.0 / (num_episodes * max_tokens))
        case "prompt_mean":
            weights_B = _prompt_weights(counts_B, prompts_B)
    return np.where(has_tokens_B, weights_B, 0.0)


def _prompt_weights(counts_B: Array, prompts_B: Sequence[object] | None) -> Array:
    if prompts_B is None or len(prompts_B) != len(counts_B):
        raise ValueError(f"prompt_mean needs the prompt of each of {len(counts_B)} rows")
    prompt_B = _numbered(prompts_B)
    tokens_P = np.bincount(prompt_B, weights=counts_B)
    return 1.0 / (float((tokens_P > 0).sum()) * np.maximum(tokens_P, 1.0)[prompt_B])


def _numbered(names_B: Sequence[object]) -> npt.NDArray[np.int64]:
    """A number for each name, equal for equal ones, from 0."""
    index: dict[object, int] = {}
    return np.array([index.setdefault(name, len(index)) for name in names_B], dtype=np.int64)
