"""A child process over real sockets and real signals: every call ends, and no child is left behind."""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import Outcome, ProcessError
from headrace.processes.child import Child, ChildOptions
from headrace.processes.frames import MAX_FRAME_BYTES, Frame, FrameError, FrameReader, Kind, encode_frame

HERE = Path(__file__).parent
ENV = {"PYTHONPATH": str(HERE.parents[1])}
TIMEOUT_S = 20.0


async def start(mode: str = "normal", **options: Any) -> Child:
    argv = [sys.executable, str(HERE / "misbehaving_child.py"), mode]
    options.setdefault("start_timeout_s", TIMEOUT_S)
    return await Child.start("probe", argv, env=ENV, **options)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 30.0))


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


async def readable(pidfd: int) -> None:
    """Returns once the process is gone, whoever reaps it."""
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, gone.set)
    await asyncio.wait_for(gone.wait(), 10.0)
    loop.remove_reader(pidfd)
    os.close(pidfd)


def test_answers_are_matched_by_call_id_and_not_by_order() -> None:
    async def scenario() -> None:
        child = await start()
        held = [asyncio.ensure_future(child.call("hold", b"", timeout_s=TIMEOUT_S)) for _ in range(5)]
        await asyncio.sleep(0)
        await child.call("release", b"", timeout_s=TIMEOUT_S)
        assert child.hello == b"ready"
        assert await asyncio.gather(*held) == [b"1", b"2", b"3", b"4", b"5"]
        await child.close()

    run(scenario())


def test_a_payload_larger_than_every_buffer_comes_back_unchanged() -> None:
    async def scenario() -> None:
        child = await start()
        payload = bytes(range(256)) * 40_000
        assert await child.call("echo", payload, timeout_s=TIMEOUT_S) == payload
        await child.close()

    run(scenario())


def test_a_stream_yields_its_items_in_order_and_ends_with_the_call() -> None:
    async def scenario() -> None:
        child = await start()
        items = [item async for item in child.stream("count", b"500", timeout_s=TIMEOUT_S)]
        assert items == [str(number).encode() for number in range(500)]
        await child.close()

    run(scenario())


@pytest.mark.parametrize(("method", "outcome"), [("reject", Outcome.REJECTED), ("fail", Outcome.LOST)])
def test_the_child_says_whether_a_failed_call_may_have_taken_effect(method: str, outcome: Outcome) -> None:
    async def scenario() -> None:
        child = await start()
        with pytest.raises(ProcessError) as call_error:
            await child.call(method, b"", timeout_s=TIMEOUT_S)
        with pytest.raises(ProcessError) as stream_error:
            [item async for item in child.stream(method, b"", timeout_s=TIMEOUT_S)]
        assert call_error.value.outcome is stream_error.value.outcome is outcome
        await child.close()

    run(scenario())


def test_a_killed_child_is_lost_with_the_signal_named_and_its_last_output() -> None:
    async def scenario() -> None:
        child = await start()
        await child.call("say", b"about to fall over\n", timeout_s=TIMEOUT_S)
        held = asyncio.ensure_future(child.call("hold", b"", timeout_s=TIMEOUT_S))
        await asyncio.sleep(0)
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(ProcessError) as error:
            await held
        assert error.value.outcome is Outcome.LOST
        assert "SIGKILL" in str(error.value)
        assert "about to fall over" in str(error.value)
        assert "SIGKILL" in await child.wait_lost()
        with pytest.raises(ProcessError) as late:
            await child.call("echo", b"", timeout_s=TIMEOUT_S)
        assert late.value.outcome is Outcome.REJECTED
        await child.close()
        assert not exists(child.pid)

    run(scenario())


def test_an_answer_sent_before_death_is_an_answer() -> None:
    async def scenario() -> None:
        child = await start()
        assert len(await child.call("exit", b"", timeout_s=TIMEOUT_S)) == 3_000_000
        assert "exit status 4" in await child.wait_lost()
        assert (child.exit_status, child.is_killed_by_us) == (4, False)
        assert child.cpu_s > 0
        await child.close()

    run(scenario())


@pytest.mark.parametrize("method", ["garbage", "huge"])
def test_bytes_that_are_no_frame_lose_the_child_with_a_reason(method: str) -> None:
    async def scenario() -> None:
        child = await start()
        with pytest.raises(ProcessError, match="broke the protocol") as error:
            await child.call(method, b"", timeout_s=TIMEOUT_S)
        assert error.value.outcome is Outcome.LOST
        await child.close()
        assert not exists(child.pid)

    run(scenario())


def test_a_missed_deadline_is_lost_and_the_late_answer_is_dropped_and_counted() -> None:
    async def scenario() -> None:
        child = await start()
        with pytest.raises(ProcessError) as error:
            await child.call("hold", b"", timeout_s=0.01)
        assert error.value.outcome is Outcome.LOST
        await child.call("release", b"", timeout_s=TIMEOUT_S)
        assert child.late_answers == 1
        assert await child.call("echo", b"still here", timeout_s=TIMEOUT_S) == b"still here"
        await child.close()

    run(scenario())


