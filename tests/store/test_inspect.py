"""One episode, read back from the journal: everything that it went through, and nothing that it did not."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from lawful_run import find, lawful_steps, task_of, write_run

from headrace.records.batch import GroupClosed
from headrace.records.ids import EpisodeId
from headrace.records.segment import Origin
from headrace.records.trajectory import TranscriptSealed
from headrace.records.verdict import Scored, Unscored
from headrace.store import EpisodeView, InlineCommit, SqliteJournal, inspect_episode, open_reader


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(tmp_path_factory.mktemp("run"), len(lawful_steps()))


def store(folder: Path, count: int) -> Path:
    async def work() -> None:
        journal = SqliteJournal(folder, incarnation="life", runner=InlineCommit())
        await journal.durable(write_run(journal, lawful_steps()[:count]))
        await journal.close()

    asyncio.run(work())
    return folder


def view(folder: Path, episode: str) -> EpisodeView:
    with open_reader(folder) as reader:
        return inspect_episode(reader, EpisodeId.parse(episode))


def test_a_trained_episode_shows_turns_calls_verdict_reward_and_use(folder: Path) -> None:
    found = view(folder, "train.0.1.0")
    assert found.task == task_of(0)
    assert found.terminal == "success"
    assert found.claims == (4,)
    assert [turn.turn.step for turn in found.turns] == [0, 1]
    (call,) = found.turns[0].calls
    assert (call.action.tool, call.action.arguments) == ("calculator", '{"expression":"1+1"}')
    assert call.committed_seq == call.intended_seq + 1
    assert call.observed_seq == call.intended_seq + 2
    assert call.observation is not None
    assert found.turns[1].calls == ()
    assert [verdict.try_number for verdict in found.verdicts] == [0, 1]
    assert isinstance(found.verdicts[0].verdict.outcome, Unscored)
    assert found.verdicts[1].verdict.outcome == Scored((("answer", 1.0),), "compared with 2")
    assert len(found.disputes) == 1
    assert found.member is not None
    assert found.member.reward == 1.0
    (use,) = found.uses
    assert (use.update, use.base_version, use.row.use, use.row.advantage) == (1, 0, 1, 0.5)
    assert found.rejection is None
    assert found.side is not None
    assert found.side.turns == 2


def test_what_is_masked_follows_from_the_origin_of_each_segment(folder: Path) -> None:
    transcript = view(folder, "train.3.0.0").transcript
    assert transcript is not None
    assert [segment.origin for segment in transcript.paths[0].segments] == [
        Origin.TEMPLATE,
        Origin.POLICY,
        Origin.ENVIRONMENT,
        Origin.POLICY,
        Origin.POLICY,
    ]
    assert transcript.versions == (0, 1)


def test_a_failed_attempt_has_no_verdict_and_no_place_in_the_group(folder: Path) -> None:
    found = view(folder, "train.0.0.0")
    assert found.terminal == "infra_error:environment"
    assert (found.verdicts, found.member, found.uses) == ((), None, ())


def test_an_unscored_member_has_an_absent_reward_and_no_use(folder: Path) -> None:
    found = view(folder, "train.1.1.0")
    assert found.member is not None
    assert found.member.reward is None
    assert isinstance(found.verdicts[-1].verdict.outcome, Unscored)
    assert found.uses == ()


def test_a_filtered_group_says_why(folder: Path) -> None:
    found = view(folder, "train.2.0.0")
    assert found.rejection is not None
    assert (found.rejection.state, found.rejection.reason) == ("filtered", "lag")
    assert found.uses == ()


def test_an_evaluation_is_pinned_and_has_no_group(folder: Path) -> None:
    found = view(folder, "eval.0.0.0")
    assert (found.pin_version, found.member) == (0, None)
    assert found.task == task_of(1000)


def test_an_open_episode_shows_how_far_it_came(tmp_path: Path) -> None:
    steps = lawful_steps()
    found = view(store(tmp_path, find(steps, TranscriptSealed, "train.0.1.0")), "train.0.1.0")
    assert len(found.turns) == 2
    assert found.task == task_of(0)
    assert (found.transcript, found.terminal, found.sealed_seq, found.verdicts) == (None, None, None, ())


def test_a_sealed_episode_of_an_open_group_has_no_reward_yet(tmp_path: Path) -> None:
    steps = lawful_steps()
    found = view(store(tmp_path, find(steps, GroupClosed, "train.0")), "train.0.1.0")
    assert found.transcript is not None
    assert found.member is None


def test_an_unknown_episode_is_a_key_error_that_says_how_one_is_named(folder: Path) -> None:
    with pytest.raises(KeyError, match=r"named like train\.12\.3\.0"):
        view(folder, "train.77.0.0")


def test_a_view_is_plain_data(folder: Path) -> None:
    found = view(folder, "train.0.1.0")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=EpisodeView) == found
