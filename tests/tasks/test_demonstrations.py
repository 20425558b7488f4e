import json
from collections import Counter

import pytest
from grader_case import grade

from headrace.environments.calculator import CalculatorError, calculate
from headrace.environments.tools import CALCULATOR
from headrace.harness import open_harness
from headrace.harness.demonstrations import render_demonstration
from headrace.records.harness import ParseStatus
from headrace.records.task import Budget, Task
from headrace.tasks import DEFAULT_FAMILIES, ReasoningGymTasks, open_tasks
from headrace.tasks.demonstrations import DemonstratedTurn, Sloppiness, demonstrate, expression_of

RIGHT = Sloppiness(skips_tool=0.0, malformed_call=0.0, miscopies=0.0, chatty_final=0.0, wrong_final=0.0)


def calculator(expression: str) -> str:
    try:
        return calculate(expression)
    except CalculatorError as error:
        return f"error: {error}"


@pytest.fixture(scope="module")
def source() -> ReasoningGymTasks:
    families = [{"generator": family.generator, "levels": family.levels} for family in DEFAULT_FAMILIES]
    families.append({"generator": "base_conversion", "levels": {"any": {"min_value": 16, "max_value": 999}}})
    return open_tasks("reasoning_gym", {"families": families}, seed=3, budget=Budget(), environment="sandbox")


def score(task: Task, turns: tuple[DemonstratedTurn, ...]) -> float:
    return dict(grade(turns[-1].text, task).components)["answer"]


def test_a_demonstration_without_faults_solves_every_task(source: ReasoningGymTasks) -> None:
    families = set()
    for i in range(200):
        task = source.task("demonstrations", i)
        turns = demonstrate(task, calculator, seed=1, sloppiness=RIGHT)
        assert [len(turn.calls) for turn in turns] == [1, 0]
        assert score(task, turns) == 1.0
        families.add(task.family)
    assert len(families) == len(DEFAULT_FAMILIES) + 1


def test_the_same_seed_gives_the_same_demonstration_and_another_one_others(source: ReasoningGymTasks) -> None:
    tasks = [source.task("demonstrations", i) for i in range(60)]
    one = [demonstrate(task, calculator, seed=1) for task in tasks]
    assert [demonstrate(task, calculator, seed=1) for task in tasks] == one
    assert [demonstrate(task, calculator, seed=2) for task in tasks] != one


def test_faults_come_in_the_shares_that_are_asked_for(source: ReasoningGymTasks) -> None:
    shares = Sloppiness(skips_tool=0.3, malformed_call=0.2, miscopies=0.1, chatty_final=0.4, wrong_final=0.1)
    harness = open_harness("chatml", {}, (CALCULATOR,))
    counts: Counter[str] = Counter()
    num = 1500
    for i in range(num):
        task = source.task("demonstrations", i)
        turns = demonstrate(task, calculator, seed=1, sloppiness=shares)
        first = harness.parse(harness.turn_ids(turns[0].text, turns[0].calls)).status
        counts[first.value] += 1
        counts["chatty"] += turns[-1].text.startswith("The answer is ")
        if first is ParseStatus.CALLS:
            expression = json.loads(turns[0].calls[0])["arguments"]["expression"]
            counts["miscopied"] += expression != expression_of(task)
    # Four standard deviations of a share of 1500 are below 0.052.
    assert counts["final"] / num == pytest.approx(0.3, abs=0.052)
    assert counts["malformed"] / num == pytest.approx(0.2, abs=0.052)
    assert counts["miscopied"] / num == pytest.approx(0.1, abs=0.052)
    assert counts["chatty"] / num == pytest.approx(0.7 * 0.4, abs=0.052)


@pytest.mark.parametrize("fault", ["skips_tool", "miscopies", "chatty_final", "wrong_final"])
def test_each_fault_costs_most_answers(source: ReasoningGymTasks, fault: str) -> None:
    import msgspec

    shares = msgspec.structs.replace(RIGHT, **{fault: 1.0})
    tasks = [source.task("demonstrations", i) for i in range(100)]
    assert sum(score(task, demonstrate(task, calculator, seed=1, sloppiness=shares)) for task in tasks) <= 25


def test_demonstrations_are_rendered_as_episodes_of_the_harness(source: ReasoningGymTasks) -> None:
    harness = open_harness("chatml", {}, (CALCULATOR,))
    end = harness.stop_ids[0]
    for i in range(100):
        task = source.task("demonstrations", i)
        turns = demonstrate(task, calculator, seed=1)
        ids_T, mask_T = render_demonstration(harness, task, turns)
        assert len(ids_T) == len(mask_T) < 256
        assert ids_T[-1] == end
        assert mask_T[-1]
        assert int((mask_T & (ids_T == end)).sum()) == len(turns)


def test_a_demonstration_asks_nothing_of_whoever_knows_the_answer(source: ReasoningGymTasks) -> None:
    asked: list[str] = []

    def useless(expression: str) -> str:
        asked.append(expression)
        return "error: broken"

    for i in range(50):
        turns = demonstrate(source.task("demonstrations", i), useless, seed=1, sloppiness=RIGHT)
        assert turns[-1].text == "error: broken"
    assert len(asked) == 50


def test_a_family_without_demonstration_is_named() -> None:
    task = Task("sudoku", "easy", 0, 0, "Solve this.", Budget(), "sandbox")
    with pytest.raises(ValueError, match="sudoku"):
        expression_of(task)


@pytest.mark.parametrize(
    "shares", [{"skips_tool": 1.1}, {"miscopies": -0.1}, {"chatty_final": 0.6, "wrong_final": 0.6}]
)
def test_shares_that_are_none_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="sloppiness"):
        Sloppiness(**shares)
