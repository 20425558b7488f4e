"""Episodes that go on as a fork where Qwen3's own template drops thoughts from earlier turns."""

import dataclasses
import functools
from pathlib import Path

import msgspec
import numpy as np
import pytest
from family_case import make_family, needs_renderers
from fork_case import CALL, FORKING, Run, Said, folder_with, run_episode, run_twice, template_text
from harness_case import make_task, sampled
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.checkers import Bounds, TokenAccount
from headrace.checkers.consumption import Consumption
from headrace.errors import IntegrityError
from headrace.harness.demonstrations import render_demonstration
from headrace.harness.forks import RewrittenHistory
from headrace.harness.rendered import RenderedHarness
from headrace.records.batch import BatchPlan, BatchPlanned, BatchRow, BatchSelected
from headrace.records.events import Event
from headrace.records.ids import PolicyId
from headrace.records.provenance import canonical_bytes
from headrace.records.segment import FinishReason, Origin, TokenSegment
from headrace.records.task import Budget
from headrace.records.terminal import Limit, Success, Truncated
from headrace.records.trajectory import ForkCause, PathParent, SideRecord, Transcript, TranscriptSealed
from headrace.records.trajectory import Path as TokenPath
from headrace.runtime.exporting import Trajectory, atif, parquet_rows
from headrace.runtime.replaying import sequence_differences
from headrace.training.packing import PackedBatch, pack

pytestmark = needs_renderers

ANSWER = Said("", call=False, text="5")
BLANK, THINKING, BARE = Said(""), Said("Two and three."), Said()
MISTAKE = Said("Hm.", call=False, text="</tool_response>")


@functools.cache
def harness_of(**options: object) -> RenderedHarness:
    return make_family(**{**FORKING, **options})


@functools.cache
def without_thinking() -> RenderedHarness:
    return make_family(**{**FORKING, "settings": {"tool_parser": "qwen3", "enable_thinking": False}})


def packed(transcript: Transcript) -> PackedBatch:
    row = BatchRow(transcript.address, 0, transcript.episode.group, 0, 1, 1.0, 0.5, 1.0)
    rows = [msgspec.structs.replace(row, path=path) for path in transcript.sampled_paths]
    return pack(rows, {transcript.address: transcript})


def shown_texts(harness: RenderedHarness, run: Run) -> list[str]:
    """What the engine was asked to continue, as text."""
    return [harness.decode(np.concatenate([s.ids_T for s in request.prefix])) for request in run.requests]


def with_path(transcript: Transcript, index: int, **changes: object) -> Transcript:
    paths = list(transcript.paths)
    paths[index] = msgspec.structs.replace(paths[index], **changes)
    return msgspec.structs.replace(transcript, paths=tuple(paths))


def test_an_episode_forks_where_the_template_drops_an_empty_thought_and_shows_it_what_the_template_would() -> None:
    harness = harness_of()
    run = run_episode(harness, [BLANK, ANSWER])
    root, fork = run.transcript.paths
    output = {"role": "tool", "content": "5"}
    assert shown_texts(harness, run) == [template_text([]), template_text([(BLANK.message, output)])]
    assert fork.parent == PathParent(0, 3, ForkCause.THINKING_DROPPED)
    assert [segment.origin for segment in root.segments[3:]] == [Origin.POLICY]
    assert [segment.origin for segment in fork.segments] == [
        Origin.HISTORY,
        Origin.TEMPLATE,
        Origin.ENVIRONMENT,
        Origin.TEMPLATE,
        Origin.POLICY,
    ]
    assert root.segments[3].ids_T.tolist() == BLANK.ids(harness).tolist()
    assert fork.segments[0].ids_T.tolist() == BARE.ids(harness).tolist()
    assert fork.segments[0].behavior_logprobs is None
    assert [(outcome.path, outcome.segment) for outcome in run.transcript.actions] == [(1, 2)]
    assert (run.transcript.final_text.strip(), run.transcript.terminal) == ("5", Success())


def test_where_the_template_keeps_a_thought_the_episode_stays_one_path() -> None:
    run = run_episode(harness_of(), [THINKING, THINKING, ANSWER])
    assert len(run.transcript.paths) == 1


def test_without_thinking_every_turn_is_a_fork_that_repeats_one_turn_alone() -> None:
    """The template opens each turn with an empty thought, and shows it in none that is over."""
    harness = without_thinking()
    run = run_episode(harness, [BARE, BARE, BARE, Said(call=False, text="5")])
    paths = run.transcript.paths
    output = {"role": "tool", "content": "5"}
    assert shown_texts(harness, run) == [
        template_text([(BARE.message, output)] * count, enable_thinking=False) for count in range(4)
    ]
    assert [path.parent and path.parent.path for path in paths] == [None, 0, 1, 2]
    assert [path.num_carried for path in paths] == [0, 2, 2, 2]
    assert packed(run.transcript).action_tokens_B.sum() == run.transcript.num_sampled_tokens


