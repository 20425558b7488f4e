"""The command line: argument parsing only. Every command's `--help` says what it does and shows an example."""

import argparse
import sys
from collections.abc import Sequence

from headrace import __version__
from headrace.cli import episodes, exploring, planning, reading, training
from headrace.errors import HeadraceError

_DESCRIPTION = """\
Headrace: a rollout system for agentic RL of language models, from a task to a policy update and round again.

before a run
  headrace check examples/arithmetic/train.toml    an oracle, a silent and a random policy play the task set
  headrace play examples/arithmetic/train.toml     you are the policy: one episode by hand

a run
  headrace train examples/arithmetic/train.toml    a training job, with live progress and a report
  headrace train --resume run-001                  goes on with a run after a crash, a kill or SIGTERM
  headrace ls                                      the runs: state, updates, held-out success, size
  headrace eval run-001@60 run-001                 a model on held-out tasks: pass@k, intervals, paired comparison

what happened
  headrace show train.3.0.0                        one episode: turns, calls, masks, log-probs, versions, verdict
  headrace replay train.3.0.0                      the same episode again under its five versions
  headrace verify                                  hashes, alignment and conservation of the newest run
  headrace repair run-001 --dry-run                what can be done about what verify found
  headrace prune run-001 --dry-run                 files that nothing names any more
  headrace compact run-001 --dry-run               drops the tokens of settled work and keeps every figure
  headrace report                                  the report of the newest run again, from its event log alone
  headrace plan run-001                            what-if: replays a run in the simulator and recommends a layout
  headrace explore --seeds 200                     crashes and faults over simulated runs; every law on every log
  headrace export --format parquet                 trajectories for DuckDB, Polars, datasets, verl or ATIF; or the model
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status of a command: 0 done, 1 a stated failure, 2 wrong usage, 130 interrupted."""
    options = _options(arguments)
    try:
        return int(options.run_command(options))
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("headrace: interrupted; what was sealed is in the run's folder", file=sys.stderr)
        return 130


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; overrides may stand anywhere, where argparse alone takes none of them after an option."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if not hasattr(options, "overrides") or not all("=" in word and not word.startswith("-") for word in rest):
        return parser.parse_args(arguments)  # which says what is wrong
    options.overrides = [*options.overrides, *rest]
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for group in (training, episodes, reading, planning, exploring):
        group.add_commands(commands)
    return parser
