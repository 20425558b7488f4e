"""Checkpoints and takeovers: each action under way is counted by what was durable of it, and by what became of it."""

import msgspec
from event_logs import POLICY, VERSION, Log, episode_id

from headrace.records.action import Action, ActionCommitted, ActionIntended, EffectClass
from headrace.records.checkpoint import CheckpointWritten, Manifest, RunResumed
from headrace.records.ids import ActionId, LeaseToken
from headrace.reporting.folds.recovery import ActionsFound
from headrace.reporting.report import report_run
from headrace.reporting.sections.recovery import recoveries


def intend(log: Log, t_s: float, step: int, effect: EffectClass = EffectClass.PURE) -> Action:
    action = Action(ActionId(episode_id(0, 0), step, 0), "calculator", "{}")
    log.add(t_s, ActionIntended(action, LeaseToken(1), effect), str(action.id))
    return action


def interrupted() -> Log:
    log = Log()
    log.start(1.0, episode_id(0, 0), log.draw(0.0, 0))
    log.call(2.0, 0.1, episode_id(0, 0), 0)
    committed = intend(log, 3.0, 1)
    log.add(3.1, ActionCommitted(committed.id, VERSION), str(committed.id))
    again = intend(log, 4.0, 2)
    intend(log, 4.5, 3, EffectClass.EXTERNAL)
    manifest = Manifest(POLICY, 1, VERSION, {}, 3 * 1024**2, "constant", VERSION)
    log.add(
        4.6,
        CheckpointWritten(1, manifest, 1, 0, 0, 0, (0,), 9, LeaseToken(1), "resume", save_s=0.5, stall_s=0.125),
        "CHECKPOINT#1",
    )
    log.add(6.0, RunResumed(10, 1, 1, 0, 0, 1, 0, 1, 0, 0.3), "RESUME#2")
    log.add(6.5, ActionCommitted(again.id, VERSION), str(again.id))
    return log


def test_actions_under_way_are_counted_by_their_branch() -> None:
    log = interrupted()
    found = report_run(log.events, log.read).recovery
    assert [item.actions for item in found.resumes] == [ActionsFound(observed=1, committed=1, run_again=1, parked=1)]
    assert (found.checkpoints, found.last_update, found.stall_s) == (1, 1, 0.125)


def test_an_action_that_never_comes_back_is_not_called_run_again() -> None:
    log = interrupted()
    log.events.pop()
    (resume,) = report_run(log.events, log.read).recovery.resumes
    assert (resume.actions.run_again, resume.actions.parked) == (0, 2)


def test_actions_of_sealed_attempts_are_under_way_for_nobody() -> None:
    log = Log()
    task = log.draw(0.0, 0)
    log.start(1.0, episode_id(0, 0), task)
    log.call(2.0, 0.1, episode_id(0, 0), 0)
    log.seal(3.0, episode_id(0, 0), task)
    log.add(6.0, RunResumed(10, 0, None, 0, 0, 1, 0, 0, 0, 0.3), "RESUME#2")
    (resume,) = report_run(log.events, log.read).recovery.resumes
    assert msgspec.to_builtins(resume.actions) == {"observed": 0, "committed": 0, "run_again": 0, "parked": 0}


def test_the_section_says_where_a_resume_came_from() -> None:
    log = interrupted()
    lines = list(recoveries(report_run(log.events, log.read), True))
    assert "1 checkpoints, the last after update 1 (3 MiB)" in str(lines[0])
    assert "update 1" in str(lines[1])
    empty = Log()
    assert "never resumed" in str(list(recoveries(report_run(empty.events, empty.read), True)))
