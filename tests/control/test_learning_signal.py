"""Filters, empty batches, strata and the guard, through the whole orchestrator on virtual time."""

import dataclasses

import msgspec
import pytest
from simulated_runs import config, faultless, kinds, payloads, run

from headrace.control.guarding import CollapseGuard
from headrace.control.recovery import recover
from headrace.errors import ConfigError, HeadraceError
from headrace.records.batch import BatchPlan, BatchPlanned, GroupClosed, GroupRejected
from headrace.records.checkpoint import CheckpointWritten, GuardState
from headrace.records.gate import Breach
from headrace.records.learning.guard import Guard
from headrace.records.update import (
    BatchScored,
    CanaryScore,
    TrainingPaused,
    UpdateCompleted,
    UpdateSkipped,
    WeightsCommitted,
)

SYNC = {"mode": "sync", "credit_batches": 0}


def with_trainer(change):
    """Wraps the trainer of a run."""
    return lambda ports: dataclasses.replace(ports, trainer=change(ports.trainer))


class _Around:
    """A trainer that answers as another one does, but for what a subclass changes."""

    def __init__(self, trainer):
        self._trainer = trainer

    def __getattr__(self, name):
        return getattr(self._trainer, name)


class _Collapsing(_Around):
    """Says after its second update that the policy moved by 5 nats per token."""

    async def canary(self, ids, timeout_s) -> CanaryScore:
        score = await self._trainer.canary(ids, timeout_s)
        return msgspec.structs.replace(score, kl_to_previous=5.0) if score.version == 2 else score


class _Keeping(_Around):
    """Keeps the plans that it is given."""

    def __init__(self, trainer):
        super().__init__(trainer)
        self.plans: list[BatchPlan] = []

    async def update(self, plan, timeout_s):
        self.plans.append(plan)
        return await self._trainer.update(plan, timeout_s)


def run_with_plans(schedule=SYNC, **options):
    """(result, plans) of a run."""
    kept: list[_Keeping] = []

    def adapt(ports):
        kept.append(_Keeping(ports.trainer))
        return dataclasses.replace(ports, trainer=kept[0])

    return run(schedule, adapt=adapt, **options), kept[0].plans


def test_scores_come_with_figures_by_difficulty_that_add_up():
    result = run({**SYNC, "batch_groups": 8}, updates=3)
    for scored in payloads(result, BatchScored):
        assert scored.figures is not None
        assert sum(item.figures.rows for item in scored.strata) == scored.rows == scored.figures.rows
        assert sum(item.figures.tokens for item in scored.strata) == scored.figures.tokens
        assert [item.difficulty for item in scored.strata] == sorted(item.difficulty for item in scored.strata)
        assert scored.kl == scored.figures.kl_k1
        assert all(0.0 < item.figures.ess_fraction <= 1.0 for item in scored.strata)
    assert any(len(scored.strata) > 1 for scored in payloads(result, BatchScored))


def test_the_kl_of_a_batch_is_its_k1_estimate_per_token():
    result = run({"mode": "separate_async", "credit_batches": 2}, updates=4)
    for scored in payloads(result, BatchScored):
        whole = scored.figures
        parts = sum(item.figures.kl_k1 * item.figures.tokens for item in scored.strata)
        assert scored.kl == pytest.approx(parts / whole.tokens)
        assert whole.kl_k3 >= 0.0


def test_dynamic_sampling_rejects_equal_groups_with_a_record_and_draws_others():
    algorithm = {"filters": {"dynamic_sampling": True}}
    result, plans = run_with_plans(updates=3, algorithm=algorithm)
    assert result.summary.updates == len(plans) == 3
    rejected = [item for item in payloads(result, GroupRejected) if "dynamic sampling" in item.reason]
    assert rejected
    assert all(item.state == "filtered" and item.difficulty for item in rejected)
    for plan in plans:
        for group in {row.group for row in plan.rows}:
            assert len({row.reward for row in plan.rows if row.group == group}) > 1
    plain = run(SYNC, updates=3)
    assert not [item for item in payloads(plain, GroupRejected) if "dynamic sampling" in item.reason]


def test_a_run_in_which_every_group_is_equal_stops_instead_of_drawing_for_ever():
    algorithm = {"filters": {"dynamic_sampling": True, "tolerance": 2.0}}
    with pytest.raises(HeadraceError, match="makes no progress"):
        run(SYNC, of=faultless(), updates=1, algorithm=algorithm)


