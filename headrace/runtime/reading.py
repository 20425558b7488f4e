"""What is read from a run's folder: one episode, verification, the report. Nothing is written but the page."""

from pathlib import Path

from rich.console import Console

from headrace.errors import ConfigError
from headrace.harness.codec import TextCodec
from headrace.records.arrays import IntArray
from headrace.records.ids import EpisodeId
from headrace.reporting import show
from headrace.reporting.html import render_page
from headrace.reporting.report import report_run
from headrace.reporting.terminal import print_report
from headrace.runtime.judging import judge_transcripts
from headrace.store.inspect import inspect_episode
from headrace.store.reader import open_reader
from headrace.store.verify import verify_run


def show_episode(run: Path, episode: str, *, has_logprobs: bool) -> str:
    """One episode as text.

    Raises:
        ConfigError: when the name is none, or the run has no such episode.
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
        except KeyError as error:
            raise ConfigError(f"{run} has no episode {episode}; ordinals, members and attempts count from 0") from error
        return show.show_episode(view, decode, has_logprobs=has_logprobs)


def verify(run: Path) -> tuple[str, bool]:
    """(text, whether the run is sound): its bytes and laws, and each transcript as its harness judges it."""
    report = verify_run(run)
    told, judged = judge_transcripts(run)
    counts = ", ".join(f"{count} {name}" for name, count in report.counts.items())
    problems = [*map(str, report.problems), *told]
    lines = [f"{run}: {counts}", f"head {report.head}", judged]
    with open_reader(run) as reader:
        if next(reader.events_of_kind("run_ended"), None) is None:
            lines.append("no end is recorded: the run goes on, or it was cut off and may be resumed")
    lines += [f"PROBLEM {problem}" for problem in problems]
    lines.append(f"NOT SOUND: {len(problems)} problems" if problems else "sound")
    return "\n".join(lines), not problems


def write_report(run: Path, page: Path, *, is_full: bool = False) -> None:
    """Prints the tables and writes the page."""
    with open_reader(run) as reader:
        report = report_run(reader.events(), reader.read)
    console = Console()
    print_report(report, console, is_full=is_full)
    if not page.parent.is_dir():
        raise ConfigError(f"{page}: there is no folder {page.parent}; make it first")
    page.write_text(render_page(report), encoding="utf-8")
    console.print(f"page: {page}", highlight=False, soft_wrap=True)
