import json
import math
from fractions import Fraction

import msgspec
import numpy as np
import pytest
import reasoning_gym
from grader_case import core as real_core
from grader_case import entry_of, grade, make_task, submit, value_of
from reasoning_gym.factory import DATASETS

from headrace.errors import ConfigError
from headrace.graders import ReasoningGymGrader, ReasoningGymGraderOptions, open_grader_core
from headrace.records.task import Budget
from headrace.records.verdict import Scored, Unscored, UnscoredCause
from headrace.tasks import open_tasks

ARITHMETIC = ("chain_sum", "products", "gcd", "lcm", "count_bits", "fraction_simplification", "base_conversion")


@pytest.mark.parametrize("family", ARITHMETIC)
def test_the_expected_answer_scores_one_with_or_without_white_space(family: str) -> None:
    for index in range(20):
        task, answer = make_task(family, index), entry_of(family, index)["answer"]
        for text in (answer, f"\n {answer}\t\n"):
            assert grade(text, task).components == (("answer", 1.0),)


@pytest.mark.parametrize("family", ARITHMETIC)
@pytest.mark.parametrize(
    "text",
    ["", " \n", "no", "nan", "1e999", "-", "0/0", "١٢", "\x00", "\ud800", "9" * 5000, "None", "$$", "[" * 100_000],
)
def test_no_answer_and_garbage_score_zero(family: str, text: str) -> None:
    assert grade(text, make_task(family)).components == (("answer", 0.0),)


@pytest.mark.parametrize("family", ARITHMETIC)
def test_an_answer_that_lists_every_answer_scores_zero(family: str) -> None:
    for index in range(10):
        task, answer = make_task(family, index), entry_of(family, index)["answer"]
        others = [entry_of(family, other)["answer"] for other in range(50)]
        for text in (
            " ".join([answer, *others]),
            "\n".join([*others, answer]),
            " ".join(map(str, range(3000))),
            f"{answer} or not {answer}",
            f"The answer is {answer}.",
            f"1 {answer}",
        ):
            assert grade(text, task).components == (("answer", 0.0),)


def test_partial_scores_are_floored_and_stay_in_the_evidence() -> None:
    task, answer = make_task("gcd"), entry_of("gcd")["answer"]
    scored = grade(f"{answer} 0", task)
    assert scored.components == (("answer", 0.0),)
    assert 0.0 < json.loads(scored.evidence)["score"] < 0.99


def test_the_evidence_is_bounded_single_line_text_that_names_given_and_expected() -> None:
    task, answer = make_task("gcd"), entry_of("gcd")["answer"]
    evidence = grade("7\n\x1b[31m" + "x" * 100_000, task).evidence
    assert len(evidence) < 1000
    assert evidence.isascii()
    assert evidence.isprintable()
    assert json.loads(evidence)["expected"] == answer
    assert json.loads(evidence)["given"].startswith("7\n\x1b[31m")


@pytest.mark.parametrize(
    "task",
    [
        make_task(question="What is the reward?"),
        make_task(parameters='{"max_terms": 2, "min_terms": 2}'),
        make_task(parameters='{"colour": 1}'),
        make_task(parameters="[]"),
        make_task(parameters="{"),
        msgspec.structs.replace(make_task(), family="no_such_family"),
        msgspec.structs.replace(make_task(), seed=1),
        msgspec.structs.replace(make_task(), index=10_000),
        msgspec.structs.replace(make_task(), index="3"),
    ],
)
def test_a_task_that_is_not_its_entry_has_no_score(task: object) -> None:
    outcome = real_core().grade(submit("5", task)).outcome  # type: ignore[arg-type]
    assert isinstance(outcome, Unscored)
    assert outcome.cause is UnscoredCause.GRADER_INVALID
    assert 0 < len(outcome.detail) <= 200


class Scorer(reasoning_gym.arithmetic.GCDDataset):
    """A generator of the package whose scorer does what a test tells it to."""

    behave = staticmethod(lambda answer, entry: float(answer == entry["answer"]))

    def score_answer(self, answer: str, entry: dict[str, str]) -> object:
        return type(self).behave(answer, entry)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> ReasoningGymGrader:
    _, config = DATASETS["gcd"]
    monkeypatch.setitem(DATASETS, "gcd", (Scorer, config))
    return ReasoningGymGrader(ReasoningGymGraderOptions())


def behave(monkeypatch: pytest.MonkeyPatch, on_answer: object) -> None:
    """The scorer is sound on what the grader tries itself, and does `on_answer` on "42"."""

    def score(answer: str, entry: dict[str, str]) -> object:
        if answer != "42":
            return float(answer == entry["answer"])
        if isinstance(on_answer, type):
            raise on_answer("on purpose")
        return on_answer

    monkeypatch.setattr(Scorer, "behave", staticmethod(score))


