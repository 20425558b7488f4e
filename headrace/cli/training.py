"""`train`, `check`, `eval`."""

import argparse
from pathlib import Path

from headrace.cli.commands import Commands, add_command, add_config, add_runs
from headrace.errors import ConfigError


def add_commands(commands: Commands) -> None:
    """Adds the commands."""
    _add_train(commands)
    _add_check(commands)
    _add_eval(commands)


def _add_train(commands: Commands) -> None:
    parser = add_command(
        commands,
        "train",
        "Runs a training job from a TOML file. Overrides are section.key=value with TOML literals.",
        "headrace train examples/arithmetic/train.toml run.seed=3\n"
        "headrace train examples/arithmetic/train.toml schedule.mode=separate_async\n"
        "headrace train --resume run-001                  after a crash, a kill or SIGTERM\n"
        "headrace train --resume run-001 run.updates=120  more updates of a finished run",
    )
    parser.add_argument("config", nargs="?", help="TOML file; with --resume, if given, it has to say the same")
    parser.add_argument("overrides", nargs="*", help="section.key=value with TOML literals, such as run.seed=3")
    add_runs(parser)
    parser.add_argument("--run", default=None, help="name of the new run (default: the next free run-NNN)")
    parser.add_argument("--resume", metavar="RUN", default=None, help="go on with a run where its journal ends")
    parser.set_defaults(run_command=_train)


def _add_check(commands: Commands) -> None:
    parser = add_command(
        commands,
        "check",
        "Plays a task set with three policies that need no weights, before anything is trained on it.\n\n"
        "  oracle   knows the answer, or the turns that the task set's oracle writes down: full marks on every task\n"
        "  silent   says nothing: never full marks\n"
        "  random   says tokens, calls and answers at random: never full marks\n\n"
        "Environment, harness and grader are the real ones. Exit status 1 when a policy comes out otherwise or anything\n"
        "but the policy fails.",
        "headrace check examples/arithmetic/train.toml\n"
        "headrace check examples/arithmetic/train.toml --train 200 --held-out 0",
    )
    add_config(parser)
    parser.add_argument(
        "--train", type=int, default=20, metavar="N", help="training tasks, from the first (default: 20)"
    )
    parser.add_argument("--held-out", type=int, default=None, metavar="N", help="held-out tasks (default: all)")
    parser.add_argument("--concurrency", type=int, default=16, metavar="N", help="episodes at a time (default: 16)")
    parser.add_argument(
        "--chance",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of full marks that silent and random may have, for tasks that can be guessed (default: 0)",
    )
    parser.set_defaults(run_command=_check)


def _add_eval(commands: Commands) -> None:
    parser = add_command(
        commands,
        "eval",
        "Measures a model on tasks: pass@k (unbiased), intervals, success by family and difficulty.\n\n"
        "MODEL is a run at a version (run-001@20), a run (its newest version) or a Hugging Face folder. TASKS is a TOML\n"
        "file or a run, whose harness, environment, grader and held-out tasks are used. With --against, a second model\n"
        "plays the same tasks with the same sampling streams, and the difference is given with a paired interval.",
        "headrace eval run-001@60 examples/arithmetic/train.toml\n"
        "headrace eval run-001 run-001 --samples 8\n"
        "headrace eval run-001@60 run-001 --against run-001@0 --temperature 0.2",
    )
    parser.add_argument("model", help="RUN, RUN@VERSION or a Hugging Face folder")
    parser.add_argument("tasks", help="TOML file or run")
    add_runs(parser)
    parser.add_argument("--against", default=None, metavar="MODEL", help="a second model to compare with")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="attempts at each task (default: 1)")
    parser.add_argument("--temperature", type=float, default=1.0, help="sampling temperature (default: 1)")
    parser.add_argument("--limit", type=int, default=None, metavar="N", help="held-out tasks (default: all)")
    parser.add_argument("--train", type=int, default=0, metavar="N", help="take N training tasks instead")
    parser.add_argument("--concurrency", type=int, default=64, metavar="N", help="episodes at a time (default: 64)")
    parser.set_defaults(run_command=_eval)


def _train(options: argparse.Namespace) -> int:
    from headrace.runtime.folders import find_run
    from headrace.runtime.parts import load_with_parts
    from headrace.runtime.training import resume, train

    words = ([] if options.config is None else [options.config]) + options.overrides
    files, overrides = [word for word in words[:1] if "=" not in word], tuple(word for word in words if "=" in word)
    if options.resume is not None:
        given = load_with_parts(Path(files[0]), overrides) if files else None
        return resume(find_run(options.runs, options.resume), overrides, given)
    if not files:
        raise ConfigError("name a TOML file such as examples/arithmetic/train.toml, or a run with --resume")
    return train(load_with_parts(Path(files[0]), tuple(words[1:])), options.runs, options.run)


def _check(options: argparse.Namespace) -> int:
    from headrace.runtime.checking import CheckSettings, check_tasks
    from headrace.runtime.parts import load_with_parts
    from headrace.runtime.tables import print_check

    settings = CheckSettings(options.train, options.held_out, options.concurrency, options.chance)
    return print_check(check_tasks(load_with_parts(options.config, tuple(options.overrides)), settings))


def _eval(options: argparse.Namespace) -> int:
    from headrace.runtime.evaluating import EvalSettings, evaluate
    from headrace.runtime.tables import print_eval

    settings = EvalSettings(
        samples=options.samples,
        temperature=options.temperature,
        limit=options.limit,
        train=options.train,
        concurrency=options.concurrency,
    )
    models = [options.model] if options.against is None else [options.model, options.against]
    return print_eval(evaluate(models, options.tasks, options.runs, settings))
