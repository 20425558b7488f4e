"""Two control planes on one run: a process that stands still, and another that takes its run over."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from environment_kinds import EPISODE, TASK, act, lease

from headrace.control.acting import ActionRunner
from headrace.control.past import AttemptPast
from headrace.control.recorder import OwnerPen, Recorder, WorkerClock
from headrace.environments.inline import InlineEnvironment
from headrace.errors import EnvironmentFenced, OwnerFenced
from headrace.records.action import ActionIntended
from headrace.records.events import Event
from headrace.records.run import LateWriteRefused, RunEnded
from headrace.records.update import WeightsActivated, WeightsCommitted
from headrace.reporting.report import report_run
from headrace.simulation.loop import run_virtual
from headrace.store.memory import MemoryJournal
from headrace.store.reader import open_reader
from headrace.store.sqlite import LOCK_NAME
from headrace.store.verify import verify_run

JOB = Path(__file__).with_name("folder_job.py")
PATIENCE_S = 120


def start(folder: Path, moment: str) -> "subprocess.Popen[str]":
    folder.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(JOB), str(folder), moment, "snapshot"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    _, said = process.communicate(timeout=PATIENCE_S)
    return process.returncode, said


def paused(folder: Path, moment: str) -> "subprocess.Popen[str]":
    """A process that stands still at the moment."""
    process = start(folder, moment)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), process.stderr and process.stderr.read()
    return process


def events_of(folder: Path) -> list[Event]:
    with open_reader(folder) as reader:
        return list(reader.events())


def late_writes(folder: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Refused events of the old owner by kind, and by place as the report of the run has them."""
    with open_reader(folder) as reader:
        late = reader.late_writes()
        return late, report_run(reader.events(), reader.read, late).guards.refused


@pytest.mark.slow
def test_a_second_control_plane_is_refused_while_the_first_one_lives_even_if_it_stands_still(tmp_path: Path) -> None:
    first = paused(tmp_path / "run", "paused acting")
    status, said = ended(start(tmp_path / "run", "never"))
    assert status == 1
    assert f'is being written already, by {{"run": "run", "pid": {first.pid}}}' in said
    first.send_signal(signal.SIGCONT)
    assert ended(first)[0] == 0
    assert {event.epoch for event in events_of(tmp_path / "run")} == {1}
    assert verify_run(tmp_path / "run").is_sound


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "kind", "place"),
    [
        ("paused acting", "action_intended", "journal"),
        ("paused consuming", "batch_selected", "ledger"),
        ("paused publishing", "canary_checked", "weight store"),
    ],
)
def test_a_control_plane_that_was_taken_over_gets_nothing_accepted_and_its_writes_are_counted(
    tmp_path: Path, moment: str, kind: str, place: str
) -> None:
    """Its lock was lost without its knowing, as on a file system that forgets locks; it wakes up and goes on."""
    folder = tmp_path / "run"
    first = paused(folder, moment)
    (folder / LOCK_NAME).unlink()
    assert ended(start(folder, "never"))[0] == 0
    before = events_of(folder)
    assert isinstance(before[-1].payload, RunEnded)
    assert late_writes(folder) == ({}, {}), "nobody came late so far"
    first.send_signal(signal.SIGCONT)
    status, said = ended(first)
    assert status == 1
    assert "epoch 1 is fenced: epoch 2 has taken over" in said
    events = events_of(folder)
    assert events == before, "nothing of the old epoch came after"
    assert [event.epoch for event in events] == sorted(event.epoch for event in events)
    assert verify_run(folder).is_sound
    kinds, places = late_writes(folder)
    assert kinds[kind] == 1
    assert places[place] >= 1
    assert sum(places.values()) == sum(kinds.values())
    committed = Counter(event.key for event in events if isinstance(event.payload, WeightsCommitted))
    assert set(committed.values()) == {1}
    last = {type(e.payload): e.epoch for e in events if isinstance(e.payload, (WeightsCommitted, WeightsActivated))}
    assert set(last.values()) == {2}, "the version of the zombie was never committed, the owner's was"
    assert set(Counter(e.key for e in events if isinstance(e.payload, ActionIntended)).values()) == {1}


def test_an_old_owner_of_an_attempt_can_neither_record_nor_act_and_both_are_counted() -> None:
    async def scenario() -> list[Event]:
        journal = MemoryJournal()
        recorder, environment = Recorder(journal), InlineEnvironment()
        old, new = OwnerPen(recorder, EPISODE, lease(1).token), OwnerPen(recorder, EPISODE, lease(2).token)
        runner = ActionRunner(environment, old, WorkerClock(recorder, "environment"), AttemptPast(EPISODE))
        call = act(("calculator", {"expression": "1+1"}), 0)
        runner.handle = await environment.open(TASK, EPISODE, lease(2), 5.0)
        with pytest.raises(OwnerFenced, match="token 1 after 2"):
            await runner.run(call, lease(1), 5.0)
        unaware = OwnerPen(Recorder(journal), EPISODE, lease(1).token)
        late = ActionRunner(environment, unaware, WorkerClock(recorder, "environment"), AttemptPast(EPISODE))
        late.handle = runner.handle
        with pytest.raises(EnvironmentFenced, match="fenced by 2"):
            await late.run(call, lease(1), 5.0)
        new.require("anything")
        await recorder.durable(recorder.last_seq)
        await environment.stop()
        return list(journal.events())

    refused = [event.payload for event in run_virtual(scenario()) if isinstance(event.payload, LateWriteRefused)]
    assert [(item.where, item.what) for item in refused] == [
        ("journal", "action_intended"),
        ("executor", "train.4.1.0/0.0"),
    ]
