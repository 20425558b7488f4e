import math
import statistics
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.records.ids import EpisodeId, GroupId
from headrace.records.streams import Streams, stream
from headrace.simulation.laws import (
    Constant,
    Exponential,
    Law,
    LogNormal,
    Quantiles,
    TruncatedNormal,
    TwoPoint,
)
from headrace.simulation.scenario import Scenario, load_scenario, scenario_names
from headrace.simulation.tasks import SimulatedTasks
from headrace.simulation.workload import HELD_OUT, Draws, Stratum, Workload

LAWS: tuple[Law, ...] = (
    Constant(value=3.0),
    LogNormal(mean_uncut=60.0, sigma=0.6),
    LogNormal(median=2500.0, sigma=0.5, cap=8192.0),
    LogNormal(median=10.0, sigma=1.5, cap=12.0),
    Exponential(scale=4.0),
    TwoPoint(low=1.0, high=10.0, share_high=0.1),
    Quantiles(points=((0.0, 2.0), (0.5, 10.0), (1.0, 100.0))),
    TruncatedNormal(centre=10.0, sigma=5.0),
    TruncatedNormal(centre=1.0, sigma=10.0),
)
SCORES = np.random.Generator(np.random.Philox(key=11)).standard_normal(60_000)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_stated_mean_of_a_law_is_the_mean_of_its_draws(law: Law):
    values = np.array([law.at(float(z)) for z in SCORES])
    error = values.std() / math.sqrt(len(values))
    assert abs(values.mean() - law.mean) <= 4 * error + 1e-9
    assert (values >= 0).all()


@given(st.sampled_from(LAWS), st.floats(-37, 37), st.floats(-37, 37))
def test_a_law_never_falls_with_its_score(law: Law, first: float, second: float):
    low, high = sorted((first, second))
    assert law.at(low) <= law.at(high)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_law_survives_its_own_serialisation(law: Law):
    assert msgspec.convert(msgspec.to_builtins(law), Law) == law


