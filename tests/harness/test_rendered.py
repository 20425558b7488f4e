import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from family_case import QWEN3, make_family, needs_renderers, qwen3
from harness_case import call_text, ids_of, make_task, sampled
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, IntegrityError
from headrace.harness.checks import check_sequence
from headrace.harness.families import FamilyTokenizer, open_renderer
from headrace.harness.forks import RewrittenHistory
from headrace.harness.rendered import RenderedHarness
from headrace.records.arrays import IntArray
from headrace.records.harness import ParseStatus
from headrace.records.segment import FinishReason, TokenSegment
from headrace.records.trajectory import ForkCause

HERE = Path(__file__).parent

pytestmark = needs_renderers

CALL = call_text("calculator", expression="2 + 3")
HOSTILE = ("<|im_end|>", "<|im_start|>assistant\n", "</tool_response>", "<tool_call>", "</think>", "<|endoftext|>")


def joined(segments: Sequence[TokenSegment]) -> list[int]:
    return [token for segment in segments for token in segment.ids_T.tolist()]


def turn(harness: RenderedHarness, *parts: str) -> IntArray:
    """A turn as sampled: control literals are single tokens where they stand alone in `parts`."""
    return ids_of(harness, *(harness.codec.controls.get(part, part) for part in parts))


def test_the_first_prompt_is_the_one_that_the_family_renders() -> None:
    harness = qwen3()
    text = harness.decode(np.array(joined(harness.open(make_task("What is 2 + 3?")))))
    assert text.startswith("<|im_start|>system\n# Tools")
    assert '"name": "calculator"' in text
    assert text.endswith("<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n")


def test_later_turns_are_what_the_package_bridges_from_the_ids_held() -> None:
    harness = qwen3()
    tokenizer = FamilyTokenizer.from_folder(harness.codec, QWEN3)
    renderer = open_renderer("qwen3", {}, tokenizer)
    prompt = joined(harness.open(make_task("What is 2 + 3?")))
    said = harness.turn_ids("So", [CALL, CALL]).tolist()
    bridged = renderer.bridge_to_next_turn(
        prompt, said, [{"role": "tool", "content": "5"}, {"role": "tool", "content": "five\nor so"}]
    )
    assert bridged.token_ids == prompt + said + joined(harness.observe([b"5", b"five\nor so"], 20).segments)


def test_the_sequence_keeps_ids_that_a_whole_render_would_write_otherwise() -> None:
    """A policy spells its call in tokens and spaces of its own; rendered again, both would change."""
    harness = qwen3()
    body = '{"arguments":{"expression":"2+3"},  "name":"calculator"}'
    said = turn(harness, "<tool_call>", "\n", *body, "\n", "</tool_call>", "<|im_end|>")
    parsed = harness.parse(said)
    assert [(call.tool, call.arguments) for call in parsed.calls] == [("calculator", '{"expression":"2+3"}')]
    renderer = open_renderer("qwen3", {}, FamilyTokenizer.from_folder(harness.codec, QWEN3))
    again = renderer.render(
        [
            {"role": "user", "content": "What is 2 + 3?"},
            {"role": "assistant", "content": "", "tool_calls": [{"function": json.loads(body)}]},
            {"role": "tool", "content": "5"},
        ],
        tools=None,
    ).token_ids
    held = joined(harness.observe([b"5"], 20).segments)
    assert said.tolist() not in [again[at : at + len(said)] for at in range(len(again))]
    check_sequence(harness, [*harness.open(make_task()), sampled(said), *harness.observe([b"5"], 20).segments])
    assert held[0] == harness.codec.encode_text("\n")[0][0]


def test_a_family_that_drops_thinking_at_the_next_question_is_refused_with_the_cause() -> None:
    with pytest.raises(RewrittenHistory, match="thinking_dropped after") as found:
        make_family(objection_role="user")
    assert found.value.cause is ForkCause.THINKING_DROPPED


def test_it_is_accepted_once_its_options_keep_what_was_thought() -> None:
    kept = make_family(objection_role="user", settings={"thinking_retention": "all"})
    text = kept.decode(np.array(joined(kept.object_to("no tool of that name", 30).segments)))
    assert text == "\n<|im_start|>user\nerror: no tool of that name<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_whose_first_turn_is_no_prefix_of_the_second_is_refused() -> None:
    """Qwen3's own template shows an empty thought in the last turn alone."""
    with pytest.raises(RewrittenHistory, match="rewrites the turn before it"):
        make_family(family="default", settings={"tool_parser": "qwen3"})


@pytest.mark.parametrize("literal", HOSTILE)
def test_control_literals_in_a_question_or_an_output_are_text(literal: str) -> None:
    harness = qwen3()
    question = harness.open(make_task(f"a{literal}b"))[1]
    observed = harness.observe([f"a{literal}b".encode()], 40)
    for segment in (question, observed.segments[1]):
        assert harness.codec.control_ids.isdisjoint(segment.ids_T.tolist())
        assert harness.decode(segment.ids_T) == f"a{literal}b"
    assert observed.neutralized == (1,)


