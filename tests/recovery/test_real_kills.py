"""`kill -9` of a whole training job at random instants, and `--resume`: real processes, a real disk.

`HEADRACE_KILLS=20` kills more often than the default.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from warm_policy import EASY_TASKS

from headrace.records.action import ActionIntended
from headrace.records.batch import BatchPlanned
from headrace.records.checkpoint import CheckpointWritten, RunResumed
from headrace.records.events import Event
from headrace.records.run import RunEnded
from headrace.records.task import TaskDrawn
from headrace.records.update import WeightsCommitted, WeightsStaged
from headrace.store.reader import open_reader
from headrace.store.verify import verify_run

KILLS = int(os.environ.get("HEADRACE_KILLS", "3"))
DOOMED = Path(__file__).parent / "doomed_job.py"
UPDATES = 4
RECORDED = "seed 11  local"
"""Of the line that a job prints once the beginning of its run is in the journal."""
PATIENCE_S = 400.0
JOB = """
[run]
seed = 11
updates = {updates}
deterministic = true

[budget]
turns = 3
episode_tokens = 200
turn_tokens = 40
observation_tokens = 24

[tasks]
kind = "reasoning_gym"
options = {tasks}

[policy]
kind = "folder"
options = {{ path = "{policy}" }}

[inference]
kind = "embedded"
options = {{ slots = 8, context = 256, deterministic = true }}

[environment]
kind = "sandbox"
options = {{ tools = ["calculator"] }}

[algorithm]
learning_rate = 1e-3

[schedule]
batch_groups = 2
group_size = 4

[evaluation]
every_updates = 4
temperatures = [1.0]

