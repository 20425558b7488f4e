"""What is read from a run's folder: one episode, verification, the report. Nothing is written but the page."""

import re
import textwrap
from pathlib import Path

from rich.console import Console

from headrace.errors import ConfigError
from headrace.harness.codec import TextCodec
from headrace.records.arrays import IntArray
from headrace.records.compaction import RecordDropped
from headrace.records.ids import EpisodeId
from headrace.reporting import show
from headrace.reporting.html import render_page
from headrace.reporting.report import report_run
from headrace.reporting.terminal import print_report
from headrace.runtime.judging import judge_transcripts
from headrace.runtime.rescoring import rescore_run
from headrace.store.inspect import inspect_episode
from headrace.store.kept import ranges
from headrace.store.reader import open_reader
from headrace.store.verify import verify_run

_WIDTH = 80
_GONE = {"retention": "as retention has it", "repair": "as a repair has recorded"}
_ADDRESS = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")


def show_episode(run: Path, episode: str, *, has_logprobs: bool) -> str:
    """One episode as text.

    Raises:
        ConfigError: when the name is none, or the run has no such episode.
        RecordDropped: when a compaction dropped it.
    """
    try:
        episode_id = EpisodeId.parse(episode)
    except ValueError as error:
        raise ConfigError(
            f"{episode!r} names no episode; write purpose.ordinal.member.attempt, such as train.3.0.0 or eval.12.0.0"
        ) from error
    codec = TextCodec.from_folder(run)

    def decode(ids: IntArray) -> str:
        return codec.decode(ids.tolist())

    with open_reader(run) as reader:
        try:
            view = inspect_episode(reader, episode_id)
        except RecordDropped:
            raise
        except KeyError as error:
            raise ConfigError(f"{run} has no episode {episode}; ordinals, members and attempts count from 0") from error
        return show.show_episode(view, decode, has_logprobs=has_logprobs)


def verify(run: Path, rescore: int | None = None) -> tuple[str, bool]:
    """(text, whether the run is sound): its bytes and laws, and each transcript as its harness judges it.

    With `rescore` also so many transcripts under the weights that they name (`headrace.runtime.rescoring`).
    Every line but those of findings fits 80 columns; each finding is one line, with addresses cut to twelve characters.
    """
    report = verify_run(run)
    told, judged = judge_transcripts(run)
    problems = [*map(str, report.problems), *told]
    with open_reader(run) as reader:
        has_ended = next(reader.events_of_kind("run_ended"), None) is not None
    lines = [f"run {run}", *_counted(report.counts), *_item("harness", judged)]
    if rescore is not None:
        differing, compared = rescore_run(run, rescore)
        problems += differing
        lines += _item("rescored", compared)
    lines.append(f"head     {report.head}")
    for cause, versions in report.absent.items():
        lines += _item("weights", f"of versions {ranges(versions)} are gone, {_GONE[cause]}")
    if not has_ended:
        lines += _item("end", "none is recorded: the run goes on, or it was cut off and may be resumed")
    lines += [f"PROBLEM  {shortened(problem)}" for problem in problems]
    if problems:
        lines += [f"NOT SOUND: {len(problems)} problems; see `headrace repair RUN --dry-run`"]
    else:
        lines += [f"sound: {report.counts.get('events', 0)} events, {report.counts.get('rows', 0)} rows"]
    return "\n".join(lines), not problems


def shortened(text: str) -> str:
    """One line, with every address cut to twelve characters and an ellipsis."""
    return " ".join(with_short_addresses(text).split())


def with_short_addresses(text: str) -> str:
    """The text as it stands, with every address cut to twelve characters and an ellipsis."""
    return _ADDRESS.sub(r"\1…", text)


def _counted(counts: dict[str, int]) -> list[str]:
    """What was looked at, in a paragraph each for kinds of events, kinds of rows, and the rest."""
    parts = {"events": "events.", "rows": "rows."}
    lines: list[str] = []
    for name, prefix in parts.items():
        kinds = [f"{key.removeprefix(prefix)} {n}" for key, n in counts.items() if key.startswith(prefix)]
        lines += _item(name, f"{counts.get(name, 0)}" + (f": {', '.join(kinds)}" if kinds else ""))
    others = [f"{key} {n}" for key, n in counts.items() if key not in parts and not key.startswith((*parts.values(),))]
    return lines + _item("others", ", ".join(others))


def _item(name: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=f"{name:<9}", subsequent_indent=" " * 9, break_on_hyphens=False)


def write_report(run: Path, page: Path, *, is_full: bool = False) -> None:
    """Prints the tables and writes the page."""
    with open_reader(run) as reader:
        report = report_run(reader.events(), reader.read, reader.late_writes())
    console = Console()
    print_report(report, console, is_full=is_full)
    if not page.parent.is_dir():
        raise ConfigError(f"{page}: there is no folder {page.parent}; make it first")
    page.write_text(render_page(report), encoding="utf-8")
    console.print(f"page: {page}", highlight=False, soft_wrap=True)
