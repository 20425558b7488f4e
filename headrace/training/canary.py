"""The canary: fixed sequences scored under every version, and how far each version moved from the one before.

Invariant: the divergence is exact over the vocabulary, between versions that follow each other directly; where the previous
version was never scored there is none, rather than one against an older version.

Dimensions: T tokens of all sequences after the first of each, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.records.arrays import Float32Bytes, IntArray, float32_bytes
from headrace.training.policy import Policy


class Canary:
    """Log-distributions of the canary sequences under the last two versions."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._key: tuple[bytes, ...] = ()
        self._ids: list[Tensor] = []
        self._now: tuple[int, Tensor] | None = None
        self._previous: tuple[int, Tensor] | None = None

    def score(self, ids: Sequence[IntArray], version: int) -> tuple[Float32Bytes, float | None]:
        """Log-probs [T] at temperature 1, and mean per-token KL(version, version - 1) if that one was scored."""
        key = tuple(sequence.tobytes() for sequence in ids)
        if key != self._key:
            self._key, self._now, self._previous = key, None, None
            self._ids = [torch.from_numpy(sequence.astype("int64")) for sequence in ids]
        now_TV = self.keep(version)
        if now_TV is None:
            return float32_bytes([]), None
        targets_T = torch.cat([sequence[1:] for sequence in self._ids])
        logprobs_T = now_TV.gather(1, targets_T[:, None])[:, 0]
        divergence = None
        if self._previous is not None and self._previous[0] == version - 1:
            new_TV, old_TV = now_TV.double(), self._previous[1].double()
            divergence = float((new_TV.exp() * (new_TV - old_TV)).sum(dim=-1).mean())
        return float32_bytes(logprobs_T.numpy()), divergence

    def keep(self, version: int) -> Tensor | None:
        """Log-distributions [T, V] under the present weights, scored at most once a version; None without sequences.

        Called before a step as well, so that the next version can be compared with this one.
        """
        if sum(len(sequence) > 1 for sequence in self._ids) == 0:
            return None
        if self._now is None or self._now[0] != version:
            self._previous, self._now = self._now, (version, self._distributions())
        return self._now[1]

    def _distributions(self) -> Tensor:
        parts: list[Tensor] = []
        with torch.inference_mode():
            for sequence in self._ids:
                if len(sequence) > 1:
                    logits_TV = self._policy.logits(sequence[None, :-1], torch.arange(len(sequence) - 1))
                    parts.append(torch.log_softmax(logits_TV, dim=-1))
        return torch.cat(parts)