def test_a_batch_without_a_row_makes_no_plan_and_no_version():
    """One member per group has no baseline: under a group mean nothing can be trained, and the run says so."""
    with pytest.raises(ConfigError, match="group_size is 1"):
        config({**SYNC, "group_size": 1})
    algorithm = {"filters": {"overlong": "mask"}}
    result = run(SYNC, of=faultless(), updates=2, algorithm=algorithm, adapt=_first_batch_is_cut())
    skipped = payloads(result, UpdateSkipped)
    assert [item.update for item in skipped] == [1]
    assert "no row" in skipped[0].reason
    assert kinds(result.events)["batch_planned"] == kinds(result.events)["update_completed"] == 2
    gone = [item for item in payloads(result, GroupRejected) if "no member with a reward" in item.reason]
    assert len(gone) == 4


def _first_batch_is_cut():
    """Gives the first four tasks a budget of one turn that cannot hold an answer, so all of their members are cut."""

    def adapt(ports):
        return dataclasses.replace(ports, tasks=_ShortFirst(ports.tasks, 4))

    return adapt


class _ShortFirst:
    def __init__(self, tasks, count):
        self._tasks = tasks
        self._left = count

    def next(self):
        task = self._tasks.next()
        if task is None or self._left == 0:
            return task
        self._left -= 1
        return msgspec.structs.replace(task, budget=msgspec.structs.replace(task.budget, turns=1, turn_tokens=1))

    def held_out(self):
        return self._tasks.held_out()


def test_masked_and_shaped_members_are_counted_by_difficulty():
    cut = _first_batch_is_cut()
    masked = run(SYNC, of=faultless(), updates=2, algorithm={"filters": {"overlong": "keep"}}, adapt=cut)
    assert not [item for planned in payloads(masked, BatchPlanned) for item in planned.removed]
    shaped, plans = run_with_plans(
        of=faultless(),
        updates=2,
        algorithm={"filters": {"overlong": "shape", "overlong_buffer": 1 << 30, "overlong_penalty": 0.5}},
    )
    for planned, plan in zip(payloads(shaped, BatchPlanned), plans, strict=True):
        assert sum(item.members for item in planned.removed) == 16
        assert {item.filter for item in planned.removed} == {"overlong_shape"}
        assert len({row.reward for row in plan.rows}) <= 2  # the grader's reward stays on record


def test_the_guard_pauses_before_the_version_is_served():
    result = run(SYNC, updates=5, adapt=with_trainer(_Collapsing))
    (paused,) = payloads(result, TrainingPaused)
    assert (paused.update, paused.figure, paused.value, paused.bound) == (2, "step KL", 5.0, 1.0)
    assert [item.policy.version for item in payloads(result, WeightsCommitted)] == [0, 1]
    assert kinds(result.events)["update_completed"] == 2
    assert result.summary.reason.startswith("paused: step KL 5")
    free = run(SYNC, updates=3, adapt=with_trainer(_Collapsing), algorithm={"guard": {"max_step_kl": 0.0}})
    assert free.summary.reason == "completed"


def test_the_guard_remembers_the_first_entropy():
    guard = CollapseGuard(Guard(max_kl=0.5, max_step_kl=0.0, min_entropy_share=0.1))
    assert guard.judge({"entropy": 2.0, "kl": 0.1}, 9.0) is None
    assert guard.judge({"entropy": 0.3, "kl": 0.1}, None) is None
    assert guard.judge({"entropy": 0.1, "kl": 0.1}, None) == Breach("entropy", 0.1, 0.2)
    assert guard.judge({"entropy": 1.0, "kl": 0.6}, None) == Breach("KL(behaviour, policy)", 0.6, 0.5)
    assert guard.judge({}, None) is None


def test_the_guard_decides_the_same_after_a_checkpoint():
    bounds = Guard(min_entropy_share=0.1)
    guard, again, forgetful = CollapseGuard(bounds), CollapseGuard(bounds), CollapseGuard(bounds)
    guard.judge({"entropy": 2.0}, None)
    written = run({**SYNC}, of=faultless(), updates=2, checkpoint={"every_updates": 1}, adapt=with_trainer(_Certain))
    stored = payloads(written, CheckpointWritten)[-1]
    assert stored.guard == GuardState(first_entropy=2.0)
    # A log that begins with the checkpoint still holds what the guard has to know.
    begin = next(event for event in written.events if isinstance(event.payload, CheckpointWritten))
    again.recall(recover([begin]).guard)
    later = {"entropy": 0.15}
    assert guard.judge(later, None) == again.judge(later, None) == Breach("entropy", 0.15, 0.2)
    assert forgetful.judge(later, None) is None


class _Certain(_Around):
    """Says that the first update had an entropy of 2 nats and every later one of 1."""

    async def update(self, plan, timeout_s):
        result = await self._trainer.update(plan, timeout_s)
        return msgspec.structs.replace(
            result, metrics={**result.metrics, "entropy": 2.0 if result.version == 1 else 1.0}
        )


def test_updates_keep_no_rows_in_the_log():
    result = run(SYNC, updates=2)
    assert all(item.result.rows == () for item in payloads(result, UpdateCompleted))
    assert payloads(result, GroupClosed)
