"""Figures against logs whose answers are known by hand."""

import math

import msgspec
import pytest
from event_logs import POLICY, Log, episode_id, make_task, report_of, two_updates

from headrace.records.batch import MemberResult
from headrace.records.evaluation import EvaluationCompleted, StratumScore
from headrace.records.execution import ExecutionStatus
from headrace.records.ids import PolicyRef
from headrace.records.run import WeightsHeld, WorkerState
from headrace.records.terminal import Failure, InfraError, Limit, Success, Truncated
from headrace.records.trajectory import ForkCause, TranscriptSealed
from headrace.records.update import GenerationPaused, GenerationResumed
from headrace.records.verdict import VerdictDisputed
from headrace.reporting.folds.funnel import Funnel
from headrace.reporting.folds.turns import Turns
from headrace.reporting.report import report_run


def stage(funnel: Funnel, name: str, purpose: str = "train") -> int:
    (found,) = [item.counts[purpose] for item in funnel.stages if item.stage == name]
    return found


def outcome(funnel: Funnel, name: str, reason: str, purpose: str = "train") -> int:
    found = [item.counts[purpose] for item in funnel.outcomes if (item.stage, item.reason) == (name, reason)]
    return found[0] if found else 0


def test_every_stage_of_the_funnel_is_counted_and_every_drawn_task_is_somewhere():
    log = two_updates()
    funnel = report_of(log).funnel
    assert [stage(funnel, name) for name in ("tasks drawn", "groups admitted", "groups closed")] == [4, 4, 3]
    assert stage(funnel, "episodes started") == stage(funnel, "transcripts sealed") == 8
    assert stage(funnel, "policy turns") == 8
    assert stage(funnel, "transcripts scored") == 7
    assert stage(funnel, "groups trained") == 2
    assert stage(funnel, "trajectories trained") == 5
    assert outcome(funnel, "group", "filtered: stale: lag 3 > 2") == 1
    assert outcome(funnel, "group", "open") == 1
    assert outcome(funnel, "verdict", "absent: grader_crash") == 1
    frontier = funnel.frontier
    assert (frontier.drawn, frontier.trained, frontier.filtered, frontier.abandoned, frontier.open) == (4, 2, 1, 0, 1)
    assert funnel.is_conserved


def test_an_absent_reward_is_counted_apart_from_zero_and_is_in_no_mean():
    report = report_of(two_updates())
    assert outcome(report.funnel, "group member", "reward absent") == 1
    assert outcome(report.funnel, "group member", "reward 0") == 2
    hard = next(row for row in report.strata.difficulty if row.stratum == "hard")
    assert hard.absent_rewards == 1
    assert hard.mean_reward == pytest.approx(4 / 5)


def test_calls_cuts_control_literals_malformed_turns_and_limits_are_counted():
    log = Log()
    log.commit(0.0, 0)
    task = log.draw(0.0, 0)
    episode = episode_id(0, 0)
    log.start(0.0, episode, task)
    log.turn(1.0, episode, 0)
    action = log.call(1.0, 0.5, episode)
    log.seal(
        2.0,
        episode,
        task,
        terminal=Truncated(Limit.TURNS),
        actions=[(action, ExecutionStatus.TIMEOUT)],
        malformed=3,
    )
    log.start(2.0, episode_id(0, 1), task)
    log.seal(3.0, episode_id(0, 1), task, terminal=InfraError("inference", "gone"))
    log.start(3.0, episode_id(0, 1, 1), task)
    report = report_of(log)
    funnel = report.funnel
    assert stage(funnel, "tool calls intended") == stage(funnel, "tool calls committed") == 1
    assert outcome(funnel, "observation", "cut to its budget") == 1
    assert outcome(funnel, "observation", "control literals neutralised") == 2
    assert outcome(funnel, "turn", "malformed, shown to the policy") == 3
    assert outcome(funnel, "call", "timeout") == 1
    assert outcome(funnel, "terminal", "truncated:turns") == 1
    assert outcome(funnel, "episode", "new attempt after an infrastructure failure") == 1
    found = {(item.kind, item.name): item.count for item in report.limits.counts}
    assert found == {("budget", "turns"): 1, ("tool", "timeout"): 1, ("boundary", "inference"): 1}


