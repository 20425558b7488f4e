"""What the page plots, as plain data: axes, lines, bands and bounds. Drawing is the page's business.

Invariant: a value that was not measured is None and leaves a gap; it is never drawn as 0. All names are inert text.
"""

from collections.abc import Callable, Sequence

import msgspec

from headrace.reporting.folds.heldout import Round
from headrace.reporting.folds.stages import Series
from headrace.reporting.folds.updates import UpdateFigures
from headrace.reporting.plaintext import one_line
from headrace.reporting.report import RunReport

Values = tuple[float | None, ...]


class Line(msgspec.Struct, frozen=True):
    """One line.

    Attributes:
        name: legend.
        values: one for each x.
        low: lower end of a band around it, if it has one.
        high: upper end.
    """

    name: str
    values: Values
    low: Values = ()
    high: Values = ()


class Plot(msgspec.Struct, frozen=True):
    """One plot.

    Attributes:
        name: short, unique on the page.
        section: part of the page.
        title: for people.
        unit: of y.
        x: shared by all lines, rising.
        x_unit: `update`, or the unit of time since the start.
        lines: what is drawn.
        style: `line`, `points` (a line with marks), `stack` (bars on top of each other) or `log` (logarithmic y).
        bound: a level to compare with, if there is one.
        bound_name: what the level is.
        y_range: fixed range of y, if it has one.
        note: how to read it.
        is_count: whether y counts things, so that ticks are whole numbers.
        is_wide: whether it takes a row of the page.
    """

    name: str
    section: str
    title: str
    unit: str
    x: tuple[float, ...] = ()
    x_unit: str = ""
    lines: tuple[Line, ...] = ()
    style: str = "line"
    bound: float | None = None
    bound_name: str = ""
    y_range: tuple[float, float] | None = None
    note: str = ""
    is_count: bool = False
    is_wide: bool = False


def plots(report: RunReport) -> tuple[Plot, ...]:
    """All plots that have something to show, in the order of the page."""
    found = (_held_out(report), *_learning(report), *_flow(report), *_trust(report), *_trainer(report))
    return tuple(plot for plot in found if plot.x and any(v is not None for line in plot.lines for v in line.values))


def _held_out(report: RunReport) -> Plot:
    rounds = report.held_out.rounds
    x = tuple(sorted({item.version for item in rounds}))
    lines: list[Line] = []
    for temperature in report.held_out.temperatures:
        at = {item.version: item for item in report.held_out.at(temperature)}
        lines.append(
            Line(
                f"temperature {temperature:g}",
                _by_version(x, at, lambda item: item.overall.rate),
                _by_version(x, at, lambda item: item.overall.low),
                _by_version(x, at, lambda item: item.overall.high),
            )
        )
    return Plot(
        "held-out",
        "learning",
        "Held-out success",
        "share",
        tuple(float(version) for version in x),
        "update",
        tuple(lines),
        style="points",
        y_range=(0.0, 1.0),
        note="tasks that never train; bands are Wilson's 95% intervals",
    )


def _by_version(x: Sequence[int], at: dict[int, Round], get: Callable[[Round], float | None]) -> Values:
    return tuple(_short(get(at[version])) if version in at else None for version in x)


def _learning(report: RunReport) -> list[Plot]:
    rates = {point.update: point.per_hour for point in report.information.curve}
    drift = {item.update: item.mean_drift for item in report.order.by_update}
    mix = {item.update: item.mix for item in report.order.by_update}
    names = [row.difficulty for row in report.order.strata]
    note = "over members with a reward; sampled at the training temperature"
    reward = Plot("reward", "learning", "Mean training reward", "reward", note=note)
    information = Plot("information", "learning", "Effective training information", "effective trajectories per hour")
    note = "by difficulty; above 0 the stratum trains behind its turn"
    order = Plot("drift", "learning", "Order of training against order of drawing", "places late", note=note)
    shares = Plot("mix", "learning", "Mix that trained, by difficulty", "share", style="stack", y_range=(0.0, 1.0))
    return [
        _per_update(report, reward, {"mean reward": lambda item: item.mean_reward}),
        _per_update(report, information, {"rate since the update before": lambda item: rates.get(item.update)}),
        _per_update(report, order, {name: _of_name(drift, name) for name in names}),
        _per_update(report, shares, {name: _of_name(mix, name) for name in names} if len(names) > 1 else {}),
    ]


def _of_name(table: dict[int, dict[str, float]], name: str) -> Callable[[UpdateFigures], float | None]:
    return lambda item: table.get(item.update, {}).get(name)


def _flow(report: RunReport) -> list[Plot]:
    flow, stages, limits, workers = report.flow, report.stages, report.limits, report.workers
    waits = Plot(
        "waits",
        "flow",
        "Waiting time per stage",
        "mean wait",
        style="log",
        note="logarithmic; mean of what left the stage in each stretch of time, a point where something did",
        is_wide=True,
    )
    throughput = Plot(
        "throughput",
        "flow",
        "Effective token throughput",
        "tokens/s",
        note="trained: over the time since the version before; with a signal: its advantage is not 0",
    )
    cores = Plot(
        "environment-cpu", "flow", "CPU of environments", "cores", note="spread evenly over each episode's life"
    )
    note = "reached in each stretch of time; the most frequent kinds"
    cut = Plot("limits", "flow", "Timeouts and other limits", "count", style="stack", note=note, is_count=True)
    note = "busy while at least one call is out"
    busy = Plot("busy", "flow", "Workers at work", "share of time", y_range=(0.0, 1.0), note=note)
    return [
        _queue_age(report),
        _over_time(
            report, Plot("backlog", "flow", "Groups under way", "groups", is_count=True), (flow.ready, flow.outstanding)
        ),
        _over_time(report, throughput, flow.throughput),
        _over_time(report, cores, (flow.environment_cores,)),
        _over_time(report, cut, limits.over_time[:8]),
        _over_time(report, busy, tuple(worker.busy for worker in workers.workers)),
        _over_time(report, waits, stages.mean_waits, stages.bins_s),
    ]