def test_a_stopped_child_is_lost_after_silence_long_before_the_deadline() -> None:
    async def scenario() -> None:
        child = await start(options=ChildOptions(silence_s=0.3))
        with pytest.raises(ProcessError, match=r"silent for 0\.3 s"):
            await child.call("stop", b"", timeout_s=TIMEOUT_S)
        await child.close()
        assert not exists(child.pid)

    run(scenario())


def test_a_child_in_a_long_computation_is_not_taken_for_dead() -> None:
    async def scenario() -> None:
        child = await start(options=ChildOptions(silence_s=1.3))
        await child.call("compute", b"1.6", timeout_s=TIMEOUT_S)
        await child.close()

    run(scenario())


def test_an_untrusted_child_has_a_smaller_frame_bound() -> None:
    async def scenario() -> None:
        child = await start(options=ChildOptions(max_frame_bytes=1_000))
        assert len(await child.call("echo", bytes(900), timeout_s=TIMEOUT_S)) == 900
        with pytest.raises(ProcessError, match="the bound is 1000"):
            await child.call("echo", bytes(2_000), timeout_s=TIMEOUT_S)
        await child.close()

    run(scenario())


@pytest.mark.parametrize(("mode", "message"), [("silent_start", "no hello"), ("dies_at_start", "no such model")])
def test_a_child_that_does_not_come_up_is_refused_with_its_reason(mode: str, message: str) -> None:
    async def scenario() -> None:
        timeout_s = 0.3 if mode == "silent_start" else TIMEOUT_S
        with pytest.raises(ProcessError, match=message) as error:
            await start(mode, start_timeout_s=timeout_s)
        assert error.value.outcome is Outcome.REJECTED

    run(scenario())


def test_a_missing_program_is_refused() -> None:
    async def scenario() -> None:
        with pytest.raises(ProcessError) as error:
            await Child.start("probe", ["/no/such/program"], start_timeout_s=1.0)
        assert error.value.outcome is Outcome.REJECTED

    run(scenario())


def test_the_parents_environment_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_SECRET", "canary")

    async def scenario() -> None:
        child = await start()
        names = await child.call("environment", b"", timeout_s=TIMEOUT_S)
        assert set(eval(names)) <= {"LANG", "LC_CTYPE", "PATH", "PYTHONPATH", "PYTHONUNBUFFERED"}
        await child.close()

    run(scenario())


def test_closing_reaps_the_child_and_what_it_started() -> None:
    async def scenario() -> None:
        child = await start()
        descendant = int(await child.call("descendant", b"", timeout_s=TIMEOUT_S))
        pidfd = os.pidfd_open(descendant)
        await child.close()
        await child.close()
        assert not exists(child.pid)
        await readable(pidfd)

    run(scenario())


def test_output_is_kept_as_a_bounded_tail_and_whole_in_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        child = await start(options=ChildOptions(log_path=tmp_path / "child.log"))
        await child.call("say", b"x" * 200_000 + b"the end", timeout_s=TIMEOUT_S)
        await child.close()
        reason = await child.wait_lost()
        assert reason.endswith("the end")
        assert len(reason) < 5_000
        assert (tmp_path / "child.log").stat().st_size == 200_007

    run(scenario())


PARENT = """
import asyncio, os, sys
from headrace.processes.child import Child
async def main():
    argv = [sys.executable, sys.argv[1], "normal"]
    child = await Child.start("probe", argv, start_timeout_s=20, env={"PYTHONPATH": sys.argv[2]})
    print(child.pid, flush=True)
    await child.call("compute", b"600", timeout_s=700)
asyncio.run(main())
"""


def test_a_busy_child_dies_with_its_parent() -> None:
    async def scenario() -> None:
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PARENT, str(HERE / "misbehaving_child.py"), ENV["PYTHONPATH"],
            env=ENV, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert parent.stdout is not None
        pid = int(await parent.stdout.readline())
        pidfd = os.pidfd_open(pid)
        parent.kill()
        await parent.wait()
        await readable(pidfd)

    run(scenario())


def test_frames_survive_any_cut_of_the_byte_stream() -> None:
    frames = [Frame(Kind.CALL, number, "method", bytes(number)) for number in range(30)]
    data = b"".join(encode_frame(frame) for frame in frames)
    for step in (1, 2, 3, 7, 64, len(data)):
        reader = FrameReader()
        read = [frame for start in range(0, len(data), step) for frame in reader.feed(data[start : start + step])]
        assert read == frames


def test_a_frame_over_the_bound_is_refused_before_it_is_sent() -> None:
    with pytest.raises(FrameError, match=str(MAX_FRAME_BYTES)):
        encode_frame(Frame(Kind.REPLY, 1, payload=bytes(MAX_FRAME_BYTES)))