def test_quantiles_are_hit_exactly():
    law = Quantiles(points=((0.0, 5.0), (0.25, 7.0), (0.9, 70.0), (1.0, 71.0)))
    for probability, value in law.points[1:-1]:
        assert law.at(statistics.NormalDist().inv_cdf(probability)) == pytest.approx(value)
    assert law.at(-40.0) == 5.0
    assert law.at(40.0) == 71.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LogNormal(sigma=1.0), "give one of"),
        (lambda: LogNormal(sigma=1.0, mean_uncut=1.0, median=1.0), "give one of"),
        (lambda: Constant(value=-1.0), "must be >= 0"),
        (lambda: TwoPoint(low=2.0, high=1.0, share_high=0.5), "low <= high"),
        (lambda: Quantiles(points=((0.0, 1.0), (0.9, 2.0))), "from probability 0 to 1"),
        (lambda: Quantiles(points=((0.0, 3.0), (1.0, 2.0))), "from probability 0 to 1"),
        (lambda: TruncatedNormal(centre=1.0, sigma=0.0), "sigma > 0"),
        (lambda: Workload(name="x", tokens=Constant(value=1.0), strata=(Stratum(name="a", share=0.5),)), "sum to"),
    ],
)
def test_a_law_out_of_its_bounds_is_refused(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_shared_generator_gives_the_numbers_of_the_named_streams():
    streams = Streams(7)
    for names in (("a",), ("b", 3), ("a",)):
        assert streams.at(*names).random(9).tolist() == stream(7, *names).random(9).tolist()


def test_what_is_not_drawn_is_what_a_draw_would_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workload whose laws have one value each, and its draws when they are made all the same."""
    workload = Workload(name="x", tokens=Constant(value=3.0), strata=(Stratum(name="a", success=0.25),))
    plain, drawing = Draws(workload, 7), Draws(workload, 7)
    for name in ("_draws_tasks", "_draws_steps", "_draws_gradings"):
        assert getattr(plain, name) is False
        monkeypatch.setattr(drawing, name, True)
    for index in range(20):
        episode = _episode(index, 0)
        drawn = msgspec.structs.replace(drawing.task(index), length_score=0.0)
        assert plain.task(index) == drawn and drawing.task(index).length_score != 0.0
        assert plain.episode(index, episode) == drawing.episode(index, episode)
        assert plain.step(index, episode, 0) == drawing.step(index, episode, 0)
        assert plain.grading(index, episode, 0) == drawing.grading(index, episode, 0)


def test_a_block_holds_the_stated_mix_in_random_order_and_changes_no_other_draw() -> None:
    workload = load_scenario("ten_times").workload
    even, drawn = Draws(workload, 7), Draws(msgspec.structs.replace(workload, mix_block=None), 7)
    places = [
        [index for index in range(block, block + 10) if even.task(index).stratum.name == "long"]
        for block in range(0, 400, 10)
    ]
    assert [len(found) for found in places] == [1] * 40
    assert len({found[0] % 10 for found in places}) == 10
    counts = [sum(drawn.task(index).stratum.name == "long" for index in range(b, b + 10)) for b in range(0, 400, 10)]
    assert len(set(counts)) > 1
    assert all(even.task(index).length_score == drawn.task(index).length_score for index in range(40))


def _episode(ordinal: int, member: int, attempt: int = 0) -> EpisodeId:
    return EpisodeId(GroupId("train", ordinal), member, attempt)


def _everything(seed: int, order: int) -> list[object]:
    draws = Draws(load_scenario("small_mixed").workload, seed)
    keys = [(index, member, attempt) for index in range(12) for member in range(3) for attempt in range(2)]
    found = {
        key: (
            draws.task(key[0]),
            draws.episode(key[0], _episode(*key)),
            draws.step(key[0], _episode(*key), 1),
            draws.grading(key[0], _episode(*key), 0),
        )
        for key in keys[::order]
    }
    return [found[key] for key in keys]


def test_draws_do_not_depend_on_the_order_in_which_they_are_made():
    # NaN differs from itself, so by text.
    assert str(_everything(7, 1)) == str(_everything(7, -1))
    assert str(_everything(7, 1)) != str(_everything(8, 1))


def test_draws_are_the_same_in_another_process():
    code = "from tests.simulation.test_workload import _everything; print(_everything(7, 1))"
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == str(_everything(7, 1))


def test_members_of_a_group_have_correlated_lengths_and_others_none():
    workload = Workload(
        name="x", tokens=LogNormal(mean_uncut=60.0, sigma=0.6), strata=(Stratum(name="a"),), group_correlation=0.7
    )
    draws = Draws(workload, 3)
    logs = np.log(
        [[draws.step(index, _episode(index, member), 0).tokens for member in range(2)] for index in range(4000)]
    )
    assert np.corrcoef(logs[:, 0], logs[:, 1])[0, 1] == pytest.approx(0.7, abs=0.03)
    assert np.corrcoef(logs[:-1, 0], logs[1:, 0])[0, 1] == pytest.approx(0.0, abs=0.05)
    assert logs.std() == pytest.approx(0.6, abs=0.02)


def test_success_keeps_the_mean_of_its_stratum_whatever_the_spread_between_tasks():
    workload = Workload(
        name="x", tokens=Constant(value=1.0), strata=(Stratum(name="a", success=0.2),), success_spread=1.5
    )
    draws = Draws(workload, 3)
    rates = [draws.task(index).success for index in range(6000)]
    solved = [draws.episode(index, _episode(index, 0)).is_solved for index in range(6000)]
    assert np.mean(rates) == pytest.approx(0.2, abs=0.02)
    assert np.mean(solved) == pytest.approx(0.2, abs=0.02)
    assert np.std(rates) > 0.2


def test_a_certain_success_and_a_certain_failure_stay_certain():
    for success in (0.0, 1.0):
        workload = Workload(
            name="x", tokens=Constant(value=1.0), strata=(Stratum(name="a", success=success),), success_spread=1.0
        )
        draws = Draws(workload, 3)
        assert {draws.episode(index, _episode(index, 0)).is_solved for index in range(200)} == {success == 1.0}


def test_the_ten_times_scenario_has_its_stated_share_of_long_tasks_and_its_fluid_bound():
    scenario = load_scenario("ten_times")
    draws = Draws(scenario.workload, 7)
    long = [draws.task(index).stratum.name == "long" for index in range(8000)]
    assert np.mean(long) == pytest.approx(0.1, abs=0.01)
    ordinary = [draws.step(index, _episode(index, 0), 0).tokens for index in range(8000) if not long[index]]
    assert np.mean(ordinary) == pytest.approx(60.0, rel=0.03)
    assert scenario.workload.mean_tokens == pytest.approx(114.0)
    assert scenario.fluid_groups_per_s * 1000 == pytest.approx(281, abs=1)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("aime", 2169),
        ("math_7b", 5582),
        ("math_32b", 3360),
        ("tool_use_7b", 1071),
        ("r1_code_math", 4928),
        ("trillion_reasoning", 38959),
    ],
)
def test_a_quantile_table_has_about_its_published_mean(name: str, published: float):
    assert load_scenario(name).workload.tokens.mean == pytest.approx(published, rel=0.1)


def test_the_sandbox_latency_has_about_its_published_mean():
    assert load_scenario("code_sandbox").workload.tool_s.mean == pytest.approx(53, rel=0.1)


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_that_ships_is_valid_and_named_like_its_file(name: str):
    scenario = load_scenario(name)
    assert scenario.workload.name == name
    assert scenario.workload.source
    assert msgspec.convert(msgspec.to_builtins(scenario), Scenario) == scenario


def test_an_unknown_scenario_or_key_is_refused_by_name(tmp_path: Path):
    with pytest.raises(ConfigError, match="ten_times"):
        load_scenario("nonesuch")
    path = tmp_path / "mine.toml"
    path.write_text('[workload]\nname = "x"\nstrata = []\ntokens = { law = "constant", value = 1.0 }\nspeed = 3\n')
    with pytest.raises(ConfigError, match="speed"):
        load_scenario(path)
    path.write_text('[workload]\nname = "x"\nstrata = []\ntokens = { law = "constant", value = -1.0 }\n')
    with pytest.raises(ConfigError, match="must be >= 0"):
        load_scenario(path)


def test_training_and_held_out_tasks_share_no_content():
    source = SimulatedTasks(Draws(load_scenario("small_mixed").workload, 7), num_train=50, num_held_out=20)
    drawn = list(iter(source.next, None))
    assert len(drawn) == 50
    assert source.next() is None
    held_out = source.held_out()
    assert [task.index for task in held_out] == [HELD_OUT + position for position in range(20)]
    assert not {task.question for task in drawn} & {task.question for task in held_out}
    assert {task.difficulty for task in drawn} == {"easy", "medium", "hard"}