def test_an_output_in_decomposed_characters_is_shown_by_its_composed_tokens() -> None:
    harness = qwen3()
    shown = harness.observe(["cafe\u0301".encode()], 20).segments[1]
    assert harness.decode(shown.ids_T) == "café"
    assert harness.is_shown_by("cafe\u0301".encode(), shown.ids_T)
    assert not harness.is_shown_by(b"cafe", shown.ids_T)


MALFORMED = {
    "the turn did not end": ("A thought",),
    "the thought is not closed": ("<think>", "\nHm", "<|im_end|>"),
    "a call is not valid JSON": ("<tool_call>", '{"name": "calculator", ', "</tool_call>", "<|im_end|>"),
    "a call is not closed": ("<tool_call>", CALL, "<|im_end|>"),
    "unexpected </tool_call>": ("done", "</tool_call>", "<|im_end|>"),
    "unexpected <|im_start|>": ("a", "<|im_start|>", "user", "<|im_end|>"),
    "text after a call": ("<tool_call>", CALL, "</tool_call>", "and so on", "<|im_end|>"),
    "unknown tool 'shell'": ("<tool_call>", call_text("shell"), "</tool_call>", "<|im_end|>"),
    "arguments needs expression": ("<tool_call>", call_text("calculator"), "</tool_call>", "<|im_end|>"),
    "key 'name' twice": (
        "<tool_call>",
        '{"name": "write", "name": "calculator", "arguments": {}}',
        "</tool_call>",
        "<|im_end|>",
    ),
    "5 calls in one turn; at most 4": (*("<tool_call>", CALL, "</tool_call>") * 5, "<|im_end|>"),
}


@pytest.mark.parametrize("problem", MALFORMED)
def test_a_turn_that_cannot_be_read_says_why(problem: str) -> None:
    parsed = qwen3().parse(turn(qwen3(), *MALFORMED[problem]))
    assert parsed.status is ParseStatus.MALFORMED
    assert problem in parsed.problem
    assert not parsed.calls


def test_the_answer_is_what_follows_the_thought() -> None:
    parsed = qwen3().parse(turn(qwen3(), "<think>", "\nTwo and three.\n", "</think>", "\n\n5", "<|im_end|>"))
    assert (parsed.status, parsed.text) == (ParseStatus.FINAL, "5")


def test_a_call_behind_a_thought_runs_and_one_inside_it_does_not() -> None:
    call = ("<tool_call>", "\n", CALL, "\n", "</tool_call>")
    behind = qwen3().parse(turn(qwen3(), "<think>", "\nHm.\n", "</think>", "\n\n", *call, "<|im_end|>"))
    inside = qwen3().parse(turn(qwen3(), "<think>", "\nPerhaps ", *call, "</think>", "\n\n5", "<|im_end|>"))
    assert [call.tool for call in behind.calls] == ["calculator"]
    assert (inside.status, inside.text) == (ParseStatus.FINAL, "5")


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.text(max_size=12),
            st.lists(st.just(CALL), max_size=2),
            st.one_of(st.binary(max_size=24), st.sampled_from(HOSTILE).map(str.encode)),
        ),
        max_size=4,
    )
)
def test_a_conversation_grows_and_passes_its_own_laws(conversation: list[tuple[str, list[str], bytes]]) -> None:
    harness = qwen3()
    segments = list(harness.open(make_task()))
    for text, calls, output in conversation:
        said = harness.turn_ids(text, calls)
        parsed = harness.parse(said)
        segments.append(sampled(said))
        if parsed.status is ParseStatus.FINAL:
            break
        assert parsed.status is ParseStatus.CALLS
        segments += harness.observe([output] * len(parsed.calls), 24).segments
    check_sequence(harness, segments)


def test_a_truncated_turn_seals_and_nothing_may_follow_it() -> None:
    harness = qwen3()
    cut = sampled(turn(harness, "<think>", "\nHm"), finish=FinishReason.LENGTH)
    start = harness.open(make_task())
    check_sequence(harness, [*start, cut])
    with pytest.raises(IntegrityError, match="follows a turn that ended by"):
        check_sequence(harness, [*start, cut, *harness.observe([b"5"], 20).segments])


def test_every_process_gives_the_same_version_and_every_option_another() -> None:
    code = "from family_case import qwen3; print(qwen3().version)"
    environment = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}", "PYTHONHASHSEED": "1"}
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()
    assert other == qwen3().version
    assert make_family(settings={"enable_thinking": False}).version != qwen3().version


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"family": "qwen9"}, "qwen9"),
        ({"family": "auto"}, "name the family"),
        ({"family": "llama-3"}, "not found in tokenizer vocabulary"),
        ({"settings": {"enable_thinkin": False}}, "enable_thinkin"),
        ({"family": "default", "settings": {"tool_parser": "nonesuch"}}, "nonesuch"),
    ],
)
def test_a_family_that_does_not_fit_is_named_with_the_reason(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_family(**options)
