"""Main of a conversion: one GGUF file to one Hugging Face folder, so that torch stays out of the control plane."""

from pathlib import Path

import torch

from headrace.errors import HeadraceError
from headrace.processes.serve import Server
from headrace.runtime.workers.settings import ConversionJob, parse


def main() -> None:
    """Serves one call: `run`."""
    job, fd = parse(ConversionJob)
    server = Server(fd)
    (call,) = server.poll(None)
    torch.set_num_threads(1)
    from headrace.training.gguf import convert_gguf  # loads transformers: after the hello, which has a deadline

    try:
        convert_gguf(Path(job.source), Path(job.out))
    except HeadraceError as error:
        server.reject(call.call_id, str(error))
        return
    server.reply(call.call_id, b"")


if __name__ == "__main__":
    main()
