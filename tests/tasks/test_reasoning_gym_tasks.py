import json
from collections import Counter

import pytest

from headrace.errors import ConfigError
from headrace.ports import TaskSource
from headrace.records.task import Budget
from headrace.tasks import FamilyOptions, ReasoningGymOptions, ReasoningGymTasks, open_tasks

TINY = FamilyOptions(
    generator="count_bits", levels={"tiny": {"min_n": 1, "max_n": 12}, "small": {"min_n": 13, "max_n": 40}}
)


def make_tasks(seed: int = 7, **options: object) -> ReasoningGymTasks:
    return open_tasks("reasoning_gym", options, seed=seed, budget=Budget(), environment="sandbox")


def test_task_i_is_a_function_of_seed_and_i_alone() -> None:
    source = make_tasks()
    drawn = [source.next() for _ in range(40)]
    backwards = make_tasks()
    assert [backwards.task("train", i) for i in reversed(range(40))] == drawn[::-1]
    resumed = make_tasks()
    resumed.cursor = 17
    assert [resumed.next() for _ in range(23)] == drawn[17:]


def test_another_seed_gives_other_tasks_and_the_same_held_out_set() -> None:
    one, two = make_tasks(seed=1), make_tasks(seed=2)
    assert {one.task("train", i).question for i in range(50)}.isdisjoint(
        two.task("train", i).question for i in range(50)
    )
    assert one.held_out() == two.held_out()


def test_streams_of_other_names_are_other_tasks() -> None:
    source = make_tasks()
    names = [source.task(name, i).question for name in ("train", "demonstrations") for i in range(50)]
    assert len(set(names)) > 95


def test_training_and_held_out_share_no_question_where_most_are_held_out() -> None:
    source = ReasoningGymTasks(
        ReasoningGymOptions(families=(TINY,), held_out_per_stratum=10), seed=7, budget=Budget(), environment="sandbox"
    )
    held_out = {task.question for task in source.held_out()}
    assert len(held_out) == len(source.held_out()) == 20
    drawn = [source.next() for _ in range(200)]
    assert all(task is not None and task.question not in held_out for task in drawn)
    assert source.num_redrawn > 200
    again = [ReasoningGymTasks(source._options, seed=7, budget=Budget(), environment="sandbox").next()]
    assert again == drawn[:1]


def test_every_stratum_comes_once_in_each_block() -> None:
    source = make_tasks()
    num = len({(task.family, task.difficulty) for task in source.held_out()})
    for block in range(5):
        tasks = [source.task("train", block * num + place) for place in range(num)]
        assert len({(task.family, task.difficulty) for task in tasks}) == num
    first, second = ([source.task("train", b * num + i).family for i in range(num)] for b in range(2))
    assert first != second


def test_weights_are_kept_within_one_task_in_each_block() -> None:
    heavy = FamilyOptions(generator="gcd", levels={"one": {}, "two": {"max_value": 99}}, weight=5.0)
    source = make_tasks(families=[json_of(heavy), json_of(TINY)], held_out_per_stratum=0)
    for block in range(20):
        counts = Counter(source.task("train", 4 * block + place).family for place in range(4))
        assert 3 <= counts["gcd"] <= 4
    counts = Counter(source.task("train", i).family for i in range(1200))
    assert counts["gcd"] == pytest.approx(1000, abs=20)


def json_of(family: FamilyOptions) -> dict[str, object]:
    return {"generator": family.generator, "levels": family.levels, "weight": family.weight}


def test_a_task_holds_what_makes_the_entry_again_and_no_answer() -> None:
    import reasoning_gym

    for i in range(60):
        task = make_tasks().task("train", i)
        parameters = json.loads(task.parameters)
        entry = reasoning_gym.create_dataset(task.family, seed=task.seed, **parameters)[task.index]
        assert entry["question"] == task.question
        assert "answer" not in parameters
        assert task.environment == "sandbox"


def test_a_bounded_stream_ends_and_stays_ended() -> None:
    source = make_tasks(num_training=3)
    assert [source.next() is None for _ in range(5)] == [False, False, False, True, True]
    assert source.cursor == 3


@pytest.mark.parametrize(
    "options",
    [
        {"families": []},
        {"families": [{"generator": "no_such", "levels": {"a": {}}}]},
        {"families": [{"generator": "gcd", "levels": {}}]},
        {"families": [{"generator": "gcd", "levels": {"a": {"max_value": "many"}}}]},
        {"families": [{"generator": "gcd", "levels": {"a": {"colour": 1}}}]},
        {"families": [{"generator": "gcd", "levels": {"a": {}}, "weight": 0.0}]},
        {"families": [{"generator": "gcd", "levels": {"a": {}}}] * 2},
        {"num_training": 0},
        {"held_out_per_stratum": -1},
        {"questions": 3},
        {"families": [json_of(TINY)], "held_out_per_stratum": 30},
    ],
)
def test_options_that_make_no_tasks_are_a_configuration_error(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        make_tasks(**options)


def test_a_stratum_without_training_questions_is_an_error_that_names_it() -> None:
    source = make_tasks(
        families=[{"generator": "count_bits", "levels": {"a": {"min_n": 5, "max_n": 9}}}], held_out_per_stratum=5
    )
    with pytest.raises(ConfigError, match="count_bits/a"):
        source.next()


def test_the_source_is_an_implementation_of_its_port() -> None:
    port: TaskSource = make_tasks()
    assert port.next() is not None
