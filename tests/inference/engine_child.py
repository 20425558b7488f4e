"""Main of an engine child for the tests: `engine_child.py FOLDER OPTIONS_JSON --channel-fd N`."""

import argparse
import time
from pathlib import Path

import msgspec
import torch

from headrace.inference.core import EngineCore
from headrace.inference.options import EngineOptions
from headrace.inference.serve import serve_engine
from headrace.processes.serve import Server


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("options")
    parser.add_argument("--channel-fd", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    options = msgspec.json.decode(arguments.options, type=EngineOptions)
    core = EngineCore(
        options, arguments.folder, lambda address: arguments.folder / f"{address}.safetensors", time.monotonic
    )
    serve_engine(core, Server(arguments.channel_fd))


if __name__ == "__main__":
    main()