def test_a_new_message_of_the_user_drops_every_earlier_thought() -> None:
    harness = harness_of(objection_role="user")
    run = run_episode(harness, [THINKING, MISTAKE, THINKING, ANSWER])
    root, fork = run.transcript.paths
    text = harness.decode(np.concatenate([segment.ids_T for segment in run.transcript.sequence(1)]))
    assert fork.parent is not None and fork.parent.segment == 3
    assert text.count("Two and three.") == 1 and "Hm." not in text
    assert [segment.origin for segment in fork.segments].count(Origin.HISTORY) == 2
    assert sum(segment.origin is Origin.POLICY for segment in root.segments) == 2


def test_a_turn_that_two_versions_sampled_is_shown_again_as_one() -> None:
    harness = harness_of()
    ids, observed = BLANK.ids(harness), harness.observe([b"5"], 8)
    for cut in range(1, len(ids)):
        turn = (sampled(ids[:cut], finish=None), sampled(ids[cut:], version=1))
        rewritten = harness.rewrite([*harness.open(make_task()), *turn], observed.segments[0])
        assert rewritten is not None
        assert [(s.origin, s.ids_T.tolist()) for s in rewritten.segments] == [
            (Origin.HISTORY, BARE.ids(harness).tolist())
        ]


turns = st.lists(st.sampled_from([BLANK, THINKING, BARE, MISTAKE]), max_size=4)


@settings(max_examples=40)
@given(turns, st.booleans())
def test_every_sampled_token_is_trained_once_with_its_own_context_and_no_other_is(
    said: list[Said], is_user: bool
) -> None:
    harness = harness_of(objection_role="user") if is_user else harness_of()
    run = run_episode(harness, [*said, ANSWER])
    batch = packed(run.transcript)
    assert run.broken_laws() == []
    assert batch.ids_N[batch.action_mask_N].tolist() == [
        token for turn in [*said, ANSWER] for token in turn.ids(harness).tolist()
    ]
    # What the engine went on from stands before the turn in the row that trains it.
    prefixes = [np.concatenate([s.ids_T for s in request.prefix]).tolist() for request in run.requests]
    rows = [batch.ids_N[a:b].tolist() for a, b in zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)]
    for prefix, turn in zip(prefixes, [*said, ANSWER], strict=True):
        held = [*prefix, *turn.ids(harness).tolist()]
        assert any(row[: len(held)] == held for row in rows)


def test_a_turn_cut_in_a_forked_path_ends_the_episode_there_and_is_trained() -> None:
    harness = harness_of()
    budget = Budget(turns=6, episode_tokens=8192, turn_tokens=len(BLANK.ids(harness)), observation_tokens=64)
    run = run_episode(harness, [BLANK, Said("A thought " * 40)], budget)
    last = run.transcript.paths[1].segments[-1]
    assert run.transcript.terminal == Truncated(Limit.TURN_TOKENS)
    assert (last.origin, last.finish) == (Origin.POLICY, FinishReason.LENGTH)
    assert run.broken_laws() == []
    assert packed(run.transcript).action_tokens_B.tolist() == [budget.turn_tokens] * 2


def test_the_budget_counts_the_tokens_of_all_paths_shared_ones_once() -> None:
    harness = harness_of()
    whole = run_episode(harness, [BLANK, BLANK, ANSWER]).transcript
    assert whole.num_tokens == sum(len(segment) for path in whole.paths for segment in path.segments)
    exact = Budget(turns=6, episode_tokens=whole.num_tokens, turn_tokens=256)
    assert run_episode(harness, [BLANK, BLANK, ANSWER], exact).transcript.terminal == Success()
    short = Budget(turns=6, episode_tokens=whole.num_tokens - 1, turn_tokens=256)
    assert run_episode(harness, [BLANK, BLANK, ANSWER], short).transcript.terminal == Truncated(Limit.EPISODE_TOKENS)


@pytest.mark.parametrize("crash_at", [1, 2, 3])
def test_a_process_that_takes_the_episode_over_makes_the_same_forks(crash_at: int) -> None:
    said = [BLANK, THINKING, BLANK, ANSWER]
    resumed, whole = run_twice(harness_of(), said, crash_at), run_episode(harness_of(), said)
    assert len(whole.transcript.paths) == 3
    assert resumed.address == whole.address
    assert resumed.broken_laws() == []


