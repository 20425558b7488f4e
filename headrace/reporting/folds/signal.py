"""The learning signal by difficulty: raw weights before corrections, what corrections and filters removed, clipped tokens.

Invariant: rows and tokens add up over difficulties to those of the log; a figure that no update recorded is absent.
"""

from collections import Counter

import msgspec

from headrace.records.gate import BatchGated, Breach
from headrace.records.update import SignalFigures, TokenCounts
from headrace.records.weighing import StrataWeighed
from headrace.reporting.folds.index import RunIndex
from headrace.reporting.quantities import ratio


class StratumSignal(msgspec.Struct, frozen=True):
    """One difficulty, over all updates.

    Attributes:
        difficulty: stratum.
        rows: scored rows.
        tokens: scored trained tokens.
        smallest_ess: lowest effective sample size fraction of an update.
        largest_weight: largest raw sequence weight.
        largest_k_hat: highest Pareto shape; None when no update had rows enough.
        kl_k1: KL(behaviour, trainer), token-weighted mean over updates, nats per token.
        kl_k3: the same by the estimate that is never negative.
        counts: what updates did to its tokens.
        gated: rows that the statistical gate down-weighted, masked or rejected.
        outside: share of scored tokens outside the clip distances; None where nobody counted.
    """

    difficulty: str
    rows: int
    tokens: int
    smallest_ess: float
    largest_weight: float
    largest_k_hat: float | None
    kl_k1: float | None
    kl_k3: float | None
    counts: TokenCounts
    gated: int = 0
    outside: float | None = None


class Removed(msgspec.Struct, frozen=True):
    """Members that a filter removed or whose reward it changed.

    Attributes:
        filter: its name.
        difficulty: stratum.
        members: how many.
    """

    filter: str
    difficulty: str
    members: int


class GateCount(msgspec.Struct, frozen=True):
    """Batches that left one bound of the statistical gate, by what was done.

    Attributes:
        figure: that left its bound.
        decision: what was done.
        batches: how many.
        worst: the furthest value.
        bound: what is allowed.
    """

    figure: str
    decision: str
    batches: int
    worst: float
    bound: float


class Replayed(msgspec.Struct, frozen=True):
    """Groups that trained again.

    Attributes:
        groups: times that a group was replayed.
        share: of all planned rows.
        largest_use: highest number of a use.
        mean_lag: mean over these groups of their token-weighted lags, updates.
        oldest_lag: of any replayed token, updates.
        smallest_ess: lowest effective sample size fraction of an update's replayed rows alone.
        largest_weight: largest raw sequence weight among them.
        retired: groups that are replayed no more, by reason.
    """

    groups: int
    share: float
    largest_use: int
    mean_lag: float
    oldest_lag: int
    smallest_ess: float | None
    largest_weight: float | None
    retired: dict[str, int]


class LearningSignal(msgspec.Struct, frozen=True):
    """The signal of a run.

    Attributes:
        strata: by difficulty.
        removed: by filter and difficulty.
        gate: by figure and decision.
        judged: batches that the gate judged; one that was refilled counts twice.
        replay: what trained again; None when nothing did.
        weights: newest weights by acceptance; None where rows are not weighed.
        smallest_weight_ess: lowest effective sample size of such weights alone, as a share; None where there were none.
    """

    strata: tuple[StratumSignal, ...]
    removed: tuple[Removed, ...]
    gate: tuple[GateCount, ...] = ()
    judged: int = 0
    replay: Replayed | None = None
    weights: StrataWeighed | None = None
    smallest_weight_ess: float | None = None


def learning_signal(index: RunIndex) -> LearningSignal:
    """The figures so far."""
    figures: dict[str, list[SignalFigures]] = {}
    counts: dict[str, TokenCounts] = {}
    removed: dict[tuple[str, str], int] = {}
    gated: dict[str, int] = {}
    judged = [gated for life in index.updates.values() for gated in life.gated]
    for item in (item for batch in judged for item in batch.strata):
        gated[item.difficulty] = gated.get(item.difficulty, 0) + item.affected
    for life in index.updates.values():
        for item in life.scored.strata if life.scored else ():
            figures.setdefault(item.difficulty, []).append(item.figures)
        for item in life.strata:
            counts[item.difficulty] = counts.get(item.difficulty, TokenCounts()) + item.counts
        for item in life.planned.removed if life.planned else ():
            key = (item.filter, item.difficulty)
            removed[key] = removed.get(key, 0) + item.members
    return LearningSignal(
        strata=tuple(
            _stratum(name, found, counts.get(name, TokenCounts()), gated.get(name, 0))
            for name, found in sorted(figures.items())
        ),
        removed=tuple(Removed(*key, members) for key, members in sorted(removed.items())),
        gate=_gate(judged),
        judged=len(judged),
        replay=_replay(index),
        weights=next((life.weighed for life in reversed(index.updates.values()) if life.weighed is not None), None),
        smallest_weight_ess=min(
            (
                life.weighed.ess_fraction
                for life in index.updates.values()
                if life.weighed is not None and life.weighed.ess_fraction is not None
            ),
            default=None,
        ),
    )


def _replay(index: RunIndex) -> Replayed | None:
    """What was replayed, once anything was."""
    planned = [life.planned for life in index.updates.values() if life.planned is not None]
    groups = [item for batch in planned for item in batch.replayed]
    if not groups:
        return None
    rows = [row for life in index.updates.values() for row in life.rows]
    figures = [life.scored.replayed for life in index.updates.values() if life.scored and life.scored.replayed]
    retired = Counter(item.reason for life in index.updates.values() for item in life.retired)
    return Replayed(
        groups=len(groups),
        share=sum(row.use > 1 for row in rows) / len(rows),
        largest_use=max(item.use for item in groups),
        mean_lag=sum(item.mean_lag for item in groups) / len(groups),
        oldest_lag=max(item.oldest_lag for item in groups),
        smallest_ess=min((item.ess_fraction for item in figures), default=None),
        largest_weight=max((item.maximum for item in figures), default=None),
        retired=dict(sorted(retired.items())),
    )


def _gate(judged: list[BatchGated]) -> tuple[GateCount, ...]:
    found: dict[tuple[str, str], list[Breach]] = {}
    for batch in judged:
        for breach in batch.breaches:
            found.setdefault((breach.figure, batch.decision), []).append(breach)
    counts: list[GateCount] = []
    for (figure, decision), some in sorted(found.items()):
        worst = max(some, key=lambda item: abs(item.value - item.bound))
        counts.append(GateCount(figure, decision, len(some), worst.value, worst.bound))
    return tuple(counts)


def _stratum(name: str, found: list[SignalFigures], counts: TokenCounts, gated: int) -> StratumSignal:
    tokens = sum(item.tokens for item in found)
    return StratumSignal(
        difficulty=name,
        rows=sum(item.rows for item in found),
        tokens=tokens,
        smallest_ess=min(item.ess_fraction for item in found),
        largest_weight=max(item.maximum for item in found),
        largest_k_hat=max((item.k_hat for item in found if item.k_hat is not None), default=None),
        kl_k1=ratio(sum(item.kl_k1 * item.tokens for item in found), tokens),
        kl_k3=ratio(sum(item.kl_k3 * item.tokens for item in found), tokens),
        counts=counts,
        gated=gated,
        outside=ratio(sum((item.outside or 0.0) * item.tokens for item in found), tokens)
        if any(item.outside is not None for item in found)
        else None,
    )
