"""The report as one HTML page that needs nothing else: no network, no other file.

Invariant: every text from tasks, policies and tools is escaped, data for the plots is JSON that cannot end its script, and
the page's own policy forbids it to load anything. The same report gives the same bytes.
"""

import importlib.resources
from collections.abc import Iterator, Sequence

import msgspec

from headrace.reporting.contents import headline, sections
from headrace.reporting.folds.heldout import Rate
from headrace.reporting.grids import Grid, Section, interval, per_resource
from headrace.reporting.plaintext import as_html, one_line
from headrace.reporting.plots import Plot, plots
from headrace.reporting.quantities import ABSENT, duration, number, percent
from headrace.reporting.report import RunReport

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)


def render_page(report: RunReport) -> str:
    """The page."""
    drawn, parts = plots(report), {section.name: section for section in sections(report, is_full=True)}
    title = f"Run {one_line(report.facts.run_id)}"
    body = [
        *_header(title, report),
        "<main>",
        *_cards(report),
        *_part("learning", "Learning", drawn, (parts["held-out"], parts["information"])),
        *_part("flow", "Flow over time", drawn, (parts["flow"], parts["stages"], parts["slowdown"])),
        *_workers(report, parts["workers"]),
        *_part("recovery", "Checkpoints and resumes", (), (parts["recovery"],)),
        *_limits(report, (parts["limits"], parts["guards"], parts["claims"])),
        *_part("funnel", "Funnel and strata", (), (parts["funnel"], parts["strata"])),
        *_part("trust", "Staleness and trust", drawn, (parts["updates"],)),
        *_part("trainer", "What the trainer reports", drawn, ()),
        *_config(report),
        "</main>",
    ]
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{as_html(title)}</title>",
            f"<!-- The plots are drawn by uPlot:\n{_asset('uplot/LICENSE')}\n-->",
            f"<style>{_asset('uplot/uPlot.min.css')}{_asset('report.css')}</style>",
            "</head>",
            "<body>",
            *body,
            f'<script type="application/json" id="plots">{script_json(drawn)}</script>',
            f"<script>{_asset('uplot/uPlot.iife.min.js')}</script>",
            f"<script>{_asset('report.js')}</script>",
            "</body>",
            "</html>",
            "",
        )
    )


def script_json(value: object) -> str:
    r"""JSON for the inside of a script element: ``<``, ``>`` and ``&`` are written as ``\u003c``, ``\u003e``, ``\u0026``."""
    text = msgspec.json.encode(value, order="deterministic").decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _asset(name: str) -> str:
    return (importlib.resources.files("headrace.reporting") / "assets" / name).read_text(encoding="utf-8").strip()


def _header(title: str, report: RunReport) -> Iterator[str]:
    yield f"<header><h1>{as_html(title)}</h1>"
    for line in headline(report):
        yield f'<p class="soft">{as_html(line)}</p>'
    links = ("learning", "flow", "workers", "recovery", "limits", "funnel", "trust", "trainer")
    yield "<nav>" + " ".join(f'<a href="#{name}">{name}</a>' for name in links) + "</nav>"
    yield "<noscript><p>The plots need JavaScript; every figure is also in the tables.</p></noscript></header>"


def _cards(report: RunReport) -> Iterator[str]:
    info, flow, updates, funnel = report.information, report.flow, report.updates, report.funnel
    yield '<div class="cards">'
    for temperature in report.held_out.temperatures:
        rounds = report.held_out.at(temperature)
        first, last = rounds[0].overall, rounds[-1].overall
        yield _card(
            f"held-out success, temperature {temperature:g}",
            f"{_rate(first)} → {_rate(last)}",
            f"95% {interval(last)}, {last.successes}/{last.graded} episodes at version {rounds[-1].version}",
        )
    for item in info.resources:
        yield _card(
            f"training information per {per_resource(item.name)}",
            number(item.information_per_hour),
            f"{number(info.total)} effective trajectories in {duration(info.hours * 3600)} on {number(item.amount)} "
            f"{one_line(item.name)}; retention {percent(info.retention)}, worst {one_line(info.worst or ABSENT)}",
        )
    yield _card(
        "trained tokens",
        f"{number(flow.trained_rate)} /s",
        f"{number(flow.signal_rate)} /s with an advantage other than 0; {number(flow.generated_rate)} /s sampled",
    )
    yield _card("trainer without work", percent(flow.starvation), flow.verdict)
    yield _card(
        "engine against trainer",
        f"{number(updates.largest_mismatch, 2)} nats",
        f"largest log-prob difference under the same weights; lag at most {number(updates.largest_lag)} updates, "
        f"smallest ESS {number(updates.smallest_ess)}",
    )
    yield _card(
        "environment CPU",
        duration(flow.environment_cpu_s),
        f"{percent(flow.environment_share)} of the cores; 95% of groups wait for the trainer at most "
        f"{duration(report.stages.queue_age_p95_s)}",
    )
    tasks = funnel.frontier
    yield _card(
        "tasks drawn",
        f"{tasks.drawn:,}",
        f"{tasks.trained:,} trained, {tasks.filtered:,} filtered, {tasks.abandoned:,} abandoned, {tasks.open:,} open"
        + ("" if funnel.is_conserved else ": DO NOT ADD UP"),
        is_bad=not funnel.is_conserved,
    )
    yield "</div>"


