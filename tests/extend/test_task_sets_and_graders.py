"""A user's task set and grader: the split, what reaches the policy, and what each return value becomes."""

from pathlib import Path

import pytest
import shop_parts

from headrace.errors import ConfigError
from headrace.extend.task_sets import TaskSetOptions
from headrace.graders.parts import PythonGrader, PythonGraderOptions
from headrace.graders.service import verdict_of
from headrace.records.ids import Address, EpisodeId, GroupId, Purpose
from headrace.records.provenance import canonical_bytes
from headrace.records.task import Budget, Task
from headrace.records.verdict import Scored, Submission, Unscored, UnscoredCause, Verdict
from headrace.tasks.parts import PythonTasks

PARTS = str(Path(shop_parts.__file__))


def tasks(name: str, seed: int = 7, held_out: int = 50) -> PythonTasks:
    chosen = TaskSetOptions(name=name, file=PARTS, held_out=held_out)
    return PythonTasks(chosen, seed=seed, budget=Budget(), environment="python")


def grader(name: str, task_set: str) -> PythonGrader:
    chosen = TaskSetOptions(name=task_set, file=PARTS)
    return PythonGrader(PythonGraderOptions(name=name, file=PARTS, tasks=chosen))


def graded(core: PythonGrader, task: Task, text: str, artifact: bytes = b"") -> Verdict:
    episode = EpisodeId(GroupId.of(Purpose.TRAIN, 0), 0, 0)
    return verdict_of(core, Submission(Address("0" * 64), episode, task, text, artifact))


def test_training_and_held_out_tasks_share_no_question_and_the_held_out_set_ignores_the_seed() -> None:
    for name in ("sums", "errands"):
        one, two = tasks(name, seed=1, held_out=4), tasks(name, seed=2, held_out=4)
        held_out = {task.question for task in one.held_out()}
        assert [task.question for task in one.held_out()] == [task.question for task in two.held_out()]
        assert len(held_out) == 4
        drawn = [one.task("train", ordinal) for ordinal in range(50)]
        assert held_out.isdisjoint(task.question for task in drawn)
        assert drawn[3] == tasks(name, seed=1, held_out=4).task("train", 3)


def test_a_finite_set_ends_after_one_pass() -> None:
    source = tasks("errands", held_out=4)
    seen = [task.question for task in iter(source.next, None)]
    assert (len(seen), len(set(seen))) == (5, 5)
    with pytest.raises(ConfigError, match="nothing is left"):
        tasks("errands", held_out=9).next()
    with pytest.raises(ConfigError, match="9 different"):
        tasks("errands", held_out=10)


def test_a_task_carries_neither_answer_nor_oracle() -> None:
    source = tasks("errands", held_out=4)
    for ordinal in range(5):
        task = source.task("train", ordinal)
        stored = canonical_bytes(task)
        assert b"oracle" not in stored
        assert b"put" not in stored
        assert task.parameters in {'{"wanted":"tea"}', '{"wanted":"milk"}', '{"wanted":"bread"}'}


def test_numbers_named_scores_none_and_exceptions_are_four_different_things() -> None:
    source, core = tasks("sums"), grader("same", "sums")
    task = source.task("train", 0)
    right = str(eval(task.question.removeprefix("What is ").removesuffix("?")))
    assert graded(core, task, f" {right}\n").outcome.components == (("score", 1.0),)  # type: ignore[union-attr]
    wrong = graded(core, task, "no").outcome
    assert isinstance(wrong, Scored)
    assert (wrong.components, right in wrong.evidence) == ((("score", 0.0),), True)
    declined, crashed = graded(core, task, "refuse").outcome, graded(core, task, "crash").outcome
    assert isinstance(declined, Unscored)
    assert declined.cause is UnscoredCause.DECLINED
    assert isinstance(crashed, Unscored)
    assert crashed.cause is UnscoredCause.GRADER_CRASH
    named = grader("bought", "errands")
    errand = tasks("errands", held_out=4).held_out()[0]
    outcome = graded(named, errand, "done", b"{}").outcome
    assert isinstance(outcome, Scored)
    assert outcome.components == (("bought", 0.0),)


def test_a_task_that_asks_something_else_than_the_set_gets_no_score() -> None:
    task = tasks("sums").task("train", 0)
    forged = Task(task.family, task.difficulty, task.seed, task.index, "What is 1 + 1?", Budget(), "python")
    outcome = graded(grader("same", "sums"), forged, "2").outcome
    assert isinstance(outcome, Unscored)
    assert "asks something else" in outcome.detail


def test_a_grader_that_asks_for_what_is_not_offered_is_refused() -> None:
    with pytest.raises(ConfigError, match="it may ask for answer, problem, artifact"):
        PythonGrader(PythonGraderOptions(name="divide", file=PARTS))