[checkpoint]
every_updates = 2
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def job(warm_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "job.toml"
    tasks = json.dumps(EASY_TASKS["options"], separators=(", ", " = "))  # an inline table of TOML
    path.write_text(JOB.format(policy=warm_policy, updates=UPDATES, tasks=tasks), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def whole(job: Path) -> Path:
    """Folder of an undisturbed run of the job, for tests that leave it as it is."""
    finish(start(job.parent, str(job), "--run", "whole"))
    return job.parent / "runs" / "whole"


Process = subprocess.Popen[str]


def start(folder: Path, *arguments: str) -> Process:
    """A job in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "headrace.cli", "train", "--runs", str(folder / "runs"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def until_said(process: Process, wanted: str) -> None:
    """Returns once a line of the job's has the words in it."""
    assert process.stdout is not None
    seen: list[str] = []
    for line in process.stdout:
        seen.append(line)
        if wanted in line:
            return
    raise AssertionError("".join(seen))


def descendants(pid: int) -> set[int]:
    """Every process below one."""
    parents = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = place.read_text(encoding="utf-8").rpartition(")")[2].split()
            parents[int(place.parent.name)] = int(fields[1])
    found: set[int] = set()
    wanted = {pid}
    while wanted:
        wanted = {child for child, parent in parents.items() if parent in wanted} - found
        found |= wanted
    return found


def wait_gone(pids: set[int]) -> None:
    """Returns once none of the processes runs. A process that is not ours is watched by its descriptor."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                ended, _, _ = select.select([descriptor], [], [], 20.0)
                assert ended, f"process {pid} outlived its parent"
            finally:
                os.close(descriptor)


def kill_after(process: Process, seconds: float) -> bool:
    """Whether it was killed; False when it had ended before."""
    until_said(process, RECORDED)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        return False
    below = descendants(process.pid)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    wait_gone(below)
    return True


def events_of(folder: Path, run: str) -> list[Event]:
    with open_reader(folder / "runs" / run) as reader:
        return list(reader.events())


def committed(events: list[Event]) -> list[str]:
    return [event.payload.weights for event in events if isinstance(event.payload, WeightsCommitted)]


def finish(process: Process, status: int = 0) -> str:
    """What a job said until it ended with the status."""
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == status, output[-3000:]
    return output


def test_a_job_killed_at_random_instants_ends_where_the_undisturbed_one_ends(
    job: Path, whole: Path, tmp_path: Path
) -> None:
    undisturbed = events_of(job.parent, whole.name)
    length_s = undisturbed[-1].t_ns / 1e9
    delays = np.random.default_rng(5).uniform(0.5, 1.0 + length_s / 2, KILLS)
    process, kills, is_over = start(tmp_path, str(job), "--run", "killed"), 0, False
    for delay_s in delays.tolist():
        if is_over or not kill_after(process, delay_s):
            break
        kills += 1
        # The kill may come after the last event, while the report is written: then nothing is left to go on with.
        is_over = isinstance(events_of(tmp_path, "killed")[-1].payload, RunEnded)
        if not is_over:
            process = start(tmp_path, "--resume", "killed")
    if not is_over:
        finish(process)
    assert kills >= 1
    events = events_of(tmp_path, "killed")
    report = verify_run(tmp_path / "runs" / "killed")
    assert report.is_sound, report.problems
    assert events[-1].payload == RunEnded("completed", UPDATES)
    assert len({event.epoch for event in events}) == kills + (not is_over)
    planned = [group for event in events if isinstance(event.payload, BatchPlanned) for group in event.payload.groups]
    drawn = [event.key for event in events if isinstance(event.payload, TaskDrawn)]
    assert Counter(map(str, planned)) == Counter(drawn), "every task that was drawn trained once"
    resumed = [event.payload for event in events if isinstance(event.payload, RunResumed)]
    assert all(item.identical == item.replayed for item in resumed)
    assert committed(events) == committed(undisturbed), "bit for bit the undisturbed run's weights"


@pytest.mark.parametrize(("case", "status"), [("tool", -signal.SIGKILL), ("sync", 1)])
def test_the_two_cases_with_real_processes(job: Path, tmp_path: Path, case: str, status: int) -> None:
    """Killed once a tool has executed and nobody knows; the trainer killed once a version is staged."""
    doomed = subprocess.run(
        [sys.executable, str(DOOMED), str(job), str(tmp_path / "runs" / case), case],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert doomed.returncode == status, doomed.stderr[-3000:]
    before = events_of(tmp_path, case)
    finish(start(tmp_path, "--resume", case))
    after = events_of(tmp_path, case)
    assert after[: len(before)] == before
    assert verify_run(tmp_path / "runs" / case).is_sound
    assert after[-1].payload == RunEnded("completed", UPDATES)
    intents = Counter(event.key for event in after if isinstance(event.payload, ActionIntended))
    assert set(intents.values()) == {1}
    if case == "sync":
        assert len(committed(before)) == 2, "version 2 was staged and never committed"
        staged = [event.payload for event in after if isinstance(event.payload, WeightsStaged)]
        assert [item.weights for item in staged] == committed(after), "one content for each number"


def test_sigterm_ends_a_job_at_once_and_it_goes_on_without_a_wait(job: Path, tmp_path: Path) -> None:
    process = start(tmp_path, str(job), "--run", "told")
    until_said(process, f"update 1/{UPDATES}")
    below = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    assert "--resume" in finish(process, 128 + signal.SIGTERM)
    wait_gone(below)
    before = events_of(tmp_path, "told")
    assert isinstance(before[-1].payload, RunEnded)
    assert before[-1].payload.reason == "stopped"
    finish(start(tmp_path, "--resume", "told"))
    events = events_of(tmp_path, "told")
    assert events[-1].payload == RunEnded("completed", UPDATES)
    assert verify_run(tmp_path / "runs" / "told").is_sound
    assert any(isinstance(event.payload, CheckpointWritten) for event in events)


def test_a_run_that_would_be_another_one_is_refused_with_every_difference(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "runs" / "small")
    before = events_of(tmp_path, "small")
    more = UPDATES + 1
    refused = start(tmp_path, "--resume", "small", "run.seed=12", "schedule.group_size=5", f"run.updates={more}")
    output = finish(refused, 1)
    assert "run.seed: 11 when it started, 12 now" in output
    assert "schedule.group_size: 4 when it started, 5 now" in output
    assert "run.updates" not in output.partition("cannot go on")[2].partition("start a new run")[0]
    assert events_of(tmp_path, "small") == before
    finish(start(tmp_path, "--resume", "small", f"run.updates={more}"))
    assert events_of(tmp_path, "small")[-1].payload == RunEnded("completed", more)
