"""A trainer's child for the tests: `trainer_child.py POLICY_DIR STORE ALGORITHM_JSON --channel-fd N`.

Once there is a file `dies` in the store, it is killed when it would store new weights: after the step, before its answer.
"""

import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from headrace.config import AlgorithmSection
from headrace.processes.serve import Server
from headrace.records.ids import Address
from headrace.records.provenance import address_of
from headrace.training.core import TrainerCore, TrainerOptions
from headrace.training.serve import hello_of, serve_trainer


def main() -> None:
    folder, store, algorithm, _, channel_fd = sys.argv[1:]

    def read_row(address: Address) -> bytes:
        try:
            return (Path(store) / address).read_bytes()
        except FileNotFoundError as error:
            raise KeyError(address) from error

    def put(data: bytes) -> Address:
        if (Path(store) / "dies").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        address = address_of(data)
        (Path(store) / address).write_bytes(data)
        return address

    core = TrainerCore(
        TrainerOptions(),
        Path(folder),
        msgspec.json.decode(algorithm, type=AlgorithmSection),
        read_row=read_row,
        put_weights=put,
        clock=time.monotonic,
    )
    serve_trainer(core, Server(int(channel_fd), hello_of(core)))


main()
