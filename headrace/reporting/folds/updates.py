"""Figures of every update: reward, lag and span, weight concentration, mismatch, KL, times of training and publication."""

import msgspec

from headrace.reporting.folds.index import RunIndex
from headrace.reporting.folds.lives import UpdateLife, VersionLife
from headrace.reporting.quantities import mean, quantile, ratio


class UpdateFigures(msgspec.Struct, frozen=True):
    """One update. None stands for what the log does not hold.

    Attributes:
        update: number.
        version: that it made, once committed.
        t_s: commit of that version, else the last thing known of the update, seconds since the start.
        rows: trained rows.
        episodes: whose rows they are; one that forked has a row for each of its paths.
        mean_reward: over members with a reward.
        oldest_lag: largest lag of a trained token, updates.
        mean_lag: token-weighted, updates.
        max_span: largest version span inside one trajectory.
        ess_fraction: effective sample size of raw sequence weights over their count.
        mean_weight: mean raw sequence weight; 1 in expectation when support is shared.
        kl_behavior: k1 estimate of KL(behaviour, trainer), nats per trained token.
        mismatch: largest log-prob difference of engine and trainer on fresh tokens of the base version, nats.
        log_ratio_abs_max: the same over all trained tokens, any version.
        old_cache_tokens: trained tokens sampled in a cache that an older version than theirs had a part in.
        old_cache_difference: as `mismatch`, over those of the base version; they are held to no bound.
        kl_to_previous: KL(new, previous) on fixed sequences, nats per token.
        canary: largest log-prob difference on the canary sequences, nats.
        canary_tolerance: bound; above it the version is not served.
        train_s: selection to optimizer step, seconds.
        compute_s: forward, backward and step, seconds.
        publish_s: optimizer step to activation, seconds.
        pause_s: seconds in which the switch kept the engine from generating.
        standstill_s: the same with loading the weights and scoring the canary.
        rebuilt_tokens: cache entries computed again.
        metrics: the trainer's own, by name.
    """

    update: int
    version: int | None
    t_s: float | None
    rows: int | None
    episodes: int | None
    mean_reward: float | None
    oldest_lag: int | None
    mean_lag: float | None
    max_span: int | None
    ess_fraction: float | None
    mean_weight: float | None
    kl_behavior: float | None
    mismatch: float | None
    log_ratio_abs_max: float | None
    old_cache_tokens: int
    old_cache_difference: float | None
    kl_to_previous: float | None
    canary: float | None
    canary_tolerance: float | None
    train_s: float | None
    compute_s: float | None
    publish_s: float | None
    pause_s: float | None
    standstill_s: float | None
    rebuilt_tokens: int | None
    metrics: dict[str, float]

    @property
    def whole_s(self) -> float | None:
        """Seconds from selection to activation; None until the version is served."""
        return None if self.train_s is None or self.publish_s is None else self.train_s + self.publish_s

    @property
    def standstill_share(self) -> float | None:
        """Standstill over the whole update."""
        return None if self.standstill_s is None or self.whole_s is None else ratio(self.standstill_s, self.whole_s)


class Updates(msgspec.Struct, frozen=True):
    """All updates, and what sums them up.

    Attributes:
        updates: in order.
        initial_canary: largest log-prob difference of version 0 on the canary sequences; None when not checked.
        largest_mismatch: over all updates; None when never measured.
        old_cache_tokens: trained tokens that saw a cache older than their version, over all updates.
        old_cache_difference: largest of all updates; None when never measured.
        largest_lag: of any trained token; None when nothing trained.
        mean_lag: mean of the updates' token-weighted lags.
        lag_p95: 95% quantile of the updates' oldest lags.
        largest_span: inside one trajectory.
        smallest_ess: lowest effective sample size fraction.
        rows_per_episode: trained rows over episodes; 1 when no episode forked, None when nothing trained.
        standstill_share: seconds in which publications kept the engine from generating over those of the updates, from
            selection to activation; the computing of caches comes on top. None when nothing was measured.
    """

    updates: tuple[UpdateFigures, ...]
    initial_canary: float | None
    largest_mismatch: float | None
    old_cache_tokens: int
    old_cache_difference: float | None
    largest_lag: int | None
    mean_lag: float | None
    lag_p95: float | None
    largest_span: int | None
    smallest_ess: float | None
    rows_per_episode: float | None
    standstill_share: float | None