def test_every_fork_is_counted_by_its_cause_and_each_path_is_a_row_of_its_episode():
    log = Log()
    log.commit(0.0, 0)
    task = log.draw(0.0, 0)
    members: list[MemberResult] = []
    for place in range(2):
        log.start(0.0, episode_id(0, place), task)
        causes = (ForkCause.THINKING_DROPPED, ForkCause.COMPACTION)
        sealed = log.seal(1.0, episode_id(0, place), task, forks=causes)
        members.append(MemberResult(episode_id(0, place), sealed, log.judge(1.5, sealed, float(place)), float(place)))
    log.close(2.0, 0, tuple(members))
    log.update(2.0, 3.0, 4.0, 1, {0: tuple(members)}, paths=3)
    report = report_of(log)
    assert outcome(report.funnel, "path", "forked: thinking_dropped") == 2
    assert outcome(report.funnel, "path", "forked: compaction") == 2
    assert (report.updates.updates[0].rows, report.updates.updates[0].episodes) == (6, 2)
    assert report.updates.rows_per_episode == 3.0
    assert report_of(two_updates()).updates.rows_per_episode == 1.0


def test_information_of_two_groups_equals_the_sum_done_by_hand():
    """v = 2 for (1, 0) with n = 2 and ESS 0.5; v = 4/3 for (1, 1, 0) with n = 3 and ESS 0.9; 36 s on 2 cores."""
    info = report_of(two_updates()).information
    easy, hard = 2.0 * 2 * 0.5, 4 / 3 * 3 * 0.9
    assert info.total == pytest.approx(easy + hard)
    assert info.per_hour == pytest.approx((easy + hard) * 100)
    (cores,) = info.resources
    assert cores.hours == pytest.approx(2 * 36 / 3600)
    assert cores.information_per_hour == pytest.approx((easy + hard) * 50)
    rows = {row.difficulty: row for row in info.strata}
    assert rows["easy"].retention == pytest.approx(0.5)
    assert rows["hard"].retention == pytest.approx(0.9)
    assert info.environment_cpu_s == pytest.approx(8 * 0.25)
    assert [point.update for point in info.curve] == [1, 2]


def test_a_task_that_trains_twice_counts_once():
    log = Log()
    log.commit(0.0, 0)
    task = make_task(0)
    first = log.group(0.0, 1.0, 0, (1.0, 0.0), task=task)
    log.update(1.0, 2.0, 3.0, 1, {0: first})
    second = log.group(3.0, 4.0, 1, (1.0, 0.0), task=task, version=1)
    log.update(4.0, 5.0, 6.0, 2, {1: second})
    info = report_of(log).information
    assert info.total == pytest.approx(4.0)
    assert info.duplicate_groups == 1


def test_disputed_verdicts_discount_the_information_and_none_leave_it_whole():
    log = two_updates()
    assert report_of(log).information.strata[0].flip_rate is None
    assert report_of(log).information.strata[0].kappa == 1.0
    address = next(
        event.payload.transcript
        for event in log.events
        if isinstance(event.payload, TranscriptSealed) and event.key == "train.0.0.0"
    )
    before = report_of(log).information.strata[0].trained
    for number in range(1, 10):
        log.judge(30.0, address, 1.0, try_number=number)
    log.add(31.0, VerdictDisputed(address, address, make_task(9).address), "disputed")
    info = report_of(log).information
    assert (info.regrades, info.disputes) == (10, 1)
    assert info.strata[0].flip_rate == pytest.approx(0.1)
    assert info.strata[0].trained == pytest.approx(before * 0.64)


def test_information_of_a_batch_without_an_effective_sample_size_is_left_out_and_counted():
    log = two_updates()
    log.events = [event for event in log.events if not (event.kind == "batch_scored" and event.key == "1")]
    info = report_of(log).information
    assert info.unweighted_groups == 1
    assert info.total == pytest.approx(4 / 3 * 3 * 0.9)


def test_lag_span_weights_mismatch_and_canary_stand_beside_each_update():
    report = report_of(two_updates()).updates
    last = report.updates[-1]
    assert (last.oldest_lag, last.mean_lag, last.max_span, last.ess_fraction) == (2, 1.0, 0, 0.9)
    assert (last.mismatch, last.canary, last.kl_to_previous) == (3e-6, 2e-6, 1e-3)
    assert (last.train_s, last.publish_s, last.compute_s) == (2.0, 2.0, 0.25)
    assert (report.largest_lag, report.smallest_ess) == (2, 0.5)