def _card(name: str, value: str, more: str, *, is_bad: bool = False) -> str:
    return (
        f'<div class="card{" bad" if is_bad else ""}"><div class="name">{as_html(name)}</div>'
        f'<div class="value">{as_html(value)}</div><div class="more">{as_html(more)}</div></div>'
    )


def _part(name: str, title: str, drawn: Sequence[Plot], parts: Sequence[Section]) -> Iterator[str]:
    """Plots of a part, then its tables; nothing when it has neither."""
    own = [plot for plot in drawn if plot.section == name]
    if not own and not parts:
        return
    yield f'<h2 id="{name}">{as_html(title)}</h2>'
    if own:
        yield f'<div class="plots{" small" if name == "trainer" else ""}">'
        for plot in own:
            yield f'<div class="plot{" wide" if plot.is_wide else ""}"><h3>{as_html(plot.title)}</h3>'
            yield f'<p class="note">{as_html(plot.note)}</p>'
            yield f'<div id="plot-{plot.name}"></div></div>'
        yield "</div>"
    for section in parts:
        yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    yield f"<h3 style='margin: 18px 0 8px'>{as_html(section.title)}</h3>"
    is_open = False
    for item in section.items:
        if isinstance(item, Grid) != is_open:
            yield '<div class="tables">' if isinstance(item, Grid) else "</div>"
            is_open = isinstance(item, Grid)
        yield _table(item) if isinstance(item, Grid) else f'<p class="line">{as_html(item)}</p>'
    if is_open:
        yield "</div>"


def _table(grid: Grid) -> str:
    head = "".join(_cell("th", name, place < grid.left) for place, name in enumerate(grid.columns))
    rows = "".join(
        "<tr>" + "".join(_cell("td", text, place < grid.left) for place, text in enumerate(row)) + "</tr>"
        for row in grid.rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(tag: str, text: str, is_left: bool) -> str:
    kind = ' class="left"' if is_left else ""
    return f"<{tag}{kind}>{as_html(text)}</{tag}>"


def _workers(report: RunReport, section: Section) -> Iterator[str]:
    yield '<h2 id="workers">Where the time went</h2>'
    if report.workers.workers:
        states = tuple(report.workers.workers[0].states_ns)
        yield '<div class="card"><div class="shares">'
        for worker in report.workers.workers:
            bars = "".join(
                f'<span style="width:{100 * worker.shares.get(state, 0.0):.3f}%;background:var(--state-{state})" '
                f'title="{state} {percent(worker.shares.get(state))}"></span>'
                for state in states
            )
            yield f'<div>{as_html(worker.worker)}</div><div class="bar">{bars}</div>'
        yield '</div><div class="legend">'
        yield "".join(f'<span><i style="background:var(--state-{state})"></i>{state}</span>' for state in states)
        yield "</div></div>"
    yield from _section(section)


def _limits(report: RunReport, parts: Sequence[Section]) -> Iterator[str]:
    yield '<h2 id="limits">Limits, claims and verdicts</h2>'
    counts = report.limits.counts
    if counts:
        most = max(item.count for item in counts)
        yield '<div class="card"><div class="counts">'
        for item in counts:
            yield f"<div>{as_html(item.kind)}: {as_html(one_line(item.name))}</div>"
            yield f'<div><div class="bar" style="width:{100 * item.count / most:.2f}%"></div></div>'
            yield f"<div>{item.count:,} {item.unit}</div>"
        yield "</div></div>"
    for section in parts:
        yield from _section(section)


def _config(report: RunReport) -> Iterator[str]:
    if report.facts.config is None:
        return
    text = msgspec.json.format(msgspec.json.encode(report.facts.config, order="deterministic"), indent=2).decode()
    yield "<details><summary>Effective configuration</summary>"
    yield f'<div class="card"><pre>{as_html(text)}</pre></div></details>'


def _rate(rate: Rate) -> str:
    return percent(rate.rate)