def test_history_that_is_no_slice_of_what_was_sampled_is_refused() -> None:
    harness, transcript = harness_of(), run_episode(harness_of(), [BLANK, ANSWER]).transcript
    fork = transcript.paths[1]
    whole = TokenSegment(Origin.HISTORY, transcript.paths[0].segments[3].ids)
    with pytest.raises(IntegrityError, match="another history"):
        harness.check(with_path(transcript, 1, segments=(whole, *fork.segments[1:])))


def test_a_sequence_that_goes_on_where_the_template_rewrites_is_refused() -> None:
    harness, transcript = harness_of(), run_episode(harness_of(), [BLANK, ANSWER]).transcript
    root, fork = transcript.paths
    grown = TokenPath("policy", (*root.segments, *fork.segments[1:]))
    moved = tuple(msgspec.structs.replace(one, path=0, segment=5) for one in transcript.actions)
    with pytest.raises(IntegrityError, match="goes on at segment 4, where the harness forks"):
        harness.check(msgspec.structs.replace(transcript, paths=(grown,), actions=moved))


def test_a_fork_that_the_template_does_not_ask_for_is_refused() -> None:
    harness, transcript = harness_of(), run_episode(harness_of(), [THINKING, ANSWER]).transcript
    (root,) = transcript.paths
    fork = TokenPath("policy", root.segments[4:], PathParent(0, 4, ForkCause.THINKING_DROPPED))
    paths = (TokenPath("policy", root.segments[:4]), fork)
    moved = tuple(msgspec.structs.replace(one, path=1, segment=1) for one in transcript.actions)
    with pytest.raises(IntegrityError, match="forks where the harness goes on"):
        harness.check(msgspec.structs.replace(transcript, paths=paths, actions=moved))


def test_a_cause_or_a_place_that_is_not_the_forks_own_is_refused() -> None:
    harness, transcript = harness_of(), run_episode(harness_of(), [BLANK, ANSWER]).transcript
    with pytest.raises(IntegrityError, match="by compaction, the harness at 3 by thinking_dropped"):
        harness.check(with_path(transcript, 1, parent=PathParent(0, 3, ForkCause.COMPACTION)))


def test_training_what_is_shown_again_is_caught_by_the_seal_the_account_and_the_batch() -> None:
    """Seeded: the earlier turn is taken over as if it had been sampled on the new path too."""
    harness, run = harness_of(), run_episode(harness_of(), [BLANK, ANSWER])
    transcript = run.transcript
    fork = transcript.paths[1]
    again = sampled(fork.segments[0].ids_T)
    doubled = with_path(transcript, 1, segments=(again, *fork.segments[1:]))
    with pytest.raises(IntegrityError, match="path 1 forks where the harness goes on"):
        harness.check(doubled)
    events = [_resealed(event, doubled) for event in run.events]
    account = TokenAccount()
    found = [str(item) for event in events for item in account.observe(event)]
    assert found and f"{doubled.num_sampled_tokens} sampled tokens" in found[0]

    batch = packed(transcript)
    shown = np.zeros(len(batch.ids_N), dtype=bool)
    start = int(batch.cu_seqlens[1]) + sum(len(segment) for segment in transcript.sequence(1)[:3])
    shown[start : start + len(fork.segments[0])] = True
    assert not (batch.action_mask_N & shown).any()
    with pytest.raises(IntegrityError, match="no behavior log-prob"):
        dataclasses.replace(batch, action_mask_N=batch.action_mask_N | shown).check()


def _resealed(event: Event, transcript: Transcript) -> Event:
    if not isinstance(event.payload, TranscriptSealed):
        return event
    payload = msgspec.structs.replace(event.payload, sampled_tokens=transcript.num_sampled_tokens)
    return msgspec.structs.replace(event, payload=payload)


@pytest.mark.parametrize("paths", [(0,), (1,), (0, 1)])
def test_a_plan_that_leaves_a_path_of_an_episode_out_breaks_a_law(paths: tuple[int, ...]) -> None:
    run = run_episode(harness_of(), [BLANK, ANSWER])
    transcript, group = run.transcript, run.transcript.episode.group
    rows = tuple(BatchRow(transcript.address, path, group, 0, 1, 1.0, 0.5, 1.0) for path in paths)
    plan = BatchPlan(1, PolicyId("policy"), 0, rows, transcript.task, b"")
    stored = {plan.address: canonical_bytes(plan), transcript.address: canonical_bytes(transcript)}
    selected = BatchSelected(1, (group,))
    planned = BatchPlanned(1, plan.address, (group,), len(rows), 0, 0.0, 1, 1.0)
    consumption = Consumption(Bounds(), stored.__getitem__)
    sealed = next(event for event in run.events if isinstance(event.payload, TranscriptSealed))
    found = [
        str(item)
        for event in (sealed, *(msgspec.structs.replace(sealed, payload=p) for p in (selected, planned)))
        for item in consumption.observe(event)
    ]
    assert len(found) == (0 if paths == (0, 1) else 1)
    assert all("which sampled on [0, 1]" in problem for problem in found)