def test_the_share_of_updates_in_which_generation_stood_still_is_loading_canary_and_switch():
    report = report_of(two_updates()).updates
    assert [item.standstill_s for item in report.updates] == pytest.approx([0.01 + 0.25 + 0.02] * 2)
    assert [item.standstill_share for item in report.updates] == pytest.approx([0.28 / 2, 0.28 / 4])
    assert report.standstill_share == pytest.approx(2 * 0.28 / (2 + 4))


def test_turns_on_shared_devices_add_up_and_one_that_has_no_end_is_no_turn():
    log = two_updates()
    log.add(37.0, GenerationPaused(1, "engine", 3, 100, 0.5), "1")
    log.add(40.0, GenerationResumed(1, "engine", 100, 3.0, 0.25), "1")
    log.add(41.0, GenerationPaused(2, "engine", 5, 160, 0.5), "2")
    log.add(45.0, GenerationResumed(2, "engine", 162, 4.0, 0.25), "2")
    log.add(46.0, GenerationPaused(3, "engine", 5, 200, 0.5), "3")
    assert report_of(log).turns == Turns(number=2, held_s=7.0, switch_s=1.5, running=8, computed_tokens=2)
    assert report_of(two_updates()).turns == Turns()


def test_rates_backlog_and_starvation_follow_from_selection_and_activation():
    """Trainer at work from 4 to 6 and from 12 to 16, served from 1 to 16: busy 6 of 15 seconds; 2 groups in 6 s."""
    flow = report_of(two_updates()).flow
    assert flow.trainer_busy_s == pytest.approx(6.0)
    assert flow.trainer_capacity == pytest.approx(2 / 6)
    assert flow.starvation == pytest.approx(1 - 6 / 15)
    assert flow.arrival_rate == pytest.approx(3 / 15)
    assert flow.trained_tokens == 5 * 4
    assert flow.generated_tokens == 8 * 4
    assert flow.environment_share == pytest.approx(2.0 / (36 * 2))


def test_environment_cpu_that_nothing_metered_is_absent_and_not_zero():
    metered, unmetered, idle = Log(), Log(), Log()
    for log, cpu_s in ((metered, 0.5), (unmetered, 0.0)):
        task, episode = log.draw(0.0, 0), episode_id(0, 0)
        log.start(0.0, episode, task)
        action = log.call(1.0, 0.5, episode)
        log.seal(2.0, episode, task, actions=[(action, ExecutionStatus.OK)], cpu_s=cpu_s)
    assert report_of(metered).flow.environment_cpu_s == 0.5
    assert report_of(unmetered).flow.environment_cpu_s is None
    assert report_of(unmetered).information.environment_cpu_s is None
    assert report_of(idle).flow.environment_cpu_s == 0


def test_slowdown_by_length_is_wall_time_over_the_same_without_waiting_for_slots():
    log = Log()
    task = log.draw(0.0, 0)
    for member, wait_s in enumerate((0.0, 1.0, 3.0)):
        log.start(0.0, episode_id(0, member), task)
        log.seal(1.0 + wait_s, episode_id(0, member), task, wait_s=wait_s)
    (row,) = report_of(log).slowdowns
    assert (row.trajectories, row.mean_turns, row.mean_wait_s) == (3, 1.0, pytest.approx(4 / 3))
    assert (row.mean_slowdown, row.max_slowdown) == (pytest.approx(7 / 3), 4.0)


def test_the_states_of_a_worker_sum_to_wall_time_to_the_nanosecond():
    log = Log()
    log.worker(0.1, "engine", WorkerState.IDLE)
    log.worker(1 / 3, "engine", WorkerState.BUSY)
    log.worker(2 / 3, "engine", WorkerState.SYNC)
    log.worker(math.pi, "engine", WorkerState.IDLE)
    log.end(10.0)
    (engine,) = report_of(log).workers.workers
    assert engine.sums_to_wall
    assert sum(engine.states_ns.values()) == 10_000_000_000
    assert engine.states_ns["unreported"] == 100_000_000
    assert engine.states_ns["busy"] == round(2 / 3 * 1e9) - round(1 / 3 * 1e9)


def test_copies_of_weights_are_listed_once_each():
    log = Log()
    for _ in range(2):
        log.add(0.0, WeightsHeld("policy in the engine", POLICY, "engine", "cpu", 100), "engine/policy")
        log.add(0.0, WeightsHeld("optimizer state", POLICY, "trainer", "cpu", 200), "trainer/optimizer")
    workers = report_of(log).workers
    assert len(workers.copies) == 2
    assert workers.weights_bytes == 300


