"""`ls`, `show`, `verify`, `repair`, `prune`, `compact`, `report`, `export`."""

import argparse
from pathlib import Path

from headrace.cli.commands import Commands, add_command, add_episode, add_named_run, add_run, add_runs


def add_commands(commands: Commands) -> None:
    """Adds the commands."""
    _add_ls(commands)
    _add_show(commands)
    _add_verify(commands)
    _add_repair(commands)
    _add_prune(commands)
    _add_compact(commands)
    _add_report(commands)
    _add_export(commands)


def _add_show(commands: Commands) -> None:
    parser = add_command(
        commands,
        "show",
        "Shows one episode: turns, calls, observations, what is trained and what is masked, versions, verdict.",
        "headrace show train.3.0.0 --logprobs",
    )
    add_episode(parser)
    parser.add_argument("--logprobs", action="store_true", help="every sampled token with its log-prob")
    parser.set_defaults(run_command=_show)


def _add_verify(commands: Commands) -> None:
    parser = add_command(
        commands,
        "verify",
        "Checks a run: hash chain, every address, alignment, versions, conservation. Exit status 1 on any problem.",
        "headrace verify --run run-001\nheadrace verify --run run-001 --rescore 20",
    )
    add_run(parser)
    parser.add_argument(
        "--rescore",
        type=int,
        default=None,
        metavar="N",
        help="also scores N transcripts again under the weights of the versions that their tokens name",
    )
    parser.set_defaults(run_command=_verify)


def _add_repair(commands: Commands) -> None:
    parser = add_command(
        commands,
        "repair",
        "Sets aside what is damaged in a run, so that it can go on.\n\n"
        "Columns, indices and single flipped bits are put right where a hash proves them. Rows and files that do not\n"
        "verify move to the run's quarantine/ folder, with a report in JSON; nothing is deleted. Members whose trajectory\n"
        "is lost and was not trained on roll again. Where the chain of events is broken, --truncate keeps what precedes.\n"
        "Exit status 1 when something stands in the way.",
        "headrace repair run-001 --dry-run\nheadrace repair run-001\nheadrace repair run-001 --truncate",
    )
    add_named_run(parser)
    parser.add_argument("--dry-run", action="store_true", help="says what would be done and writes nothing")
    parser.add_argument("--truncate", action="store_true", help="also cuts the events where they cannot be repaired")
    parser.set_defaults(run_command=_repair)


def _add_prune(commands: Commands) -> None:
    parser = add_command(
        commands,
        "prune",
        "Removes files of a run that nothing names any more: what crashes left behind, and dropped checkpoints.\n\n"
        "Weights of a version stay while a checkpoint that is kept, a held-out round under way or a recovery may need\n"
        "them; those of version 0 and of the newest one always. checkpoint.keep_last and keep_every say which are kept.",
        "headrace prune run-001 --dry-run\nheadrace prune run-001",
    )
    add_named_run(parser)
    parser.add_argument("--dry-run", action="store_true", help="says what would be removed and removes nothing")
    parser.set_defaults(run_command=_prune)


def _add_compact(commands: Commands) -> None:
    parser = add_command(
        commands,
        "compact",
        "Drops the tokens of settled work from a run, and keeps every figure.\n\n"
        "Of groups that trained, or were rejected, before the newest updates go: transcripts with their token ids, log-\n"
        "probs and outputs, the tokens of turns, artifacts, attachments and receipts. Events, verdicts, rewards, plans and\n"
        "held-out episodes stay: `report` and `plan` give the same, `verify` checks every law, `train --resume` goes on.\n"
        "Such an episode cannot be shown, replayed or exported afterwards. What goes is named in the journal first; a call\n"
        "that was cut off is ended by the next one. Weights and checkpoints are for `prune`.",
        "headrace compact run-001 --dry-run\nheadrace compact run-001 --keep-updates 20",
    )
    add_named_run(parser)
    parser.add_argument("--dry-run", action="store_true", help="says what would be dropped and drops nothing")
    parser.add_argument(
        "--keep-updates", type=int, default=10, metavar="N", help="newest updates that stay whole (default: 10)"
    )
    parser.set_defaults(run_command=_compact)


def _add_report(commands: Commands) -> None:
    parser = add_command(
        commands,
        "report",
        "Makes a run's report again from its event log alone: tables here, plots in report.html.",
        "headrace report --run run-001 --html report.html",
    )
    add_run(parser)
    parser.add_argument("--html", type=Path, default=None, help="where the page goes (default: the run's report.html)")
    parser.set_defaults(run_command=_report)