def updates(index: RunIndex) -> Updates:
    """The figures so far."""
    by_update = {life.update: life for life in index.versions.values() if life.update is not None}
    figures = tuple(_figures(life, by_update.get(life.update)) for life in index.updates.values())
    initial = next((life.canary for life in index.versions.values() if life.update is None), None)
    num_episodes = sum(item.episodes or 0 for item in figures)
    lags = [item.oldest_lag for item in figures if item.oldest_lag is not None]
    return Updates(
        updates=figures,
        initial_canary=initial.max_abs_difference if initial else None,
        largest_mismatch=max((item.mismatch for item in figures if item.mismatch is not None), default=None),
        old_cache_tokens=sum(item.old_cache_tokens for item in figures),
        old_cache_difference=max(
            (item.old_cache_difference for item in figures if item.old_cache_difference is not None), default=None
        ),
        largest_lag=max(lags, default=None),
        mean_lag=mean([item.mean_lag for item in figures if item.mean_lag is not None]),
        lag_p95=quantile(lags, 0.95),
        largest_span=max((item.max_span for item in figures if item.max_span is not None), default=None),
        smallest_ess=min((item.ess_fraction for item in figures if item.ess_fraction is not None), default=None),
        rows_per_episode=sum(item.rows or 0 for item in figures) / num_episodes if num_episodes else None,
        standstill_share=_standstill_share(figures),
    )


def _figures(life: UpdateLife, version: VersionLife | None) -> UpdateFigures:
    planned, scored, result = life.planned, life.scored, life.result
    signal = scored.figures if scored else None
    canary = version.canary if version else None
    ends_ns = (version.committed_ns if version else None, life.completed_ns, life.selected_ns)
    end_ns = next((t_ns for t_ns in ends_ns if t_ns is not None), None)
    activated_ns = version.activated_ns if version else None
    return UpdateFigures(
        update=life.update,
        version=version.policy.version if version else None,
        t_s=None if end_ns is None else end_ns / 1e9,
        rows=planned.rows if planned else None,
        episodes=len({row.transcript for row in life.rows}) if planned else None,
        mean_reward=planned.mean_reward if planned else None,
        oldest_lag=planned.oldest_lag if planned else None,
        mean_lag=planned.mean_lag if planned else None,
        max_span=planned.max_span if planned else None,
        ess_fraction=scored.ess_fraction if scored else None,
        mean_weight=scored.mean_weight if scored else None,
        kl_behavior=scored.kl if scored else None,
        mismatch=scored.mismatch if scored else None,
        log_ratio_abs_max=scored.log_ratio_abs_max if scored else None,
        old_cache_tokens=signal.old_cache_tokens if signal else 0,
        old_cache_difference=signal.old_cache_difference if signal else None,
        kl_to_previous=version.kl_to_previous if version else None,
        canary=canary.max_abs_difference if canary else None,
        canary_tolerance=canary.tolerance if canary else None,
        train_s=_seconds(life.selected_ns, life.completed_ns),
        compute_s=result.compute_s if result else None,
        publish_s=_seconds(life.completed_ns, activated_ns),
        pause_s=version.pause_s if version else None,
        standstill_s=_standstill_s(version),
        rebuilt_tokens=version.rebuilt_tokens if version else None,
        metrics=dict(sorted(result.metrics.items())) if result else {},
    )


def _standstill_s(version: VersionLife | None) -> float | None:
    if version is None or version.pause_s is None or version.load_s is None:
        return None
    return version.load_s + (version.canary.score_s if version.canary else 0.0) + version.pause_s


def _standstill_share(figures: tuple[UpdateFigures, ...]) -> float | None:
    parts = [
        (item.standstill_s, item.whole_s)
        for item in figures
        if item.standstill_s is not None and item.whole_s is not None
    ]
    return ratio(sum(still_s for still_s, _ in parts), sum(whole_s for _, whole_s in parts))


def _seconds(begin_ns: int | None, end_ns: int | None) -> float | None:
    return None if begin_ns is None or end_ns is None else (end_ns - begin_ns) / 1e9
