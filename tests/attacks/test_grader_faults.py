"""A grader that breaks in the middle of a whole run: no number where none was measured, and nothing else is lost."""

import collections
from pathlib import Path

import msgspec
import pytest
from attacks.hostile_runs import Played, StartGrader, after, play, say
from grader_case import start_child, value_of

from headrace.environments.sandbox.options import Isolation
from headrace.processes.child import Child
from headrace.records.batch import BatchPlan, BatchPlanned, GroupClosed, GroupRejected
from headrace.records.verdict import VerdictSealed
from headrace.store.reader import open_reader

pytestmark = pytest.mark.slow
FAULTS = {
    "nan": "grader_invalid",
    "large": "grader_invalid",
    "text": "grader_invalid",
    "none": "grader_invalid",
    "empty": "grader_invalid",
    "other grader": "grader_invalid",
    "other transcript": "grader_invalid",
    "raise": "grader_crash",
    "kill": "grader_crash",
    "hang": "grader_timeout",
}
NAMES = tuple(FAULTS)
RIGHT, WRONG = len(NAMES), len(NAMES) + 1
TRIES = 2


def breaking() -> StartGrader:
    async def start(isolation: Isolation) -> Child:
        return await start_child("--breaking=1")

    return start


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(
        tmp_path_factory.mktemp("run"),
        [after(say(text)) for text in (*NAMES, "right", "wrong")],
        start_grader=breaking(),
        schedule={"grade_tries": TRIES},
        timeouts={"grade_s": 2.0},
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_verdict_is_an_absent_reward_and_is_asked_for_again(played: Played, name: str) -> None:
    member = played.member(NAMES.index(name))
    values = [value_of(verdict) for verdict in member.verdicts]
    assert len(values) == TRIES
    assert set(values) == {FAULTS[name]}
    assert f"train.0.{NAMES.index(name)}.1" not in played.members, "graded again, not rolled again"


def test_others_keep_their_scores_while_the_grader_breaks(played: Played) -> None:
    assert value_of(played.member(RIGHT).verdicts[-1]) == 1.0
    assert value_of(played.member(WRONG).verdicts[-1]) == 0.0
    assert played.grader.num_restarts >= 2


def test_absent_and_zero_are_told_apart_in_store_advantage_and_report(played: Played) -> None:
    (closed,) = (event.payload for event in played.events if isinstance(event.payload, GroupClosed))
    rewards = [member.reward for member in closed.members]
    assert rewards == [None] * len(NAMES) + [1.0, 0.0]
    (planned,) = (event.payload for event in played.events if isinstance(event.payload, BatchPlanned))
    with open_reader(played.folder) as reader:
        plan = msgspec.msgpack.decode(reader.read(planned.plan), type=BatchPlan)
    # The baseline is the mean of the two that were measured: with zeros for the absent it would be 1/12.
    assert {row.member: row.advantage for row in plan.rows} == {RIGHT: 0.5, WRONG: -0.5}
    assert planned.mean_reward == 0.5
    assert played.outcome("group member", "reward absent") == len(NAMES)
    assert played.outcome("group member", "reward 0") == 1
    for cause, count in collections.Counter(FAULTS.values()).items():
        assert played.outcome("verdict", f"absent: {cause}") == count


def test_a_group_that_nobody_could_grade_is_rejected_with_its_reason_and_trains_nothing(tmp_path: Path) -> None:
    played = play(
        tmp_path,
        [after(say("nan")), after(say("raise"))],
        start_grader=breaking(),
        schedule={"grade_tries": 1},
        tasks={
            "options": {
                "families": [{"generator": "chain_sum", "levels": {"easy": {"min_terms": 2, "max_terms": 2}}}],
                "held_out_per_stratum": 0,
                "num_training": 1,
            }
        },
    )
    (rejected,) = (event.payload for event in played.events if isinstance(event.payload, GroupRejected))
    assert (rejected.state, rejected.reason) == ("abandoned", "unscored: 0 of 2 members have a reward")
    assert not [event for event in played.events if isinstance(event.payload, BatchPlanned)]
    assert played.outcome("group", f"abandoned: {rejected.reason}") == 1
    tries = [event.payload for event in played.events if isinstance(event.payload, VerdictSealed)]
    assert not any(sealed.is_scored for sealed in tries)
