"""Main of a warm start: writes demonstrations, fine-tunes a fresh model on them, and reports each step as a stream item."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.config import decode_options
from headrace.environments.calculator import CalculatorError, calculate
from headrace.environments.sandbox.options import SandboxOptions
from headrace.environments.tools import SCHEMAS
from headrace.errors import HeadraceError
from headrace.harness import ChatMLHarness, open_harness
from headrace.harness.chatml import ASSETS
from headrace.harness.demonstrations import render_demonstration
from headrace.processes.serve import Server
from headrace.runtime.policy import WarmStartOptions, WarmStartState
from headrace.runtime.workers.settings import WarmStartJob, parse
from headrace.tasks.demonstrations import demonstrate
from headrace.tasks.reasoning_gym import open_tasks
from headrace.training.warm_start import Demonstration, WarmStartProgress, warm_start


def main() -> None:
    """Serves one call: `run`."""
    job, fd = parse(WarmStartJob)
    server = Server(fd)
    (call,) = server.poll(None)

    def report(progress: WarmStartProgress) -> None:
        state = WarmStartState(progress.step, progress.steps, progress.loss, progress.tokens)
        server.item(call.call_id, msgspec.msgpack.encode(state))

    try:
        run(job, report)
    except (HeadraceError, ValueError) as error:
        server.reject(call.call_id, str(error))
        return
    server.reply(call.call_id, b"")


def run(job: WarmStartJob, report: Callable[[WarmStartProgress], None]) -> None:
    """Makes the folder of the job."""
    config = job.config
    options = decode_options(config.policy.options, WarmStartOptions, "policy.options")
    seed = config.run.seed if options.seed is None else options.seed
    tools = decode_options(config.environment.options, SandboxOptions, "environment.options").tools
    harness = open_harness(config.harness.kind, config.harness.options, [SCHEMAS[name] for name in tools], None)
    out = Path(job.out)
    model = {**options.model, "vocab_size": max(harness.codec.known_ids) + 1}
    warm_start(
        model, _sequences(job, options, harness, seed), options.settings, seed=seed, out_dir=out, progress=report
    )
    shutil.copy(ASSETS / "tokenizer.json", out / "tokenizer.json")


def _sequences(job: WarmStartJob, options: WarmStartOptions, harness: ChatMLHarness, seed: int) -> list[Demonstration]:
    config = job.config
    tasks = open_tasks(
        config.tasks.kind, config.tasks.options, seed=seed, budget=config.budget, environment=config.environment.kind
    )
    drawn = (tasks.task("demonstrations", ordinal) for ordinal in range(options.demonstrations))
    return [
        render_demonstration(harness, task, demonstrate(task, _calculator, seed=seed, sloppiness=options.sloppiness))
        for task in drawn
    ]


def _calculator(expression: str) -> str:
    try:
        return calculate(expression)
    except CalculatorError as error:
        return f"error: {error}"


if __name__ == "__main__":
    main()