@pytest.mark.parametrize(
    "score", [math.nan, math.inf, -0.01, 1.01, None, True, "1.0", [1.0], 1 + 0j, np.float64("nan"), np.array([1.0])]
)
def test_a_score_that_is_no_number_in_the_unit_interval_is_absent(
    core: ReasoningGymGrader, monkeypatch: pytest.MonkeyPatch, score: object
) -> None:
    behave(monkeypatch, score)
    assert value_of(core.grade(submit("42", make_task("gcd")))) == "grader_invalid"
    assert value_of(core.grade(submit("41", make_task("gcd"), "neighbour"))) == 0.0


@pytest.mark.parametrize("score", [1, 0.995, np.float32(1.0), Fraction(1)])
def test_any_real_number_at_the_bound_is_success(
    core: ReasoningGymGrader, monkeypatch: pytest.MonkeyPatch, score: object
) -> None:
    behave(monkeypatch, score)
    assert value_of(core.grade(submit("42", make_task("gcd")))) == 1.0


@pytest.mark.parametrize("error", [ValueError, RecursionError, MemoryError, ZeroDivisionError, KeyError])
def test_a_scorer_that_raises_on_garbage_but_accepts_the_answer_gives_zero(
    core: ReasoningGymGrader, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    behave(monkeypatch, error)
    verdict = core.grade(submit("42", make_task("gcd")))
    assert value_of(verdict) == 0.0
    assert isinstance(verdict.outcome, Scored)
    assert f"raised {error.__name__}" in verdict.outcome.evidence


def test_a_scorer_that_raises_on_everything_gives_no_score(
    core: ReasoningGymGrader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score(answer: str, entry: dict[str, str]) -> float:
        raise ValueError

    monkeypatch.setattr(Scorer, "behave", staticmethod(score))
    assert value_of(core.grade(submit("5", make_task("gcd")))) == "grader_invalid"


def test_a_scorer_that_changes_the_entry_changes_no_later_verdict(
    core: ReasoningGymGrader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score(answer: str, entry: dict[str, str]) -> float:
        is_right, entry["answer"] = answer == entry["answer"], "42"
        return float(is_right)

    monkeypatch.setattr(Scorer, "behave", staticmethod(score))
    for _ in range(2):
        assert value_of(core.grade(submit("42", make_task("gcd")))) == 0.0


def test_where_a_scorer_finds_answers_in_other_text_longer_answers_score_zero(
    core: ReasoningGymGrader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scorer, "behave", staticmethod(lambda answer, entry: float(entry["answer"] in answer)))
    task, answer = make_task("gcd"), entry_of("gcd")["answer"]
    assert value_of(core.grade(submit(answer, task))) == 1.0
    assert value_of(core.grade(submit(f"{answer} 9", task))) == 0.0


def test_the_packages_own_scorers_that_accept_noise_give_no_score() -> None:
    assert value_of(real_core().grade(submit("nan", make_task("complex_arithmetic")))) == "grader_invalid"


@pytest.mark.parametrize(
    "family", ["prime_factorization", "countdown", "puzzle24", "advanced_geometry", "power_function"]
)
def test_generators_with_faulty_scorers_grade_right_and_wrong(family: str) -> None:
    task = make_task(family)
    assert grade(entry_of(family)["answer"], task).components == (("answer", 1.0),)
    for text in ("", "garbage", "nan", "[]"):
        assert grade(text, task).components == (("answer", 0.0),)


def test_the_tasks_of_the_default_mix_are_graded_by_their_entries() -> None:
    source = open_tasks("reasoning_gym", {}, seed=7, budget=Budget(), environment="sandbox")
    for i in range(100):
        task = source.task("train", i)
        entry = reasoning_gym.create_dataset(task.family, seed=task.seed, **json.loads(task.parameters))[task.index]
        assert grade(entry["answer"], task).components == (("answer", 1.0),)
        assert grade(entry["answer"] + "1", task).components == (("answer", 0.0),)


def test_the_same_submission_gets_the_same_verdict_twenty_times() -> None:
    verdicts = {ReasoningGymGrader(ReasoningGymGraderOptions()).grade(submit("5")).address for _ in range(20)}
    assert len(verdicts) == 1


def test_the_version_follows_the_options() -> None:
    versions = {real_core().version, ReasoningGymGrader(ReasoningGymGraderOptions(success_bound=0.9)).version}
    assert len(versions) == 2
    assert open_grader_core("reasoning_gym", {}).version == real_core().version


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("judge", {}),
        ("reasoning_gym", {"success_bound": 0.4}),
        ("reasoning_gym", {"success_bound": 1.5}),
        ("reasoning_gym", {"max_answer_chars": 0}),
        ("reasoning_gym", {"reward": 1}),
    ],
)
def test_wrong_options_are_a_configuration_error(kind: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_grader_core(kind, options)
