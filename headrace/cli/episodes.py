"""`play`, `replay`."""

import argparse

from headrace.cli.commands import Commands, add_command, add_config, add_episode


def add_commands(commands: Commands) -> None:
    """Adds the commands."""
    _add_play(commands)
    _add_replay(commands)


def _add_play(commands: Commands) -> None:
    parser = add_command(
        commands,
        "play",
        "Plays one episode by hand: you are the policy, and read what it reads.\n\n"
        "A line that begins with a tool's name is a call, the rest of it its arguments as JSON:\n"
        '  calculator {"expression": "2 + 3"}\n'
        "A line that begins with / goes to the harness as raw JSON of a call, well-formed or not. Any other line is the\n"
        "final answer. An empty line says nothing and ends the episode.",
        "headrace play examples/arithmetic/train.toml\n"
        "headrace play examples/arithmetic/train.toml --task 3 --training\n"
        "echo 42 | headrace play examples/arithmetic/train.toml",
    )
    add_config(parser)
    parser.add_argument("--task", type=int, default=0, metavar="N", help="which task, from 0 (default: 0)")
    parser.add_argument("--training", action="store_true", help="a task of the training stream, not a held-out one")
    parser.set_defaults(run_command=_play)


def _add_replay(commands: Commands) -> None:
    parser = add_command(
        commands,
        "replay",
        "Executes a sealed episode again under its five versions and says where it diverges.\n\n"
        "The recorded tokens go through the present harness, environment and grader; every record that comes out is\n"
        "compared with the sealed one; the tokens are scored again with the recorded weights. Where a version differs\n"
        "from the recorded one, it says which and stops, unless told to go on.",
        "headrace replay train.3.0.0\nheadrace replay eval.12.0.0 --run run-001 --anyway",
    )
    add_episode(parser)
    parser.add_argument("--anyway", action="store_true", help="go on although a version differs")
    parser.set_defaults(run_command=_replay)


def _play(options: argparse.Namespace) -> int:
    from headrace.runtime.parts import load_with_parts
    from headrace.runtime.playing import play

    config = load_with_parts(options.config, tuple(options.overrides))
    return play(config, options.task, is_training=options.training)


def _replay(options: argparse.Namespace) -> int:
    from headrace.runtime.folders import find_run
    from headrace.runtime.replaying import replay
    from headrace.runtime.tables import print_replay

    return print_replay(replay(find_run(options.runs, options.run), options.episode, is_forced=options.anyway))
