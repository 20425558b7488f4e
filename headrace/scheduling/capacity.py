"""Capacity: how many batches may be admitted ahead, found while the run goes on.

Invariant: the credit moves once per version, by at most half a batch, and stays within [1, `most_credit_batches`]; lowering
it ends no running work.

Below the knee of throughput the trainer starves; above it every further group only waits. What waits is measured: by
Little's law, episodes that wait w seconds each, at the rate at which they end, are a queue, and a queue of one batch is one
version of lag from admission to update. The rule keeps that queue at a third of a batch. Slots then stand idle for about 2%
of the time in the ten-times experiment, and the wait of finished groups does not build up.

While nothing waits, throughput is what is in flight over its residence, by the same law. A trainer that is idle for a share
i then needs (credit + 1) / (1 - i) batches in flight in place of credit + 1; a residence lasts credit + 1 versions, so that
is i / (1 - i) batches a version. The rule adds i, which is less, and the less the nearer the queue is to what is kept.
"""

import msgspec

TARGET_BATCHES = 1 / 3
"""The queue that is kept, in batches: what a stage needs before it so as not to run dry between two arrivals."""

_GAIN = 0.15
"""Share of a queue's excess that one version takes away. An episode shows the queue that it met, one residence ago: at 0.15
the loop is slower than a residence of four versions, so it does not swing."""

_MOST = 0.5
"""Batches per version, up or down."""

_LEAST_IDLE = 0.02
"""A trainer that is idle for less has nothing to gain from more work in flight."""


class CapacityWindow(msgspec.Struct, frozen=True):
    """What the time of one version showed.

    Attributes:
        interval_s: how long it lasted.
        episodes: training episodes that ended in it.
        wait_s: median over them of the seconds that each waited for a slot of the engine, of the environment or of
            the service behind it.
        ready_groups: finished groups that no update had taken at its end.
        idle_share: share of it in which the trainer had nothing to do.
    """

    interval_s: float
    episodes: int
    wait_s: float
    ready_groups: int
    idle_share: float


class CapacityDecision(msgspec.Struct, frozen=True):
    """The credit from now on.

    Attributes:
        credit_batches: batches that may be admitted ahead, a fraction.
        queued_batches: work that waited, in batches.
        reason: why it moved, or did not.
    """

    credit_batches: float
    queued_batches: float
    reason: str


class Capacity(msgspec.Struct, frozen=True):
    """The rule.

    Attributes:
        batch_groups: groups of one update.
        group_size: members of a group.
        most_credit_batches: the credit never exceeds it.
    """

    batch_groups: int
    group_size: int
    most_credit_batches: int

    def max_outstanding(self, credit_batches: float) -> int:
        """Largest number of groups that may hold a slot under a credit."""
        return int((credit_batches + 1.0) * self.batch_groups)

    def queued_batches(self, window: CapacityWindow) -> float:
        """Work that waits before slots, and finished groups beyond the next batch.

        Example: 128 episodes in 60 s that waited 20 s each are a queue of 42.7 episodes, with 8 members and 16 groups a
        third of a batch.
        """
        episodes = window.wait_s * window.episodes / max(window.interval_s, 1e-9)
        excess = max(0, window.ready_groups - self.batch_groups)
        return episodes / (self.group_size * self.batch_groups) + excess / self.batch_groups

    def decide(self, credit_batches: float, window: CapacityWindow) -> CapacityDecision:
        """The credit after a window."""
        queued = self.queued_batches(window)
        missing = TARGET_BATCHES - queued
        step = window.idle_share * missing / TARGET_BATCHES if missing > 0.0 else _GAIN * missing
        step = max(-_MOST, min(_MOST, step))
        if step > 0.0 and window.idle_share < _LEAST_IDLE:
            return CapacityDecision(credit_batches, queued, "the trainer does not starve")
        credit = max(1.0, min(float(self.most_credit_batches), credit_batches + step))
        if credit == credit_batches:
            return CapacityDecision(credit, queued, f"at the bound of {credit:g}")
        if step > 0.0:
            reason = f"the trainer starves for {window.idle_share:.0%} while little waits"
        else:
            reason = "more waits than keeps the slots busy"
        return CapacityDecision(credit, queued, reason)
