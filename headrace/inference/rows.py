"""What each slot holds: ids, their log-probs, how much of them is cached and under which version.

Invariant: a slot's first `cached` positions hold keys and values of its first `cached` ids, under its `version` unless the
slot is mixed; a mixed slot serves the turn that it was mixed under and is never reused.

Dimensions: S slots, C context, V vocabulary, T ids of a sequence.
"""

import numpy as np
import numpy.typing as npt
import torch

from headrace.inference.cache import SlotCache
from headrace.records.segment import TurnCompute

NO_VERSION = -1
Ints = npt.NDArray[np.int64]


class Rows:
    """Per-slot arrays, written by the engine and read by its passes.

    Attributes:
        ids_SC: token ids.
        logprobs_SC: log-probs of sampled tokens, at their positions.
        uniforms_SC: the draw of each position that may be sampled.
        known_S: number of ids.
        cached_S: leading positions whose keys and values are held.
        chunked_S: leading positions that whole, aligned prefill chunks computed; only these are reused when the
            engine is deterministic, since a decoded position differs from a prefilled one in its last bits.
        version_S: version of the cache.
        is_mixed_S: whether older versions computed a part of it.
        limit_S: number of ids at which the turn ends.
        temperature_S: sampling temperature.
        is_busy_S: whether a turn occupies the slot.
        is_decoding_S: whether it only lacks the next token.
        last_used_S: for choosing what to evict.
        stops_SV: whether a token ends the turn.
        prefill_tokens_S: tokens that were prefilled for the turn.
        prefill_s_S: engine seconds of that.
        decode_s_S: engine seconds of decoding for the turn.
    """

    def __init__(self, slots: int, context: int, vocabulary: int, cache: SlotCache) -> None:
        self.ids_SC = np.zeros((slots, context), dtype=np.int64)
        self.logprobs_SC = np.zeros((slots, context), dtype=np.float32)
        self.uniforms_SC = np.zeros((slots, context), dtype=np.float64)
        self.known_S = np.zeros(slots, dtype=np.int64)
        self.cached_S = np.zeros(slots, dtype=np.int64)
        self.chunked_S = np.zeros(slots, dtype=np.int64)
        self.version_S = np.full(slots, NO_VERSION, dtype=np.int64)
        self.is_mixed_S = np.zeros(slots, dtype=np.bool_)
        self.limit_S = np.zeros(slots, dtype=np.int64)
        self.temperature_S = np.ones(slots, dtype=np.float32)
        self.is_busy_S = np.zeros(slots, dtype=np.bool_)
        self.is_decoding_S = np.zeros(slots, dtype=np.bool_)
        self.last_used_S = np.zeros(slots, dtype=np.int64)
        self.stops_SV = np.zeros((slots, vocabulary), dtype=np.bool_)
        self.prefill_tokens_S = np.zeros(slots, dtype=np.int64)
        self.prefill_s_S = np.zeros(slots, dtype=np.float64)
        self.decode_s_S = np.zeros(slots, dtype=np.float64)
        self._cache = cache
        self._tick = 0

    def common(self, ids_T: Ints, version: int, valid_S: Ints) -> Ints:
        """Length per slot of the longest common prefix, within its first `valid_S` ids and the same version."""
        differs_ST = self.ids_SC[:, : len(ids_T)] != ids_T
        first_S = np.where(differs_ST.any(axis=1), differs_ST.argmax(axis=1), len(ids_T))
        return np.where(self._has_version(version), np.minimum(first_S, valid_S), 0)

    def idle_slot(self, common_S: Ints) -> int | None:
        """The slot to give to a sequence with these common prefixes; None when all are busy.

        A parked sequence that the new one extends is taken over. Otherwise an empty slot, otherwise the one
        that was used longest ago.
        """
        idle = np.flatnonzero(~self.is_busy_S)
        if not len(idle):
            return None
        continued = idle[(common_S[idle] > 0) & (common_S[idle] == self.cached_S[idle])]
        if len(continued):
            return int(continued[common_S[continued].argmax()])
        empty = idle[self.cached_S[idle] == 0]
        return int(empty[0] if len(empty) else idle[self.last_used_S[idle].argmin()])

    def share(self, source: int, target: int, count: int) -> None:
        """Makes the first `count` cached positions those of another slot of the same version."""
        assert self.version_S[source] == self.version_S[target] and count <= self.cached_S[source]
        self._cache.copy(source, target, count)
        self.cached_S[target] = count
        self.chunked_S[target] = min(count, int(self.chunked_S[source]))

    def keep(self, slot: int, count: int) -> None:
        """Forgets cached positions from `count` on."""
        self.cached_S[slot] = count
        self.chunked_S[slot] = min(count, int(self.chunked_S[slot]))

    def assign(self, slot: int, version: int) -> None:
        """Gives the slot a version; a cache of another one is lost."""
        if self.version_S[slot] != version:
            self.empty(slot)
        self.version_S[slot] = version

    def go_on(self, slot: int, version: int) -> None:
        """Gives the slot a version that goes on in the cache of the one before."""
        self.version_S[slot], self.is_mixed_S[slot] = version, True

    def empty(self, slot: int) -> None:
        """Nothing is cached, and nothing of what was is left in memory."""
        if self.version_S[slot] != NO_VERSION:
            self._cache.clear(slot)
        self.keep(slot, 0)
        self.version_S[slot], self.is_mixed_S[slot] = NO_VERSION, False

    def use(self, slot: int, is_busy: bool) -> None:
        """Marks the slot as taken or parked; of a mixed cache nothing is parked."""
        self._tick += 1
        if self.is_mixed_S[slot] and not is_busy:
            self.keep(slot, 0)
            self.is_mixed_S[slot] = False
        self.is_busy_S[slot], self.is_decoding_S[slot], self.last_used_S[slot] = is_busy, False, self._tick
        if is_busy:
            self.prefill_tokens_S[slot], self.prefill_s_S[slot], self.decode_s_S[slot] = 0, 0.0, 0.0

    def charge_prefill(self, slots_n: Ints, counts_n: Ints, pass_s: float) -> None:
        """Shares the seconds of a prefill pass out by tokens."""
        self.prefill_tokens_S[slots_n] += counts_n
        self.prefill_s_S[slots_n] += pass_s * counts_n / counts_n.sum()

    def charge_decode(self, slots_n: Ints, pass_s: float) -> None:
        """Shares the seconds of a decoding pass out evenly."""
        self.decode_s_S[slots_n] += pass_s / len(slots_n)

    def compute(self, slot: int) -> TurnCompute:
        """What the turn in the slot took so far."""
        return TurnCompute(
            int(self.prefill_tokens_S[slot]), float(self.prefill_s_S[slot]), float(self.decode_s_S[slot])
        )

    def _has_version(self, version: int) -> npt.NDArray[np.bool_]:
        return (self.version_S == version) & ~self.is_mixed_S


def input_tensors(tokens_NT: Ints, places_NT: Ints, is_padding_NT: npt.NDArray[np.bool_]) -> tuple[torch.Tensor, ...]:
    """Tokens, write places and position ids of a pass; padding has position 0, whatever its place."""
    positions_NT = np.where(is_padding_NT, 0, places_NT)
    return torch.from_numpy(tokens_NT), torch.from_numpy(places_NT), torch.from_numpy(positions_NT)