def _queue_age(report: RunReport) -> Plot:
    ages = report.stages.queue_ages
    x, unit = _time(report, [age.t_s for age in ages])
    lines = (
        Line("p50", tuple(_short(age.p50_s) for age in ages)),
        Line("p95", tuple(_short(age.p95_s) for age in ages)),
        Line("oldest", tuple(_short(age.max_s) for age in ages)),
    )
    note = "from ready to selected, of the groups of each update; exact quantiles"
    return Plot("queue-age", "flow", "Queue age at selection", "s", x, unit, lines, note=note)


def _trust(report: RunReport) -> list[Plot]:
    tolerances = [item.canary_tolerance for item in report.updates.updates if item.canary_tolerance is not None]
    note = "span: versions inside one trajectory"
    lag = Plot("lag", "trust", "Lag behind the trainer, and span", "updates", note=note)
    note = "raw sequence weights; not a proof of unbiasedness"
    weights = Plot("ess", "trust", "Weight concentration", "ESS fraction, mean weight", note=note)
    mismatch = Plot(
        "mismatch",
        "trust",
        "Engine against trainer",
        "nats",
        style="log",
        bound=min(tolerances, default=None),
        bound_name="canary tolerance",
        note="largest absolute log-prob difference; the canary are fixed sequences",
    )
    return [
        _per_update(
            report,
            lag,
            {
                "oldest token": lambda item: item.oldest_lag,
                "token-weighted mean": lambda item: item.mean_lag,
                "span inside a trajectory": lambda item: item.max_span,
            },
        ),
        _per_update(
            report,
            weights,
            {"ESS fraction": lambda item: item.ess_fraction, "mean weight": lambda item: item.mean_weight},
        ),
        _per_update(
            report,
            mismatch,
            {
                "tokens of the newest version": lambda item: item.mismatch,
                "any trained token": lambda item: item.log_ratio_abs_max,
                "canary": lambda item: item.canary,
            },
        ),
        _per_update(
            report,
            Plot("kl", "trust", "How far each update moved", "nats per token"),
            {
                "KL(new, previous)": lambda item: item.kl_to_previous,
                "KL(behaviour, trainer), k1": lambda item: item.kl_behavior,
            },
        ),
        _per_update(
            report,
            Plot("times", "trust", "Time of each update", "s"),
            {
                "selection to step": lambda item: item.train_s,
                "of it, compute": lambda item: item.compute_s,
                "publication": lambda item: item.publish_s,
            },
        ),
    ]


def _trainer(report: RunReport) -> list[Plot]:
    """One plot for each figure that the trainer names."""
    names = sorted({name for item in report.updates.updates for name in item.metrics})
    return [
        _per_update(report, Plot(f"metric-{place}", "trainer", one_line(name, 60), ""), {name: _metric(name)})
        for place, name in enumerate(names)
    ]


def _metric(name: str) -> Callable[[UpdateFigures], float | None]:
    return lambda item: item.metrics.get(name)


def _per_update(report: RunReport, plot: Plot, lines: dict[str, Callable[[UpdateFigures], float | None]]) -> Plot:
    """The plot with one value of each line for each update."""
    items = report.updates.updates
    return msgspec.structs.replace(
        plot,
        x=tuple(float(item.update) for item in items),
        x_unit="update",
        lines=tuple(
            Line(one_line(name, 60), tuple(_short(get(item)) for item in items)) for name, get in lines.items()
        ),
    )


def _over_time(report: RunReport, plot: Plot, lines: Sequence[Series], bins_s: Sequence[float] | None = None) -> Plot:
    """The plot with one value of each line for each bin, by default those of the flow."""
    x, x_unit = _time(report, report.flow.bins_s if bins_s is None else bins_s)
    kept = [line for line in lines if any(value is not None for value in line.values)]
    named = tuple(Line(one_line(line.name, 60), tuple(_short(value) for value in line.values)) for line in kept)
    return msgspec.structs.replace(plot, x=x, x_unit=x_unit, lines=named)


def _time(report: RunReport, times_s: Sequence[float]) -> tuple[tuple[float, ...], str]:
    """Times since the start in a unit that fits the run."""
    for unit, seconds in (("h", 3600.0), ("min", 60.0)):
        if report.facts.wall_s > 5 * seconds:
            return tuple(float(f"{t / seconds:.6g}") for t in times_s), unit
    return tuple(float(f"{t:.6g}") for t in times_s), "s"


def _short(value: float | None) -> float | None:
    """Five digits are more than a plot shows."""
    return None if value is None else float(f"{value:.5g}")
