"""The page and the terminal tables: nothing from a task, a policy or a tool is ever markup, and the bytes repeat."""

import html.parser
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from event_logs import POLICY, Log, episode_id, make_task, two_updates
from lawful_run import as_log, lawful_steps
from rich.console import Console

from headrace.records.evaluation import EvaluationCompleted, StratumScore
from headrace.records.ids import PolicyRef
from headrace.records.run import WeightsHeld, WorkerState
from headrace.reporting.html import render_page, script_json
from headrace.reporting.plaintext import as_html, inert, one_line
from headrace.reporting.plots import plots
from headrace.reporting.report import report_run
from headrace.reporting.terminal import print_report

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\"'&"


class Elements(html.parser.HTMLParser):
    """Counts elements, and keeps the text of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


def hostile_log() -> Log:
    """A run in which every text that can come from outside is an attack."""
    log = Log(updates=1)
    log.worker(0.0, HOSTILE, WorkerState.BUSY)
    log.add(0.0, WeightsHeld(HOSTILE, POLICY, HOSTILE, HOSTILE, 1), "held")
    log.commit(0.0, 0)
    strata = (StratumScore(HOSTILE, HOSTILE, 4, 2),)
    log.add(0.5, EvaluationCompleted(PolicyRef(POLICY, 0), 1.0, 4, 2, 0, strata, 0.5), "0/1.0")
    members = log.group(0.0, 1.0, 0, (1.0, 0.0), HOSTILE)
    log.group(0.0, 1.0, 1, (1.0, 0.0), HOSTILE, task=make_task(1, HOSTILE, HOSTILE))
    log.reject(1.0, 1, HOSTILE, difficulty=HOSTILE)
    log.update(1.0, 2.0, 3.0, 1, {0: members})
    for place, event in enumerate(log.events):
        if event.kind == "update_completed":
            result = msgspec.structs.replace(event.payload.result, metrics={HOSTILE: 1.0})  # type: ignore[union-attr]
            payload = msgspec.structs.replace(event.payload, result=result)
            log.events[place] = msgspec.structs.replace(event, payload=payload)
    log.end(4.0, reason=HOSTILE)
    return log


def test_hostile_text_adds_no_element_no_handler_and_no_script():
    log, tame = hostile_log(), two_updates()
    found = Elements(render_page(report_run(log.events, log.read)))
    assert (
        found.names.count("script")
        == Elements(render_page(report_run(tame.events, tame.read))).names.count("script")
        == 3
    )
    assert "img" not in found.names
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    names = {line["name"] for plot in json.loads(found.scripts[0]) for line in plot["lines"]}
    assert one_line(HOSTILE, 60) in names


def test_the_page_names_nothing_to_load_and_forbids_loading():
    log = two_updates()
    page = render_page(report_run(log.events, log.read))
    found = Elements(page)
    assert "default-src 'none'" in page
    assert not [value for name, value in found.attributes if name in ("src", "srcset", "action", "data")]
    links = [value for name, value in found.attributes if name == "href" and value is not None]
    assert links
    assert all(link.startswith("#") for link in links)
    assert "link" not in found.names
    assert "The MIT License" in page


def test_data_for_scripts_cannot_end_its_script_and_survives_whole():
    value = {"text": "</script><!--\u2028&", "number": 1.5, "absent": None}
    text = script_json(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == value


def test_control_and_direction_characters_are_written_out():
    assert inert("a\x1b[2J\u202eb\r\x00\n\x9b") == "a\\x1b[2J\\u202eb\\x0d\\x00\n\\x9b"
    assert one_line("a\nb" + "c" * 300, 10) == "a\\nbccccc…"
    assert as_html("<b>\x1b\"'&") == "&lt;b&gt;\\x1b&quot;&#x27;&amp;"


def test_a_terminal_table_of_hostile_text_holds_no_escape():
    log, stream = hostile_log(), io.StringIO()
    print_report(report_run(log.events, log.read), Console(file=stream, width=100))
    assert "\x1b" not in stream.getvalue()


def test_absent_figures_are_dashes_in_tables_and_gaps_in_plots():
    log = Log()
    log.commit(0.0, 0)
    log.start(1.0, episode_id(0, 0), log.draw(0.0, 0))
    report = report_run(log.events, log.read)
    assert {plot.name for plot in plots(report)} == {"backlog", "throughput"}
    stream = io.StringIO()
    print_report(report, Console(file=stream, width=100))
    text = stream.getvalue()
    assert "– no held-out round was completed" in text
    assert "– no update was made" in text
    assert "without work – of the time" in text
    assert "nothing trained yet" in text


def test_a_value_that_one_update_lacks_is_a_gap_and_not_zero():
    log = two_updates()
    log.events = [event for event in log.events if not (event.kind == "batch_scored" and event.key == "1")]
    drawn = {plot.name: plot for plot in plots(report_run(log.events, log.read))}
    (ess, _) = drawn["ess"].lines
    assert ess.values == (None, 0.9)


def test_every_plot_has_as_many_values_as_places_and_rising_places():
    log = two_updates()
    for plot in plots(report_run(log.events, log.read)):
        assert list(plot.x) == sorted(set(plot.x)), plot.name
        for line in plot.lines:
            assert len(line.values) == len(plot.x)
            assert len(line.low) == len(line.high)
            assert len(line.low) in (0, len(plot.x))


@pytest.mark.parametrize("width", [60, 80, 100])
def test_tables_fit_the_terminal_and_cut_no_heading(width: int):
    log, stream = two_updates(), io.StringIO()
    print_report(report_run(log.events, log.read), Console(file=stream, width=width))
    text = stream.getvalue()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text
    assert "disagree" in text


def test_a_lawful_run_on_every_stage_is_reported_whole():
    events, read = as_log(lawful_steps())
    report = report_run(events, read)
    assert report.funnel.is_conserved
    assert report.facts.updates_done == 2
    assert report.information.disputes == sum(event.kind == "verdict_disputed" for event in events) > 0
    assert report.held_out.rounds
    assert len(render_page(report)) > 50_000


def test_a_page_made_twice_by_processes_with_different_hash_seeds_is_the_same(tmp_path: Path):
    code = (
        "import sys; from lawful_run import as_log, lawful_steps; from headrace.reporting.html import render_page; "
        "from headrace.reporting.report import report_run; "
        "open(sys.argv[1], 'w').write(render_page(report_run(*as_log(lawful_steps()))))"
    )
    pages: list[bytes] = []
    for seed in ("1", "2"):
        file = tmp_path / seed
        root = Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{root}:{root / 'tests'}"}
        subprocess.run([sys.executable, "-c", code, str(file)], check=True, env=environment)
        pages.append(file.read_bytes())
    assert pages[0] == pages[1]