def test_claims_that_the_verdict_contradicts_are_counted_and_absent_verdicts_are_not():
    log = Log()
    log.commit(0.0, 0)
    cases = ((Success(), 1.0), (Success(), 0.0), (Failure("x"), 1.0), (Failure("x"), 0.0), (Success(), None))
    for member, (terminal, score) in enumerate(cases):
        episode, task = episode_id(0, member, purpose="eval"), make_task(0)
        log.start(1.0, episode, task, pin=0)
        log.judge(2.0, log.seal(2.0, episode, task, terminal=terminal), score)
    found = report_of(log).claims
    assert (found.compared, found.disagreements, found.rate) == (4, 2, 0.5)
    assert next(row for row in found.rows if row.claim == "success").absent == 1


def test_held_out_rounds_have_intervals_and_an_ungraded_round_has_no_rate():
    log = Log()
    strata = (StratumScore("sums", "easy", 6, 6), StratumScore("sums", "hard", 4, 2))
    log.add(1.0, EvaluationCompleted(PolicyRef(POLICY, 0), 1.0, 10, 8, 0, strata, 0.5), "0/1.0")
    log.add(2.0, EvaluationCompleted(PolicyRef(POLICY, 1), 1.0, 0, 0, 10, (), 0.5), "1/1.0")
    graded, ungraded = report_of(log).held_out.rounds
    assert graded.overall.rate == 0.8
    assert (graded.overall.low, graded.overall.high) == (pytest.approx(0.490, abs=5e-4), pytest.approx(0.943, abs=5e-4))
    assert [(item.name, item.rate.rate) for item in graded.difficulties] == [("easy", 1.0), ("hard", 0.5)]
    assert ungraded.overall.rate is None
    assert ungraded.unscored == 10


def test_a_stratum_that_trains_behind_its_turn_drifts_and_drifts_sum_to_zero():
    log = Log(updates=4)
    log.commit(0.0, 0)
    groups = {i: log.group(0.0, 1.0, i, (1.0, 0.0), "hard" if i == 0 else "easy") for i in range(4)}
    for update, ordinal in enumerate((1, 2, 3, 0), start=1):
        log.update(update, update + 0.2, update + 0.4, update, {ordinal: groups[ordinal]})
    found = {row.difficulty: row for row in report_of(log).order.strata}
    assert (found["hard"].mean_drift, found["easy"].mean_drift) == (3.0, -1.0)
    assert report_of(log).order.alarms == ("hard: trained 3.0 updates later than its turn on average",)
    assert found["hard"].drawn_share == found["hard"].trained_share == 0.25


def test_groups_closed_by_the_end_of_the_run_are_in_no_share_and_not_on_offer():
    log = two_updates()
    log.events.pop()
    log.reject(36.0, 3, "run ended", state="abandoned")
    log.end(36.0)
    report = report_of(log)
    easy = next(row for row in report.strata.difficulty if row.stratum == "easy")
    assert (easy.drawn, easy.trained, easy.abandoned, easy.cut_off, easy.trained_share) == (2, 1, 0, 1, 1.0)
    assert report.information.unknown_groups == 0
    assert report.funnel.frontier.abandoned == 1


def test_an_unfinished_log_gives_a_report_at_every_event():
    log = two_updates()
    for stop in range(len(log.events) + 1):
        report = report_run(log.events[:stop], log.read)
        assert report.funnel.is_conserved
        assert all(worker.sums_to_wall for worker in report.workers.workers)


def test_the_same_log_gives_the_same_report_byte_for_byte():
    log = two_updates()
    assert msgspec.json.encode(report_of(log)) == msgspec.json.encode(report_of(log))


def test_a_trained_mix_that_departs_from_the_offered_one_by_more_than_chance_raises_an_alarm():
    log = Log(updates=40)
    log.commit(0.0, 0)
    for ordinal in range(80):
        name = "hard" if ordinal % 2 else "easy"
        groups = {ordinal: log.group(ordinal, ordinal + 0.1, ordinal, (1.0, 0.0), name)}
        if name == "easy":
            update = ordinal // 2 + 1
            log.update(ordinal + 0.2, ordinal + 0.3, ordinal + 0.4, update, groups)
    assert report_of(log).order.alarms[:2] == (
        "easy: 100.0% of what trained, 50.0% of what was drawn; chance explains 23.7%",
        "hard: 0.0% of what trained, 50.0% of what was drawn; chance explains 23.7%",
    )
