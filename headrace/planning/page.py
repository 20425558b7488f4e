"""One HTML page of the rollout experiment, with its plots inside: it loads nothing."""

import base64
import html
from collections.abc import Mapping, Sequence

from headrace.planning.experiment import Measured
from headrace.planning.rollout import CREDIT, CURVE, LAG, LOSES, MODES, RULES
from headrace.planning.tables import COLUMNS, Value, curve_table, frontier_table, losses, reference_table, row_of

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1200px;padding:0 1rem;color:#1c2430}
table{border-collapse:collapse;font-size:12px;margin:.5rem 0 1rem;display:block;overflow-x:auto}
th,td{padding:3px 8px;border-bottom:1px solid #dde3ea;text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}
figure{display:inline-block;margin:.5rem 1rem .5rem 0}img{max-width:560px;border:1px solid #dde3ea}
.note{background:#fff6df;border-left:4px solid #d9a400;padding:.6rem 1rem}dt{font-weight:600}
"""
_SECTIONS = (
    (MODES, "Modes", "The same loop with and without waiting.", ("modes.png",)),
    (
        RULES,
        "Rules",
        "Every rule of this project, and those in use elsewhere as values of it, on the same draws.",
        ("frontier.png", "retention.png", "lag_of_tokens.png"),
    ),
    (LAG, "Largest allowed lag", "Each rule that bounds lag, swept.", ("lag_throughput.png", "lag_rejection.png")),
    (CREDIT, "Credit", "`pace` and `in order`, swept.", ("credit_throughput.png", "credit_idle.png")),
    (LOSES, "Where asynchronous loses", "Pairs in which waiting is the faster way.", ("loses.png",)),
    (CURVE, "A published curve", "Throughput against the allowed lag.", ("published_curve.png",)),
)


def render_page(facts: Mapping[str, str], cells: Sequence[Measured], plots: Mapping[str, bytes]) -> str:
    """The page.

    Args:
        facts: what was run, by name.
        cells: all of them.
        plots: PNG bytes by file name.
    """
    body = ["<h1>Scheduling experiment</h1>", f'<p class="note">{html.escape(facts["statement"])}</p>', "<dl>"]
    body += [
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>"
        for name, text in facts.items()
        if name != "statement"
    ]
    body.append("</dl>")
    for section, title, text, names in _SECTIONS:
        chosen = [cell for cell in cells if cell.section == section]
        if not chosen:
            continue
        body += [f"<h2>{title}</h2>", f"<p>{html.escape(text)}</p>"]
        body += [_figure(name, plots[name]) for name in names if name in plots]
        if section == LOSES:
            body += ["<ul>", *(f"<li>{html.escape(line)}</li>" for line in losses(cells)), "</ul>"]
        body.append(_table([row_of(cell) for cell in chosen]))
        if section == RULES:
            body += [_table(frontier_table(cells)), _table(reference_table(cells))]
        if section == CURVE:
            body.append(_table(curve_table(cells)))
    body += ["<h2>Columns</h2>", "<dl>", *(f"<dt>{n}</dt><dd>{html.escape(t)}</dd>" for n, t in COLUMNS), "</dl>"]
    head = f'<meta charset="utf-8"><title>Scheduling experiment</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(body) + "\n</body></html>\n"


def _figure(name: str, data: bytes) -> str:
    source = base64.b64encode(data).decode()
    return f'<figure><img alt="{html.escape(name)}" src="data:image/png;base64,{source}"></figure>'


def _table(rows: Sequence[Mapping[str, Value]]) -> str:
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name != "section"]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = ["<tr>" + "".join(f"<td>{_text(row.get(name))}</td>" for name in names) + "</tr>" for row in rows]
    return f"<table><tr>{head}</tr>\n" + "\n".join(lines) + "</table>"


def _text(value: Value) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return html.escape(str(value))
