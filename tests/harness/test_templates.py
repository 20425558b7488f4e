"""Own templates show each verdict; the corpus is the one that docs/templates.md is made of."""

import pytest
from optional_case import needs

from headrace.harness.forks import find_fork
from headrace.harness.templates import Verdict, report_template
from headrace.records.trajectory import ForkCause
from labs import templates

peers, needs_trl = needs("trl", requirements="requirements/fixtures.txt")

PLAIN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}"
    "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FORGETFUL = PLAIN.replace(
    "{{ m.content }}",
    "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}",
)
COUNTING = "{{ messages | length }} messages: " + PLAIN
STRICT = (
    PLAIN + "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{% endfor %}"
)
DEAF = PLAIN.replace("{% for m in messages %}", "{% for m in messages if m.role != 'tool' %}")


@pytest.mark.parametrize(
    ("source", "verdicts"),
    [
        (PLAIN, (Verdict.APPEND_ONLY,) * 4),
        (FORGETFUL, (Verdict.APPEND_ONLY, Verdict.THINKING_DROPPED, Verdict.APPEND_ONLY, Verdict.THINKING_DROPPED)),
        (COUNTING, (Verdict.HISTORY_REWRITTEN,) * 4),
        (STRICT, (Verdict.APPEND_ONLY, Verdict.APPEND_ONLY, Verdict.REFUSED, Verdict.REFUSED)),
        (DEAF, (Verdict.APPEND_ONLY, Verdict.APPEND_ONLY, Verdict.NOT_SHOWN, Verdict.NOT_SHOWN)),
    ],
)
def test_a_template_is_told_by_what_it_does_to_earlier_turns(source: str, verdicts: tuple[Verdict, ...]) -> None:
    report = report_template(source)
    assert (report.question, report.question_after_thought, report.output, report.output_after_thought) == verdicts


@pytest.mark.parametrize(
    ("before", "after", "fork"),
    [
        ("ab", "abc", None),
        ("ab", "ab", None),
        ("<think>x</think>\n\nb", "b and more of it", (0, ForkCause.THINKING_DROPPED)),
        ("a long history", "a summary", (2, ForkCause.COMPACTION)),
        ('{"a": 1}', '{"a":1} and on', (5, ForkCause.HISTORY_REWRITTEN)),
    ],
)
def test_every_fork_has_its_place_and_its_cause(before: str, after: str, fork: tuple[int, ForkCause] | None) -> None:
    found = find_fork([*map(ord, before)], [*map(ord, after)], before_text=before, after_text=after)
    assert found == fork


def test_the_same_text_in_other_tokens_is_a_fork() -> None:
    assert find_fork([1, 2], [3, 4, 5], before_text="ab", after_text="abc") == (0, ForkCause.HISTORY_REWRITTEN)


@peers
@needs_trl
def test_the_page_about_real_templates_is_current_and_tells_qwen3_from_its_training_patch() -> None:
    corpus = templates.installed()
    assert corpus is not None
    text = templates.page(*corpus)
    assert text == templates.PAGE.read_text(encoding="utf-8"), "run python3 -m labs.templates"
    rows = dict(line.strip("| ").split(" | ", 1) for line in text.splitlines() if line.startswith("| `"))
    assert len(rows) >= 70
    assert rows["`qwen3`"].startswith("thinking dropped | thinking dropped | thinking dropped")
    assert set(rows["`qwen3_training`"].split(" | ")) == {"append-only"}
