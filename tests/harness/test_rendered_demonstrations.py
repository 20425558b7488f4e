from dataclasses import dataclass

import pytest
from harness_case import call_text, make_harness, make_task

from headrace.harness.demonstrations import render_demonstration

HARNESS = make_harness()


@dataclass(frozen=True)
class Turn:
    text: str
    calls: tuple[str, ...] = ()
    outputs: tuple[bytes, ...] = ()


CALL = call_text("calculator", expression="2 + 3")


def test_a_demonstration_has_the_ids_of_the_episode_that_it_shows() -> None:
    task = make_task()
    turns = [Turn("", (CALL[:-1],)), Turn("Again: ", (CALL,), (b"5<|im_end|>",)), Turn("5")]
    ids_T, mask_T = render_demonstration(HARNESS, task, turns)
    expected: list[int] = []
    own: list[bool] = []
    problem = HARNESS.parse(HARNESS.turn_ids("", [CALL[:-1]])).problem
    for is_own, parts in [
        (False, [segment.ids_T for segment in HARNESS.open(task)]),
        (True, [HARNESS.turn_ids("", [CALL[:-1]])]),
        (False, [segment.ids_T for segment in HARNESS.object_to(problem, 64).segments]),
        (True, [HARNESS.turn_ids("Again: ", [CALL])]),
        (False, [segment.ids_T for segment in HARNESS.observe([b"5<|im_end|>"], 64).segments]),
        (True, [HARNESS.turn_ids("5", [])]),
    ]:
        for part in parts:
            expected += part.tolist()
            own += [is_own] * len(part)
    assert ids_T.tolist() == expected
    assert mask_T.tolist() == own


@pytest.mark.parametrize(
    "turns",
    [
        [],
        [Turn("5"), Turn("5")],
        [Turn("", (CALL,), (b"5",))],
        [Turn("", (CALL,)), Turn("5")],
        [Turn("", (CALL[:-1],), (b"5",)), Turn("5")],
    ],
)
def test_a_demonstration_that_no_episode_could_be_is_refused(turns: list[Turn]) -> None:
    with pytest.raises(ValueError, match=r"demonstration|outputs"):
        render_demonstration(HARNESS, make_task(), turns)
