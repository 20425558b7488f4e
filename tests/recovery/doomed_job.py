"""A training job that dies at a chosen moment: `doomed_job.py JOB.toml FOLDER tool|sync`.

`tool`: the whole process is killed once a tool has executed, before that is on disk. `sync`: the trainer's process is killed
once version 2 is staged.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from headrace.config import load_config
from headrace.records.action import ActionCommitted
from headrace.records.events import Event
from headrace.records.update import WeightsStaged
from headrace.runtime.local import LocalRun, run_local

DOOMED_CALL = 6


class Doom:
    """An observer that kills."""

    def __init__(self, case: str) -> None:
        self._case = case
        self._calls = 0

    def __call__(self, event: Event) -> None:
        match event.payload:
            case ActionCommitted() if self._case == "tool":
                self._calls += 1
                if self._calls == DOOMED_CALL:
                    os.kill(os.getpid(), signal.SIGKILL)
            case WeightsStaged(policy=policy) if self._case == "sync" and policy.version == 2:
                os.kill(trainer_pid(), signal.SIGKILL)
            case _:
                pass


def trainer_pid() -> int:
    """The child of this process that runs the trainer."""
    for child in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text(encoding="ascii").split():
        if b"workers.trainer" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise AssertionError("no trainer runs")


def main() -> None:
    job, folder, case = sys.argv[1:]
    Path(folder).mkdir(parents=True)
    asyncio.run(run_local(LocalRun(load_config(Path(job)), Path(folder), observers=(Doom(case),))))


if __name__ == "__main__":
    main()
