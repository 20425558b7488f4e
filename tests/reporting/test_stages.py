"""Waiting per stage: Little's law, stages that are not stationary, and what the engine took, on logs with known answers."""

import pytest
from event_logs import Log, episode_id, report_of

from headrace.records.execution import ExecutionStatus
from headrace.reporting.folds.stages import EngineTime


def test_littles_law_holds_where_everything_that_enters_also_leaves():
    """Ten updates; group i is ready for 1 s out of every 2: L = 1/2, lambda = 1/2 per s, W = 1 s."""
    log = Log(updates=10)
    log.commit(0.0, 0)
    for i in range(10):
        members = log.group(2.0 * i, 2.0 * i + 0.5, i, (1.0, 0.0), version=i)
        log.update(2.0 * i + 1.5, 2.0 * i + 1.7, 2.0 * i + 1.9, i + 1, {i: members})
    log.end(20.0)
    stages = report_of(log).stages
    assert stages.window_s == (1.9, 19.9)
    ready = next(item for item in stages.little if item.stage == "ready queue")
    assert ready.is_stationary
    assert ready.measured == pytest.approx(0.5)
    assert ready.mean_wait_s == pytest.approx(1.0)
    assert ready.residual == pytest.approx(0.0, abs=1e-9)
    assert [(age.p50_s, age.p95_s) for age in stages.queue_ages] == [(1.0, 1.0)] * 10


def test_a_stage_that_fills_up_is_marked_not_stationary():
    log = Log()
    log.commit(0.0, 0)
    for i in range(40):
        log.group(float(i), i + 1.0, i, (1.0, 0.0))
    log.end(50.0)
    ready = next(item for item in report_of(log).stages.little if item.stage == "ready queue")
    assert (ready.arrivals, ready.departures) == (40, 0)
    assert not ready.is_stationary
    assert ready.expected is None
    assert ready.residual is None
    assert ready.measured == pytest.approx(sum(50 - (i + 1) for i in range(40)) / 50)


def test_waits_are_taken_from_turns_calls_gradings_and_groups():
    log = Log()
    log.commit(0.0, 0)
    task, episode = log.draw(0.0, 0), episode_id(0, 0)
    log.start(0.0, episode, task)
    log.turn(3.0, episode, 0, wait_s=1.0, generate_s=2.0)
    action = log.call(3.0, 0.5, episode)
    transcript = log.seal(4.0, episode, task, actions=[(action, ExecutionStatus.OK)])
    log.judge(4.25, transcript, None)
    log.judge(5.0, transcript, 1.0, try_number=1)
    stages = report_of(log).stages
    assert stages.engine == (EngineTime("train", 1, 40, 4, 0.5, 1.0),)
    waits = {item.stage: item for item in stages.waits}
    assert waits["engine slot"].mean_s == pytest.approx(1.0)
    assert waits["generation"].mean_s == pytest.approx(2.0)
    assert waits["tool"].mean_s == pytest.approx(0.5)
    assert waits["grading"].left == 2
    assert waits["grading"].total_s == pytest.approx(1.0)
    assert waits["training"].mean_s is None