def _add_ls(commands: Commands) -> None:
    parser = add_command(
        commands,
        "ls",
        "Lists the runs of a folder: state, updates, newest held-out success, size.",
        "headrace ls\nheadrace ls --runs /data/runs",
    )
    add_runs(parser)
    parser.set_defaults(run_command=_ls)


def _add_export(commands: Commands) -> None:
    parser = add_command(
        commands,
        "export",
        "Writes a run's trajectories, or a version of its model, for other tools.\n\n"
        "  parquet  one row per sealed attempt, for DuckDB, Polars and datasets; the token fields have the names of verl's\n"
        "           agent-loop output: prompt_ids, response_ids, response_mask, response_logprobs, reward_score, num_turns\n"
        "  atif     Agent Trajectory Interchange Format, one JSON document a line\n"
        "  --model  a Hugging Face folder that transformers loads",
        "headrace export --run run-001 --out trajectories.parquet\n"
        "headrace export --run run-001 --format atif --purpose eval --out held_out.jsonl\n"
        "headrace export --model run-001@60 --out my-model",
    )
    add_run(parser)
    parser.add_argument("--format", choices=("parquet", "atif"), default="parquet", help="default: parquet")
    parser.add_argument("--purpose", choices=("train", "eval"), default=None, help="default: every purpose")
    parser.add_argument("--model", default=None, metavar="RUN[@VERSION]", help="write this model instead")
    parser.add_argument("--out", type=Path, default=None, help="file or folder to write (default: in the run's folder)")
    parser.set_defaults(run_command=_export)


def _ls(options: argparse.Namespace) -> int:
    from headrace.runtime.listing import list_runs
    from headrace.runtime.tables import print_runs

    return print_runs(list_runs(options.runs), str(options.runs))


def _export(options: argparse.Namespace) -> int:
    from headrace.runtime.exporting import export_model_to, export_trajectories

    if options.model is not None:
        print(export_model_to(options.model, options.runs, options.out))
    else:
        from headrace.runtime.folders import find_run

        run = find_run(options.runs, options.run)
        print(export_trajectories(run, options.format, options.purpose, options.out))
    return 0


def _show(options: argparse.Namespace) -> int:
    from headrace.runtime.folders import find_run
    from headrace.runtime.reading import show_episode

    print(show_episode(find_run(options.runs, options.run), options.episode, has_logprobs=options.logprobs))
    return 0


def _verify(options: argparse.Namespace) -> int:
    from headrace.runtime.folders import find_run
    from headrace.runtime.reading import verify

    text, is_sound = verify(find_run(options.runs, options.run), options.rescore)
    print(text)
    return 0 if is_sound else 1


def _repair(options: argparse.Namespace) -> int:
    from headrace.runtime.folders import find_run
    from headrace.runtime.reading import with_short_addresses
    from headrace.runtime.repairing import describe, repair_run

    folder = find_run(options.runs, options.run)
    report = repair_run(folder, is_dry_run=options.dry_run, may_truncate=options.truncate)
    text, status = describe(report, is_dry_run=options.dry_run)
    print(with_short_addresses(text))
    return status


def _prune(options: argparse.Namespace) -> int:
    from headrace.runtime.folders import find_run
    from headrace.runtime.pruning import prune_run

    folder = find_run(options.runs, options.run)
    found = prune_run(folder, is_dry_run=options.dry_run)
    verb = "would be removed" if options.dry_run else "removed"
    print(f"{len(found.files)} files {verb}, {found.size_bytes / 1e6:.1f} MB; {found.kept} stay")
    if found.temporary:
        print(f"{found.temporary} half-written files removed")
    return 0


def _compact(options: argparse.Namespace) -> int:
    from headrace.runtime.compacting import compact_run, describe
    from headrace.runtime.folders import find_run

    folder = find_run(options.runs, options.run)
    found = compact_run(folder, keep_updates=options.keep_updates, is_dry_run=options.dry_run)
    print(describe(found, is_dry_run=options.dry_run))
    return 0


def _report(options: argparse.Namespace) -> int:
    from headrace.runtime.folders import find_run
    from headrace.runtime.reading import write_report

    folder = find_run(options.runs, options.run)
    write_report(folder, options.html or folder / "report.html")
    return 0
