"""What a person sees while a run goes, as plain lines and in place."""

import asyncio
import io
import time

from event_logs import POLICY, Log, episode_id, two_updates
from rich.console import Console

from headrace.records.evaluation import EvaluationCompleted
from headrace.records.ids import PolicyRef
from headrace.records.run import WorkerState
from headrace.reporting.progress import Progress
from headrace.runtime.training import Silence
from headrace.simulation.loop import run_virtual


def lines_of(log: Log, *, bound: float = 1e-4) -> list[str]:
    stream = io.StringIO()
    show = Progress(Console(file=stream, width=200), updates=2, mismatch_bound=bound)
    for event in log.events:
        show(event)
    show.close()
    return stream.getvalue().splitlines()


def test_each_update_is_one_line_with_its_mismatch_and_bound():
    updates = [line for line in lines_of(two_updates()) if line.startswith("update")]
    assert len(updates) == 2
    assert "update 1/2  reward 0.500  engine/trainer log-prob diff 3.0e-06 (bound 1e-04)" in updates[0]
    assert "lag 2 updates (mean 1)" in updates[1]
    assert "episodes 8" in updates[1]
    assert not any("ABOVE" in line for line in updates)


def test_a_mismatch_above_its_bound_is_said_aloud():
    updates = [line for line in lines_of(two_updates(), bound=1e-6) if line.startswith("update")]
    assert all("ABOVE ITS BOUND" in line for line in updates)


def test_a_version_that_two_workers_activate_is_one_line():
    log = two_updates()
    (activated,) = [e.payload for e in log.events if e.kind == "weights_activated" and "@1/" in e.key]
    log.events.insert(
        [e.payload for e in log.events].index(activated) + 1, next(e for e in log.events if e.payload is activated)
    )
    assert len([line for line in lines_of(log) if line.startswith("update")]) == 2


def test_a_silent_run_says_what_it_waits_for_at_most_every_five_seconds():
    log = Log()
    log.commit(0.0, 0)
    task = log.draw(0.0, 0)
    log.start(0.1, episode_id(0, 0), task)
    for second in range(1, 60):
        log.worker(float(second), "engine", WorkerState.BUSY)
    waits = [line for line in lines_of(log) if "waits for" in line]
    assert 10 <= len(waits) <= 12
    assert waits[0].endswith("waits for groups to train on: 1 episodes run, 0 in tools, 0 being graded")


def test_a_run_without_any_event_says_what_it_waits_for_and_since_when():
    log = Log()
    log.commit(0.0, 0)
    log.start(61.0, episode_id(0, 0), log.draw(61.0, 0))
    stream = io.StringIO()

    async def wait() -> None:
        progress = Progress(Console(file=stream, width=200), updates=2)
        silence = Silence(progress)
        watching = asyncio.create_task(silence.watch())
        await asyncio.sleep(60.0)
        for event in log.events:
            progress(event)
            silence(event)
        await asyncio.sleep(21.0)
        watching.cancel()

    run_virtual(wait())
    waits = [line for line in stream.getvalue().splitlines() if "nothing has happened" in line]
    assert [line.split()[0] for line in waits] == ["1:06", "1:11", "1:16", "1:21"]
    assert waits[0].endswith("1 episodes run, 0 in tools, 0 being graded; nothing has happened since 1:01")


def test_a_held_out_round_is_shown_with_its_interval_and_without_grades_has_no_rate():
    log = Log()
    log.add(1.0, EvaluationCompleted(PolicyRef(POLICY, 0), 1.0, 10, 8, 0, (), 0.5), "0/1.0")
    log.add(2.0, EvaluationCompleted(PolicyRef(POLICY, 1), 1.0, 0, 0, 10, (), 0.5), "1/1.0")
    graded, ungraded = [line for line in lines_of(log) if line.startswith("held-out")]
    assert graded == "held-out  version 0  temperature 1: 80.0% (8/10, 95% 49.0% to 94.3%)"
    assert ungraded == "held-out  version 1  temperature 1: – (0/0, 10 without a verdict)"


def test_in_a_terminal_the_panel_is_redrawn_in_place_and_the_end_is_a_line():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, height=30, color_system=None, legacy_windows=False)
    show = Progress(console, updates=2)
    log = two_updates()
    for event in log.events:
        show(event)
    assert "\x1b[" in stream.getvalue()
    assert stream.getvalue().splitlines()[-1].endswith("run ended after 36 s: completed, 2 updates")


def test_a_reason_with_terminal_escapes_is_inert():
    log = Log()
    log.end(1.0, reason="failed: \x1b]0;owned\x07")
    assert lines_of(log)[-1] == r"run ended after 1 s: failed: \x1b]0;owned\x07, 2 updates"


def test_an_event_that_writes_nothing_costs_microseconds():
    log = Log()
    log.commit(0.0, 0)
    task = log.draw(0.0, 0)
    log.start(0.1, episode_id(0, 0), task)
    for step in range(5000):
        log.turn(0.2, episode_id(0, 0), step)
    show = Progress(Console(file=io.StringIO()), updates=2)
    begin_s = time.process_time()
    for event in log.events:
        show(event)
    assert (time.process_time() - begin_s) / len(log.events) < 20e-6
