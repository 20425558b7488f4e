"""One episode as text, from the store's own view of a run on disk."""

import asyncio
import dataclasses
from pathlib import Path

import msgspec
import pytest
from lawful_run import lawful_steps, write_run

from headrace.records.arrays import IntArray
from headrace.records.ids import EpisodeId
from headrace.records.segment import Origin, TokenSegment
from headrace.records.trajectory import ForkCause, PathParent
from headrace.records.trajectory import Path as TokenPath
from headrace.reporting.show import show_episode
from headrace.store import EpisodeView, InlineCommit, SqliteJournal, inspect_episode, open_reader


def decode(ids: IntArray) -> str:
    return " ".join(f"t{int(token)}" for token in ids)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")

    async def work() -> None:
        journal = SqliteJournal(path, incarnation="life", runner=InlineCommit())
        await journal.durable(write_run(journal, lawful_steps()))
        await journal.close()

    asyncio.run(work())
    return path


def view(folder: Path, episode: str) -> EpisodeView:
    with open_reader(folder) as reader:
        return inspect_episode(reader, EpisodeId.parse(episode))


def test_turns_calls_masks_versions_and_the_verdict_with_evidence_are_shown(folder: Path):
    found = view(folder, "train.0.1.0")
    text = show_episode(found, decode)
    assert found.transcript is not None
    for name in ("task", "policy", "harness", "environment", "grader"):
        assert f"  {name} " in text
    assert 'calculator {"expression":"1+1"}' in text
    assert text.count("trained, policy@") == len(found.transcript.sampled())
    assert text.count(", masked") == sum(
        segment.origin is not Origin.POLICY for path in found.transcript.paths for segment in path.segments
    )
    assert f"{found.transcript.num_sampled_tokens} tokens trained" in text
    assert "verdict    absent: " in text
    assert "verdict    answer 1" in text
    assert "evidence   compared with 2" in text
    assert "disputed   1 later, different verdicts" in text
    assert "reward     1" in text
    assert "trained    in update 1 on version 0, the first time: advantage 0.500, loss weight 1" in text


def test_a_fork_is_shown_with_its_parent_and_cause_and_its_history_as_masked(folder: Path):
    found = view(folder, "train.0.1.0")
    assert found.transcript is not None
    root = found.transcript.paths[0]
    shown = TokenSegment(Origin.HISTORY, root.segments[1].ids)
    fork = TokenPath("policy", (shown, *root.segments[2:]), PathParent(0, 1, ForkCause.THINKING_DROPPED))
    forked = msgspec.structs.replace(found.transcript, paths=(root, fork))
    text = show_episode(msgspec.structs.replace(found, transcript=forked), decode)
    assert "path 1  agent policy, from path 0 segment 1: thinking_dropped" in text
    assert f"[history]  {len(shown)} tokens, masked" in text
    assert "trained    path 0 in update 1" in text
    turns = sum(segment.finish is not None for segment in forked.sampled())
    assert [f"[policy turn {turn}]" in text for turn in range(turns + 1)] == [True] * turns + [False]


def test_log_probs_are_listed_per_token_on_request_only(folder: Path):
    found = view(folder, "train.0.1.0")
    assert found.transcript is not None
    plain, listed = show_episode(found, decode), show_episode(found, decode, has_logprobs=True)
    first = found.transcript.sampled()[0]
    logprobs_T = first.behavior_logprobs_T
    assert logprobs_T is not None
    cell = f"'t{int(first.ids_T[0])}' {float(logprobs_T[0]):.4f}"
    assert cell in listed
    assert cell not in plain


def test_every_episode_of_a_run_can_be_shown_and_an_absent_reward_is_no_zero(folder: Path):
    with open_reader(folder) as reader:
        names = [event.key for event in reader.events() if event.kind == "episode_started"]
    texts = {name: show_episode(view(folder, name), decode) for name in names}
    assert len(texts) > 5
    absent = [text for text in texts.values() if "reward     –" in text]
    assert absent
    assert all("reward     0" not in text for text in absent)


def test_an_open_episode_is_said_to_be_open(folder: Path):
    found = msgspec.structs.replace(
        view(folder, "train.0.1.0"), transcript=None, terminal=None, side=None, verdicts=(), member=None, uses=()
    )
    text = show_episode(found, decode)
    assert "not sealed" in text
    assert "verdict    absent" in text
    assert 'calculator {"expression":"1+1"}  observed' in text


def test_escapes_in_policy_and_tool_text_are_inert(folder: Path):
    found = view(folder, "train.0.1.0")
    assert found.task is not None
    hostile = msgspec.structs.replace(found, task=msgspec.structs.replace(found.task, question="a\x1b[2Jb\u202ec"))
    text = show_episode(hostile, lambda ids: "\x1b]0;owned\x07\r" + decode(ids))
    assert "\x1b" not in text
    assert "\r" not in text
    assert "\u202e" not in text
    assert r"\x1b]0;owned\x07\x0d" in text
    assert r"a\x1b[2Jb\u202ec" in text


def test_sampled_tokens_are_called_trained_only_where_a_plan_took_them(folder: Path):
    found = view(folder, "train.0.1.0")
    unused = show_episode(msgspec.structs.replace(found, uses=()), decode)
    assert "tokens trained" not in unused
    assert unused.count("sampled, policy@") == show_episode(found, decode).count("trained, policy@") > 0


def test_the_view_needs_no_store():
    """Any record with the fields will do."""

    @dataclasses.dataclass(frozen=True)
    class Bare:
        episode: EpisodeId = EpisodeId.parse("train.1.0.0")  # noqa: RUF009
        task: None = None
        pin_version: int | None = 3
        claims: tuple[int, ...] = (4, 9)
        turns: tuple[()] = ()
        terminal: None = None
        transcript_address: None = None
        transcript: None = None
        side: None = None
        verdicts: tuple[()] = ()
        disputes: tuple[()] = ()
        member: None = None
        rejection: None = None
        uses: tuple[()] = ()

    text = show_episode(Bare(), decode)
    assert "pinned     to version 3" in text
    assert "claimed    2 times by a worker, under lease token 4, 9" in text
