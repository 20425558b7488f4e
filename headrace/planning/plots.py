"""PNG plots of the rollout experiment. The only module that imports matplotlib, and only when a plot is drawn."""

import io
from collections.abc import Callable, Sequence
from typing import Any

from headrace.planning.experiment import Measured
from headrace.planning.frontier import frontier
from headrace.planning.rollout import CREDIT, CURVE, LAG, LOSES, MODES, PUBLISHED_THROUGHPUT, RULES

Draw = Callable[[Any, Sequence[Measured]], None]
_SIZE_IN = (7.0, 4.2)
_DPI = 110


def draw_plots(cells: Sequence[Measured]) -> dict[str, bytes]:
    """PNG bytes by file name; a section without cells has no plot."""
    table: tuple[tuple[str, str, Draw], ...] = (
        ("modes.png", MODES, _bars),
        ("frontier.png", RULES, _frontier),
        ("retention.png", RULES, _retention),
        ("lag_of_tokens.png", RULES, _token_lags),
        ("lag_throughput.png", LAG, _throughput),
        ("lag_rejection.png", LAG, _rejection),
        ("credit_throughput.png", CREDIT, _throughput),
        ("credit_idle.png", CREDIT, _idle),
        ("loses.png", LOSES, _bars),
        ("published_curve.png", CURVE, _curve),
    )
    plots: dict[str, bytes] = {}
    for name, section, draw in table:
        chosen = [cell for cell in cells if cell.section == section]
        if chosen:
            plots[name] = _png(draw, chosen)
    return plots


def _png(draw: Draw, cells: Sequence[Measured]) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_IN, dpi=_DPI, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.grid(visible=True, alpha=0.3)
    draw(axes, cells)
    data = io.BytesIO()
    canvas.print_png(data, metadata={"Software": "headrace"})
    return data.getvalue()


def _bars(axes: Any, cells: Sequence[Measured]) -> None:
    names = [cell.name for cell in cells][::-1]
    axes.barh(names, [cell.outcome.makespan_s for cell in cells][::-1], color="#3b6ea5")
    axes.set_xlabel("makespan, virtual seconds")
    axes.tick_params(axis="y", labelsize=7)


def _frontier(axes: Any, cells: Sequence[Measured]) -> None:
    for cell in cells:
        x, y = cell.outcome.lags.token_p95, cell.outcome.steady_groups_per_ks
        axes.scatter([x], [y], s=28)
        axes.annotate(cell.name, (x, y), textcoords="offset points", xytext=(5, 3), fontsize=7)
    edge = sorted(frontier(cells), key=lambda cell: cell.outcome.lags.token_p95)
    xs, ys = zip(*((cell.outcome.lags.token_p95, cell.outcome.steady_groups_per_ks) for cell in edge), strict=True)
    axes.scatter(xs, ys, s=70, facecolors="none", edgecolors="black", label="on the frontier, retention included")
    axes.legend(fontsize=7)
    axes.axhline(cells[0].fluid_groups_per_ks, color="grey", linestyle="--", linewidth=1)
    axes.set_xlabel("p95 token-weighted lag, updates")
    axes.set_ylabel("groups trained per 1000 s (dashed: fluid bound, all tasks kept)")
    axes.yaxis.label.set_size(8)


def _retention(axes: Any, cells: Sequence[Measured]) -> None:
    strata = sorted({name for cell in cells for name in cell.outcome.strata})
    width = 0.8 / max(1, len(strata))
    for index, stratum in enumerate(strata):
        values = [cell.outcome.strata[stratum].retention if stratum in cell.outcome.strata else 0.0 for cell in cells]
        axes.barh([place + index * width for place in range(len(cells))], values, height=width, label=stratum)
    axes.set_yticks([place + 0.4 - width / 2 for place in range(len(cells))], [cell.name for cell in cells], fontsize=7)
    axes.set_xlabel("retention: trained of decided groups")
    axes.legend(fontsize=8)


def _token_lags(axes: Any, cells: Sequence[Measured]) -> None:
    for cell in cells:
        tokens = cell.outcome.lags.tokens
        total, seen = sum(tokens.values()), 0
        xs: list[int] = []
        ys: list[float] = []
        for lag, count in tokens.items():
            seen += count
            xs.append(lag)
            ys.append(seen / total)
        axes.step(xs, ys, where="post", label=cell.name, linewidth=1.2)
    axes.set_xscale("symlog")
    axes.set_xlabel("lag of the token, updates")
    axes.set_ylabel("share of trained tokens at or below")
    axes.legend(fontsize=6)


def _lines(axes: Any, cells: Sequence[Measured], value: Callable[[Measured], float]) -> None:
    for name in dict.fromkeys(cell.name for cell in cells):
        points = [(cell.x, value(cell)) for cell in cells if cell.name == name and cell.x is not None]
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=4, label=name)
    axes.set_xlabel("largest allowed lag, updates" if cells[0].section == LAG else "credit_batches")
    axes.set_xscale("log", base=2)
    axes.legend(fontsize=8)


def _throughput(axes: Any, cells: Sequence[Measured]) -> None:
    _lines(axes, cells, lambda cell: cell.outcome.steady_groups_per_ks)
    axes.axhline(cells[0].fluid_groups_per_ks, color="grey", linestyle="--", linewidth=1)
    axes.set_ylabel("groups trained per 1000 s")


def _rejection(axes: Any, cells: Sequence[Measured]) -> None:
    hardest = _longest(cells)
    _lines(axes, cells, lambda cell: cell.outcome.strata[hardest].rejection_rate)
    axes.set_ylabel(f"rejection rate of `{hardest}` tasks")


def _idle(axes: Any, cells: Sequence[Measured]) -> None:
    _lines(axes, cells, lambda cell: cell.outcome.steady_trainer_idle)
    axes.set_ylabel("idle share of the trainer")


def _curve(axes: Any, cells: Sequence[Measured]) -> None:
    base = cells[0].outcome.groups_per_ks
    names = [cell.name for cell in cells]
    places = list(range(len(cells)))
    axes.plot(places, [cell.outcome.groups_per_ks / base for cell in cells], marker="o", label="simulated")
    axes.errorbar(
        places,
        PUBLISHED_THROUGHPUT[: len(cells)],
        yerr=[0.15 * value for value in PUBLISHED_THROUGHPUT[: len(cells)]],
        marker="s",
        capsize=4,
        label="published, with 15%",
    )
    axes.set_xticks(places, names)
    axes.set_xlabel("allowed lag, updates")
    axes.set_ylabel("throughput, synchronous = 1")
    axes.legend(fontsize=8)


def _longest(cells: Sequence[Measured]) -> str:
    """The stratum that rules reject most."""
    names = sorted({name for cell in cells for name in cell.outcome.strata})
    return max(names, key=lambda name: sum(c.outcome.strata[name].rejected for c in cells if name in c.outcome.strata))
