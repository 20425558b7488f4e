"""Main of a warm start: writes demonstrations, fine-tunes a fresh model on them, and reports each step as a stream item."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.config import decode_options
from headrace.errors import HeadraceError
from headrace.harness.demonstrations import render_demonstration
from headrace.processes.serve import Server
from headrace.runtime.adapters import open_harness
from headrace.runtime.demonstrating import demonstrations, offered_tools
from headrace.runtime.policy import WarmStartOptions, WarmStartState
from headrace.runtime.workers.settings import WarmStartJob, parse
from headrace.training.warm_start import WarmStartProgress, warm_start


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
    harness = open_harness(config, offered_tools(config))
    out = Path(job.out)
    model = {**options.model, "vocab_size": max(harness.codec.known_ids) + 1}
    shown = [render_demonstration(harness, *one) for one in demonstrations(config, options, seed)]
    warm_start(model, shown, options.settings, seed=seed, out_dir=out, progress=report)
    (out / "tokenizer.json").write_bytes(harness.codec.source)


if __name__ == "__main__":
    main()
