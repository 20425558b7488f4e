"""Main of the engine's process."""

import time
from pathlib import Path

import torch

from headrace.config import decode_options
from headrace.inference.core import EngineCore
from headrace.inference.options import EngineOptions
from headrace.inference.serve import serve_engine
from headrace.processes.serve import Server
from headrace.runtime.workers.settings import EngineSettings, parse
from headrace.store.blobs import FileBlobs


def main() -> None:
    """Serves one engine."""
    settings, fd = parse(EngineSettings)
    options = decode_options(settings.options, EngineOptions, "inference.options")
    torch.set_num_threads(options.num_threads)
    blobs = FileBlobs(Path(settings.blobs))
    core = EngineCore(options, Path(settings.policy), blobs.path, time.monotonic)
    serve_engine(core, Server(fd))


if __name__ == "__main__":
    main()
