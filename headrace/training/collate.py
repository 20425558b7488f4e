"""Packed rows to the padded training batch. Invariant: padding adds slots and changes no value.

Dimensions: B rows, T tokens of the longest row, N tokens of all rows.
"""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.records.batch import TrainingBatch
from headrace.training.packing import PackedBatch


def pad(packed: PackedBatch) -> TrainingBatch:
    """The same rows side by side, as wide as the longest one."""
    bounds = packed.cu_seqlens.tolist()
    lengths_B = packed.lengths_B
    width = int(lengths_B.max(initial=0))

    def spread(values_N: npt.NDArray[Any], fill: float) -> npt.NDArray[Any]:
        padded_BT = np.full((len(bounds) - 1, width), fill, dtype=values_N.dtype)
        for row, (start, stop) in enumerate(itertools.pairwise(bounds)):
            padded_BT[row, : stop - start] = values_N[start:stop]
        return padded_BT

    batch = TrainingBatch(
        ids_BT=spread(packed.ids_N, 0),
        action_mask_BT=spread(packed.action_mask_N, False),
        valid_mask_BT=np.arange(width) < lengths_B[:, None],
        position_ids_BT=spread(packed.position_ids_N, 0),
        behavior_logprobs_BT=spread(packed.behavior_logprobs_N, np.nan),
        temperature_BT=spread(packed.temperature_N, 1.0),
        versions_BT=spread(packed.versions_N, -1),
        is_fresh_context_BT=spread(packed.is_fresh_context_N, False),
        advantages_B=packed.advantages_B,
        weights_B=packed.weights_B,
        rewards_B=packed.rewards_B,
        transcripts=packed.transcripts,
        episodes=packed.episodes,
        groups=packed.groups,
    )
    batch.check()
    return batch
