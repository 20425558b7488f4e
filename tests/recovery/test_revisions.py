"""Environments that keep revisions, and worlds that keep none: `kill -9` of the run and of the tool's own process."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from environment_kinds import EPISODE, TASK, TIMEOUT_S, act, lease, part
from sandbox_case import descendants, is_alive

from headrace.control.acting import ActionRunner, UnknownEffect
from headrace.control.past import AttemptPast
from headrace.control.recorder import Recorder, WorkerClock
from headrace.environments.sandbox.meters import children
from headrace.environments.workspace.environment import WorkspaceEnvironment
from headrace.environments.workspace.options import WorkspaceOptions
from headrace.errors import EnvironmentFault, Outcome
from headrace.records.action import ActionCommitted, ActionIntended
from headrace.records.checkpoint import RunResumed
from headrace.records.events import Event
from headrace.records.execution import EnvironmentRestored, ExecutionStatus
from headrace.records.run import RunEnded
from headrace.records.terminal import InfraError, Success
from headrace.records.trajectory import Transcript, TranscriptSealed
from headrace.runtime.folders import WORKSPACES
from headrace.store.memory import MemoryJournal
from headrace.store.reader import open_reader
from headrace.store.verify import verify_run

JOB = Path(__file__).with_name("folder_job.py")


def job(folder: Path, moment: str, effect: str = "snapshot") -> int:
    folder.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(JOB), str(folder), moment, effect],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.returncode in (0, -signal.SIGKILL, 128 + signal.SIGTERM), done.stderr[-3000:]
    return done.returncode


def looked_at(folder: Path) -> tuple[list[Event], dict[str, Transcript]]:
    with open_reader(folder) as reader:
        events = list(reader.events())
        transcripts = {
            event.key: msgspec.msgpack.decode(reader.read(event.payload.transcript), type=Transcript)
            for event in events
            if isinstance(event.payload, TranscriptSealed)
        }
    return events, transcripts


def kinds(events: list[Event], kind: type) -> list[Event]:
    return [event for event in events if isinstance(event.payload, kind)]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["intended", "executed", "stored", "committed", "stopped"])
def test_an_attempt_goes_on_at_its_last_revision_whenever_its_process_ended(tmp_path: Path, moment: str) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert job(whole, "never") == 0
    assert job(killed, moment) == (128 + signal.SIGTERM if moment == "stopped" else -signal.SIGKILL)
    before, _ = looked_at(killed)
    assert job(killed, "never") == 0
    events, transcripts = looked_at(killed)
    assert events[: len(before)] == before
    assert verify_run(killed).is_sound
    assert isinstance(events[-1].payload, RunEnded) and events[-1].payload.reason == "completed"
    assert set(transcripts) == {"train.0.0.0", "train.0.1.0"}, "no attempt started again"
    assert transcripts == looked_at(whole)[1], "what was done, seen and handed over is that of the undisturbed run"
    assert all(isinstance(transcript.terminal, Success) for transcript in transcripts.values())
    assert set(Counter(event.key for event in kinds(events, ActionIntended)).values()) == {1}
    (resumed,) = kinds(events, RunResumed)
    assert resumed.payload.reissued == 0
    assert len(kinds(events, EnvironmentRestored)) >= 1
    assert not list((killed / WORKSPACES).glob("live-*")), "what the dead process showed to its sandboxes is gone"


@pytest.mark.slow
def test_an_attempt_whose_revision_is_lost_is_a_prefix_and_starts_again(tmp_path: Path) -> None:
    assert job(tmp_path / "run", "stored") == -signal.SIGKILL
    for path in (tmp_path / "run" / WORKSPACES).glob("episodes/*/objects/*"):
        path.write_bytes(path.read_bytes()[:-1] + b"X")
    assert job(tmp_path / "run", "never") == 0
    events, transcripts = looked_at(tmp_path / "run")
    assert verify_run(tmp_path / "run").is_sound
    lost = [t.terminal for name, t in transcripts.items() if name.endswith(".0") and isinstance(t.terminal, InfraError)]
    assert lost and all("cannot be brought back" in terminal.detail for terminal in lost)
    assert isinstance(transcripts["train.0.0.1"].terminal, Success)
    assert isinstance(events[-1].payload, RunEnded)


@pytest.mark.slow
def test_an_effect_outside_is_never_repeated_by_itself(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert job(folder, "committed", "external") == -signal.SIGKILL
    done = Counter((folder / "outside").read_text(encoding="utf-8").splitlines())
    assert set(done.values()) == {1}
    assert job(folder, "never", "external") in (0, 1)
    again = Counter((folder / "outside").read_text(encoding="utf-8").splitlines())
    parked = {line for line in done if line.startswith("0.")}
    assert all(again[line] == 1 for line in parked), "what may have happened was not done again"
    events, transcripts = looked_at(folder)
    ends = [t.terminal for name, t in transcripts.items() if name.startswith("train.0.")]
    assert len(ends) == 2
    assert any(isinstance(end, InfraError) and end.is_effect_unknown for end in ends)
    assert not any(event.key.startswith("train.0.0.1") for event in events), "no new attempt by itself"


Acting = Callable[[WorkspaceEnvironment, ActionRunner], Awaitable[None]]


def acting(scenario: Acting) -> list[Event]:
    """Events of a scenario on one attempt with a real workspace."""

    async def body() -> list[Event]:
        environment = WorkspaceEnvironment(WorkspaceOptions(tools=("shell",), programs=("sh", "cat", "sleep")))
        journal = MemoryJournal()
        recorder = Recorder(journal)
        try:
            await environment.start()
            runner = ActionRunner(environment, recorder, WorkerClock(recorder, "environment"), AttemptPast(EPISODE))
            runner.handle = await environment.open(TASK, EPISODE, lease(), TIMEOUT_S)
            runner.revision = await environment.snapshot(runner.handle, TIMEOUT_S)
            async with asyncio.timeout(60.0):
                await scenario(environment, runner)
            await recorder.durable(recorder.last_seq)
        finally:
            await environment.stop()
        return list(journal.events())

    return asyncio.run(body())


async def sandbox_of(where: str) -> int:
    """The outer process of the sandbox that runs a call, once the file is there inside."""
    me = os.getpid()
    while True:
        for pid in descendants(me):
            if os.access(f"/proc/{pid}/root/{where}", os.F_OK):
                return next(outer for outer in children(me) if pid in descendants(outer) | {outer})
        await asyncio.sleep(0.01)


@pytest.mark.skipif(os.geteuid() != 0, reason="looks into the sandbox from outside")
def test_a_tool_killed_after_it_has_executed_runs_again_on_the_state_before_it() -> None:
    async def scenario(environment: WorkspaceEnvironment, runner: ActionRunner) -> None:
        first = await runner.run(act(("shell", {"code": "echo one >> log"}), 0), lease(), TIMEOUT_S)
        call = asyncio.create_task(
            runner.run(act(("shell", {"code": "echo two >> log; : > marked; sleep 1"}), 1), lease(), TIMEOUT_S)
        )
        outer = await sandbox_of("workspace/marked")
        os.kill(outer, signal.SIGKILL)
        second, _ = await call
        assert second.status is ExecutionStatus.OK
        read, _ = await runner.run(act(("shell", {"code": "cat log"}), 2), lease(), TIMEOUT_S)
        assert read.output == b"one\ntwo\n", "each effect is there once"
        assert first[0].revision != second.revision == read.revision
        assert not is_alive(outer)

    events = acting(scenario)
    (restored,) = [event.payload for event in events if isinstance(event.payload, EnvironmentRestored)]
    intents = [event.payload for event in events if isinstance(event.payload, ActionIntended)]
    assert restored.revision == intents[1].revision, "where its INTENT says that it started"
    assert [intent.action.id.step for intent in intents] == [0, 1, 2]
    assert len([event for event in events if isinstance(event.payload, ActionCommitted)]) == 3


def test_a_tool_killed_before_it_has_executed_just_runs() -> None:
    async def scenario(environment: WorkspaceEnvironment, runner: ActionRunner) -> None:
        before = descendants(os.getpid())
        call = asyncio.create_task(runner.run(act(("shell", {"code": "echo one >> log"}), 0), lease(), TIMEOUT_S))
        while not (new := descendants(os.getpid()) - before):  # noqa: ASYNC110 - the process table tells nobody
            await asyncio.sleep(0)
        os.kill(min(new), signal.SIGKILL)
        await call
        read, _ = await runner.run(act(("shell", {"code": "cat log"}), 1), lease(), TIMEOUT_S)
        assert read.output == b"one\n"

    acting(scenario)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_killed_host_of_an_effect_outside_is_asked_and_never_runs_it_again(tmp_path: Path, moment: str) -> None:
    tool = tmp_path / "deadly.py"
    append = f"open({str(tmp_path / 'outside')!r}, 'a').write('x')"
    kill = "os.kill(os.getppid(), 9)"
    body = "; ".join((append, kill) if moment == "after" else (kill, "time.sleep(60)", append))
    tool.write_text(f"import os, time\n\n\ndef act() -> str:\n    'Acts.'\n    {body}\n    time.sleep(60)\n")

    async def main() -> None:
        async with part(file=str(tool), name="act", effect="external")() as environment, asyncio.timeout(60.0):
            recorder = Recorder(MemoryJournal())
            runner = ActionRunner(environment, recorder, WorkerClock(recorder, "e"), AttemptPast(EPISODE))
            runner.handle = await environment.open(TASK, EPISODE, lease(), TIMEOUT_S)
            with pytest.raises(UnknownEffect) as fault:
                await runner.run(act(("act", {}), 0), lease(), TIMEOUT_S)
            assert fault.value.outcome is Outcome.LOST
            with pytest.raises(EnvironmentFault):
                await environment.execute(runner.handle, act(("act", {}), 1), lease(), TIMEOUT_S)

    asyncio.run(main())
    outside = tmp_path / "outside"
    assert (outside.read_text() if outside.exists() else "") == ("x" if moment == "after" else "")
