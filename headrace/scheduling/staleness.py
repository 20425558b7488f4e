"""Staleness: which ready groups may train now, which are rejected, and which must not be left behind.

Two figures, never one: the *span* of versions inside a trajectory and its *lag* behind the trainer. Lag of a token is the
version that the gradient is taken at minus the version that sampled it.
"""

from collections.abc import Sequence

import msgspec

from headrace.config import StalenessPolicy


class Lag(msgspec.Struct, frozen=True):
    """Lag of one group's sampled tokens behind the trainer, in updates.

    Attributes:
        oldest: of its oldest token; -1 when nothing was sampled.
        newest: of its newest token; -1 when nothing was sampled.
        mean: token-weighted; -1 when nothing was sampled.
        span: largest difference of versions inside one of its trajectories.
    """

    oldest: int
    newest: int
    mean: float
    span: int


class Sampled(msgspec.Struct, frozen=True):
    """Sampled tokens of one trajectory by version.

    Attributes:
        tokens: (version, number of tokens, at least 1) with rising versions.
    """

    tokens: tuple[tuple[int, int], ...]


def lag_of(trajectories: Sequence[Sampled], version: int) -> Lag:
    """Lag of a group at a trainer version.

    Example: 10 tokens of version 3 and 30 of version 5, trained at 6, lag 3 at the oldest, 1 at the newest, 1.5 in the
    mean, with a span of 2.
    """
    versions: list[int] = []
    total = behind = span = 0
    for trajectory in trajectories:
        if not trajectory.tokens:
            continue
        span = max(span, trajectory.tokens[-1][0] - trajectory.tokens[0][0])
        for sampled, tokens in trajectory.tokens:
            if tokens > 0:
                versions.append(sampled)
                total += tokens
                behind += (version - sampled) * tokens
    if not versions:
        return Lag(-1, -1, -1.0, 0)
    return Lag(version - min(versions), version - max(versions), behind / total, span)


def must_train_now(versions: Sequence[int], version: int, max_lag: int, batch_groups: int) -> int:
    """How many of the oldest open groups this update has to take so that none can exceed `max_lag`.

    Earliest-deadline feasibility: a group of version w has to train at w + max_lag at the latest, and each update takes
    `batch_groups`. With d_k groups due within k further updates, max_k (d_k - k * batch_groups) of them are due now.

    Args:
        versions: version of each open group's oldest token, or of its admission while nothing is sampled yet.
        version: version that the next gradient is taken at.
        max_lag: bound in updates.
        batch_groups: groups of one update.

    Example: batch of 2, bound 1, open groups of versions 0, 0, 0 at version 0: one more update fits two of them, so one
    must train now.
    """
    due = sorted(w + max_lag - version for w in versions)
    needed = 0
    for position, slack in enumerate(due, start=1):
        needed = max(needed, position - max(slack, 0) * batch_groups)
    return needed


class StalenessRule(msgspec.Struct, frozen=True):
    """The configured rule.

    `pace`, `wait` and `window` end no work. `drop`, `cancel` and `requeue` bound lag by giving up work, so a task that
    outlasts `max_lag` updates never trains: retention by stratum shows it.

    Attributes:
        policy: which.
        max_lag: bound of every policy but `pace`, in updates.
    """

    policy: StalenessPolicy
    max_lag: int

    @property
    def cancels(self) -> bool:
        """Whether running groups are asked about at all."""
        return self.policy == "cancel"

    @property
    def requeues(self) -> bool:
        """Whether the task of a stale group is drawn again, under a new ordinal, before any other."""
        return self.policy == "requeue"

    def drop_reason(self, oldest_lag: int) -> str | None:
        """Why a finished group whose oldest token lags so far behind may not train; None keeps it."""
        if oldest_lag > self.max_lag and self.policy in ("drop", "cancel", "requeue"):
            return f"stale: lag {oldest_lag} > {self.max_lag}"
        return None

    def cancel_reason(self, version: int, now: int) -> str | None:
        """Why a running group whose oldest token may be of `version` is ended at version `now`; None lets it run."""
        if not self.cancels or now - version <= self.max_lag:
            return None
        return f"cancelled: lag {now - version} > {self.max_lag}"
