"""What a killed run leaves of its sandboxes: nothing that lives, and nothing on disk once the run goes on."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_case import descendants, is_alive

from headrace.environments.sandbox.meters import own_groups
from headrace.records.run import RunEnded
from headrace.runtime.folders import WORKSPACES
from headrace.store.reader import open_reader
from headrace.store.verify import verify_run

JOB = Path(__file__).with_name("folder_job.py")
PATIENCE_S = 60.0
PLANNED = {"snapshot": 2, "interpreter": 3}
"""Sandboxes that a run of two episodes may have: one each, and one interpreter kept ready."""


def standing(folder: Path, effect: str) -> "subprocess.Popen[str]":
    """A run that stands still in the middle of a call."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(JOB), str(folder), "paused calling", effect]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), process.stderr and process.stderr.read()
    return process


@pytest.fixture
def started() -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes that are gone after the test, whatever became of it."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def sandboxes(pids: set[int]) -> list[int]:
    """The outermost process of every sandbox."""
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(OSError):
            status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            if status["Name"] == "bwrap" and int(status["PPid"]) not in pids:
                found.append(pid)
    return found


def groups(pid: int) -> list[Path]:
    """Control groups that the process made for sandboxes."""
    parents = dict.fromkeys(own_groups().values())
    return [folder for parent in parents for folder in parent.glob(f"headrace-{pid}-*")]


def lives(folder: Path) -> list[str]:
    """Processes whose folders for sandboxes lie there."""
    return [path.name.split("-")[1] for path in (folder / WORKSPACES).glob("live-*")]


def mounts() -> int:
    return len(Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("effect", ["snapshot", "interpreter"])
def test_after_a_kill_with_open_sandboxes_their_number_returns_to_plan(
    tmp_path: Path, effect: str, started: list["subprocess.Popen[str]"]
) -> None:
    mounts_before = mounts()
    first = standing(tmp_path, effect)
    started.append(first)
    orphans = descendants(first.pid)
    assert 1 <= len(sandboxes(orphans)) <= PLANNED[effect]
    assert lives(tmp_path) == ([str(first.pid)] if effect == "snapshot" else [])
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=PATIENCE_S)
    until_s = time.monotonic() + PATIENCE_S
    while alive := [pid for pid in orphans if is_alive(pid)]:
        assert time.monotonic() < until_s, f"{alive} outlived the run that was killed"
        time.sleep(0.01)

    second = standing(tmp_path, effect)
    started.append(second)
    assert 1 <= len(sandboxes(descendants(second.pid))) <= PLANNED[effect]
    assert len({folder.name for folder in groups(second.pid)}) <= PLANNED[effect]
    assert groups(first.pid) == [], "the control groups of the dead run are swept"
    assert lives(tmp_path) == ([str(second.pid)] if effect == "snapshot" else [])
    assert mounts() == mounts_before, "what a sandbox mounts is its own and ends with it"
    below = descendants(second.pid)
    os.kill(second.pid, signal.SIGCONT)
    _, said = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0, said
    assert not [pid for pid in below if is_alive(pid)]
    assert groups(second.pid) == [] and lives(tmp_path) == []
    with open_reader(tmp_path) as reader:
        ends = [event.payload for event in reader.events() if isinstance(event.payload, RunEnded)]
    assert ends[-1].reason == "completed"
    assert verify_run(tmp_path).is_sound
