"""Who gets a slot, whose cache is reused, and what is prefilled next.

Invariant: slots are given by the age of the trajectory, as `TurnLine` bounds it, and the oldest sequence that can be
prefilled is part of the next prefill pass; so nobody waits for ever, however long it is. A sequence waits for another's
prefill only if that one is older.
"""

import numpy as np

from headrace.inference.options import EngineOptions
from headrace.inference.passes import Passes
from headrace.inference.rows import Ints, Rows
from headrace.inference.turns import NO_SLOT, Turn
from headrace.scheduling.seniority import TurnLine

_PASS_TOKENS = 1024
"""Most tokens of one prefill pass, padding included: beyond it activations leave the processor's cache."""


class Lineup:
    """Turns that wait for a slot, and turns whose prefix is not cached yet.

    Attributes:
        waiting: without a slot, the oldest trajectory first.
        prefilling: in a slot, by admission or restart.
        reused_tokens: prefix tokens that did not have to be computed, so far.
    """

    def __init__(self, options: EngineOptions, rows: Rows, passes: Passes) -> None:
        self.waiting: TurnLine[Turn] = TurnLine()
        self.prefilling: list[Turn] = []
        self.reused_tokens = 0
        self._options = options
        self._rows = rows
        self._passes = passes

    def admit(self, now_s: float) -> list[Turn]:
        """Turns that have just got a slot, with their ids in it and as much of their cache as any slot holds."""
        admitted: list[Turn] = []
        rows = self._rows
        while self.waiting:
            turn = self.waiting.head()
            common_S = rows.common(turn.prompt_T, turn.version, rows.cached_S)
            slot = rows.idle_slot(common_S)
            if slot is None:
                break
            self.waiting.popleft()
            turn.slot, turn.started_s = slot, now_s
            rows.assign(slot, turn.version)
            rows.use(slot, is_busy=True)
            rows.ids_SC[slot, : len(turn.prompt_T)] = turn.prompt_T
            rows.known_S[slot] = len(turn.prompt_T)
            self.reused_tokens += self._reuse(turn, common_S)
            self._enter(turn)
            admitted.append(turn)
        return admitted

    def restart(self, turn: Turn) -> None:
        """Puts a turn whose cache is gone, as it has a new version, at the end of the prefills."""
        self.drop(turn)
        self._enter(turn)

    def drop(self, turn: Turn) -> None:
        """Forgets the turn."""
        self.waiting.remove(turn)
        if turn in self.prefilling:
            self.prefilling.remove(turn)

    def next_batch(self, budget_tokens: int, *, is_first: bool) -> tuple[list[Turn], Ints, int]:
        """Turns of the next prefill pass, number of ids of each, attended length; empty when nothing fits or is there.

        The first pass of a step takes the oldest sequence whatever the budget.

        All have the version of the oldest. Much longer or shorter ones are left for a pass of their own, so that at
        most half of the pass is padding.
        """
        ready = [turn for turn in self.prefilling if self._is_unblocked(turn)]
        batch: list[Turn] = []
        counts: list[int] = []
        for turn in ready:
            count = self._next_count(turn)
            width = max(count, *counts) if counts else count
            is_within = (len(batch) + 1) * width <= min(budget_tokens, _PASS_TOKENS)
            if (is_first or is_within) if not batch else (is_within and self._fits(batch[0], turn)):
                batch.append(turn)
                counts.append(count)
        return batch, np.array(counts, dtype=np.int64), max(map(self._attended, batch), default=0)

    def _enter(self, turn: Turn) -> None:
        self._find_donor(turn)
        self.prefilling.append(turn)

    def _find_donor(self, turn: Turn) -> None:
        """Looks for an older prefill that will hold more of the prefix than is cached now."""
        turn.donor = None
        if not self.prefilling:
            return
        rows, slot = self._rows, turn.slot
        valid_S = np.zeros_like(rows.known_S)
        for other in self.prefilling:
            valid_S[other.slot] = rows.known_S[other.slot]
        ids_T = rows.ids_SC[slot, : rows.known_S[slot]]
        usable_S = self._usable(rows.common(ids_T, turn.version, valid_S), len(ids_T))
        best = int(usable_S.argmax())
        if usable_S[best] - rows.cached_S[slot] >= self._options.shared_prefix_min:
            turn.donor = next(other for other in self.prefilling if other.slot == best)
            turn.shared = int(usable_S[best])

    def _is_unblocked(self, turn: Turn) -> bool:
        donor, rows = turn.donor, self._rows
        if donor is None:
            return True
        is_coming = donor.slot != NO_SLOT and donor.version == turn.version and not rows.is_decoding_S[donor.slot]
        if is_coming and rows.cached_S[donor.slot] < turn.shared:
            return False
        turn.donor = None
        ids_T, before = rows.ids_SC[turn.slot, : rows.known_S[turn.slot]], int(rows.cached_S[turn.slot])
        self.reused_tokens += self._reuse(turn, rows.common(ids_T, turn.version, rows.cached_S)) - before
        return True

    def _reuse(self, turn: Turn, common_S: Ints) -> int:
        """Length of the longest cached prefix, which is the turn's now; at least one id is left to compute."""
        rows, slot = self._rows, turn.slot
        usable_S = self._usable(np.minimum(common_S, self._reusable_S()), int(rows.known_S[slot]))
        best, before = int(usable_S.argmax()), int(usable_S[slot])
        if usable_S[best] > before:
            rows.share(best, slot, int(usable_S[best]))
        else:
            rows.keep(slot, before)
        return int(rows.cached_S[slot])

    def _reusable_S(self) -> Ints:
        return self._rows.chunked_S if self._options.deterministic else self._rows.cached_S

    def _usable(self, common_S: Ints, num_ids: int) -> Ints:
        usable_S = np.minimum(common_S, num_ids - 1)
        # Whole chunks only: a prefill then goes on at a fixed position.
        return usable_S - usable_S % self._options.prefill_chunk if self._options.deterministic else usable_S

    def _next_count(self, turn: Turn) -> int:
        left = int(self._rows.known_S[turn.slot] - self._rows.cached_S[turn.slot])
        return min(left, self._options.prefill_chunk)

    def _attended(self, turn: Turn) -> int:
        cached = int(self._rows.cached_S[turn.slot])
        step = self._options.prefill_chunk if self._options.deterministic else self._next_count(turn)
        return self._passes.bucket(cached + step)

    def _fits(self, first: Turn, turn: Turn) -> bool:
        if turn.version != first.version:
            return False
        if self._options.deterministic:
            return self._attended(turn) == self._attended(first)
        return first is turn or self._next_count(first) <= 2 * self._next_count(turn) <= 4 * self._next_count(first)
