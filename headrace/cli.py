"""The command line: argument parsing only. Every command's `--help` says what it does and shows an example."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace import __version__
from headrace.errors import HeadraceError

_DESCRIPTION = """\
Headrace: a rollout system for agentic RL of language models, from a task to a policy update and round again.

  headrace train examples/arithmetic/train.toml    run a training job, with live progress and a report
  headrace show train.3.0.0                        one episode: turns, calls, masks, log-probs, versions, verdict
  headrace verify                                  hashes, alignment and conservation of the newest run
  headrace report                                  the report of the newest run again, from its event log alone
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status of a command: 0 done, 1 a stated failure, 2 wrong usage, 130 interrupted."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return int(options.run_command(options))
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("headrace: interrupted; what was sealed is in the run's folder", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_train(commands)
    _add_show(commands)
    _add_verify(commands)
    _add_report(commands)
    return parser


def _command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str, example: str):
    return commands.add_parser(
        name,
        help=text.partition(".")[0],
        description=text,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder that holds runs (default: runs)")
    parser.add_argument("--run", default=None, help="a run's name or folder (default: the newest)")


def _add_train(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _command(
        commands,
        "train",
        "Runs a training job from a TOML file. Overrides are section.key=value with TOML literals.",
        "headrace train examples/arithmetic/train.toml run.seed=3 schedule.mode=separate_async schedule.credit_batches=1",
    )
    parser.add_argument("config", type=Path, help="TOML file")
    parser.add_argument("overrides", nargs="*", help="section.key=value")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder that holds runs (default: runs)")
    parser.add_argument("--run", default=None, help="name of the new run (default: the next free run-NNN)")
    parser.set_defaults(run_command=_train)


def _add_show(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _command(
        commands,
        "show",
        "Shows one episode: turns, calls, observations, what is trained and what is masked, versions, verdict.",
        "headrace show train.3.0.0 --logprobs",
    )
    parser.add_argument("episode", help="purpose.ordinal.member.attempt, such as train.3.0.0 or eval.12.0.0")
    _add_run_arguments(parser)
    parser.add_argument("--logprobs", action="store_true", help="every sampled token with its log-prob")
    parser.set_defaults(run_command=_show)


def _add_verify(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _command(
        commands,
        "verify",
        "Checks a run: hash chain, every address, alignment, versions, conservation. Exit status 1 on any problem.",
        "headrace verify --run run-001",
    )
    _add_run_arguments(parser)
    parser.set_defaults(run_command=_verify)


def _add_report(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = _command(
        commands,
        "report",
        "Makes a run's report again from its event log alone: tables here, plots in report.html.",
        "headrace report --run run-001 --html report.html",
    )
    _add_run_arguments(parser)
    parser.add_argument("--html", type=Path, default=None, help="where the page goes (default: the run's report.html)")
    parser.set_defaults(run_command=_report)


def _train(options: argparse.Namespace) -> int:
    from headrace.config import load_config
    from headrace.runtime.training import train

    return train(load_config(options.config, tuple(options.overrides)), options.runs, options.run)


def _show(options: argparse.Namespace) -> int:
    from headrace.runtime.folders import find_run
    from headrace.runtime.reading import show_episode

    print(show_episode(find_run(options.runs, options.run), options.episode, has_logprobs=options.logprobs))
    return 0


def _verify(options: argparse.Namespace) -> int:
    from headrace.runtime.folders import find_run
    from headrace.runtime.reading import verify

    text, is_sound = verify(find_run(options.runs, options.run))
    print(text)
    return 0 if is_sound else 1


def _report(options: argparse.Namespace) -> int:
    from headrace.runtime.folders import find_run
    from headrace.runtime.reading import write_report

    folder = find_run(options.runs, options.run)
    write_report(folder, options.html or folder / "report.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