def test_history_in_a_path_that_is_no_fork_breaks_a_law_of_the_record() -> None:
    transcript = run_episode(harness_of(), [BLANK, ANSWER]).transcript
    root = transcript.paths[0]
    shown = TokenSegment(Origin.HISTORY, root.segments[3].ids)
    with pytest.raises(IntegrityError, match="history where no fork put it"):
        with_path(transcript, 0, segments=(*root.segments[:3], shown, *root.segments[3:])).check()


OLD = "messages[loop.index0:] | selectattr('role', 'equalto', 'assistant') | list"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (r"message.role + '\n' + content }}", r"message.role + '\n(past) ' + content }}"),
        ("{{- message.content }}", "{{- '(old)' if " + OLD + " else message.content }}"),
    ],
    ids=["a mark before past turns", "old outputs left out"],
)
def test_a_template_that_rewrites_more_than_thoughts_is_refused(before: str, after: str, tmp_path: Path) -> None:
    with pytest.raises(RewrittenHistory, match="rewrites"):
        make_family(folder_with(tmp_path, before, after), **FORKING)


def test_a_thought_that_the_prompt_begins_is_dropped_with_what_began_it(tmp_path: Path) -> None:
    """As with Qwen3's thinking models, whose prompt ends inside the thought."""
    folder = folder_with(
        tmp_path,
        r"{%- if add_generation_prompt %}" + "\n    " + r"{{- '<|im_start|>assistant\n' }}",
        r"{%- if add_generation_prompt %}" + "\n    " + r"{{- '<|im_start|>assistant\n<think>\n' }}",
    )
    harness = make_family(folder, **FORKING, objection_role="user")
    thinking = dataclasses.replace(THINKING, is_open=True)
    mistake, answer = dataclasses.replace(MISTAKE, is_open=True), Said("So.", call=False, text="5", is_open=True)
    run = run_episode(harness, [thinking, mistake, thinking, answer])
    output = {"role": "tool", "content": "5"}
    objection = {"role": "user", "content": "error: unexpected </tool_response>"}
    shown = [(thinking.message, output), (mistake.message, objection), (thinking.message, output)]
    assert shown_texts(harness, run) == [template_text(shown[:count], folder) for count in range(4)]
    assert run.broken_laws() == []
    assert len(run.transcript.paths) == 2


def test_every_reader_reads_every_path() -> None:
    """Export has a row for each path and a step for each turn; `show` tells the cause; `replay` compares all."""
    harness, run = harness_of(), run_episode(harness_of(), [BLANK, THINKING, ANSWER])
    transcript = run.transcript
    side = next(event.payload.side for event in run.events if isinstance(event.payload, TranscriptSealed))
    told = Trajectory(make_task(), transcript, msgspec.msgpack.decode(run.read(side), type=SideRecord), None, None)
    rows = parquet_rows(told)
    assert [row["path"] for row in rows] == [0, 1]
    assert sum(sum(row["response_mask"]) for row in rows) == transcript.num_sampled_tokens
    for row, path in zip(rows, range(2), strict=True):
        ids = np.concatenate([segment.ids_T for segment in transcript.sequence(path)])
        assert [*row["prompt_ids"], *row["response_ids"]] == ids.tolist()
    steps = atif(told, harness.codec)["steps"][1:]
    prompts = [np.concatenate([s.ids_T for s in request.prefix]).tolist() for request in run.requests]
    assert [step["metrics"]["prompt_token_ids"] for step in steps] == prompts

    assert sequence_differences(transcript, transcript) == []
    cut = with_path(transcript, 1, segments=transcript.paths[1].segments[:-1])
    assert sequence_differences(transcript, cut) == ["there were 9 segments of path 1, there are 8"]

    observed = [segment for segment in transcript.first_shown() if segment.origin is Origin.ENVIRONMENT]
    assert [harness.decode(segment.ids_T) for segment in observed] == ["What is 2 + 3?", "5", "5"]
    assert [len(turn) for turn in transcript.turns()] == [1, 1, 1]


def test_a_demonstration_is_one_sequence_and_refused_where_it_would_fork() -> None:
    class Turn:
        text, calls, outputs = "", (CALL,), (b"5",)

    with pytest.raises(ValueError, match="a demonstration cannot fork"):
        render_demonstration(harness_of(), make_task(), [Turn(), Turn()])
