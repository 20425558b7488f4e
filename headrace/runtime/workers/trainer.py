"""Main of the trainer's process: reads sealed transcripts from the journal, writes weights into the blob store."""

import time
from pathlib import Path

from headrace.config import decode_options
from headrace.processes.serve import Server
from headrace.records.ids import PolicyId
from headrace.runtime.folders import BLOBS
from headrace.runtime.workers.settings import TrainerSettings, parse
from headrace.store.blobs import FileBlobs
from headrace.store.reader import open_reader
from headrace.training.core import TrainerCore, TrainerOptions
from headrace.training.serve import hello_of, serve_trainer


def main() -> None:
    """Serves one trainer."""
    settings, fd = parse(TrainerSettings)
    run = Path(settings.run)
    blobs = FileBlobs(run / BLOBS)
    core = TrainerCore(
        decode_options(settings.options, TrainerOptions, "trainer.options"),
        Path(settings.policy),
        settings.algorithm,
        read_row=open_reader(run).read,
        put_weights=blobs.put,
        clock=time.monotonic,
        policy_id=PolicyId(settings.policy_id),
        files=blobs,
    )
    serve_trainer(core, Server(fd, hello_of(core)))


if __name__ == "__main__":
    main()
