"""What every command's parser has in common."""

import argparse
from pathlib import Path
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The parsers of all commands; the class takes no parameter where it runs, only where it is checked."""


def add_command(commands: Commands, name: str, text: str, example: str) -> argparse.ArgumentParser:
    """A command's parser. The first sentence of `text` is its line in the list of commands."""
    return commands.add_parser(
        name,
        help=text.partition(".")[0],
        description=text,
        epilog="examples:\n" + "\n".join(f"  {line}" for line in example.splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_runs(parser: argparse.ArgumentParser) -> None:
    """`--runs`."""
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder that holds runs (default: runs)")


def add_run(parser: argparse.ArgumentParser) -> None:
    """`--runs` and `--run`."""
    add_runs(parser)
    parser.add_argument("--run", default=None, help="a run's name or folder (default: the newest)")


def add_named_run(parser: argparse.ArgumentParser) -> None:
    """A run that has to be named, since the command changes it, with `--runs`."""
    parser.add_argument("run", help="the run's name or folder")
    add_runs(parser)


def add_episode(parser: argparse.ArgumentParser) -> None:
    """An episode, with the `--runs` and `--run` that it lies in."""
    parser.add_argument("episode", help="purpose.ordinal.member.attempt, such as train.3.0.0 or eval.12.0.0")
    add_run(parser)


def add_config(parser: argparse.ArgumentParser) -> None:
    """A configuration with overrides."""
    parser.add_argument("config", type=Path, help="TOML file")
    parser.add_argument("overrides", nargs="*", help="section.key=value with TOML literals, such as run.seed=3")
