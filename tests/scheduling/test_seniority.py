import dataclasses

import numpy as np

from headrace.scheduling.seniority import TurnLine


@dataclasses.dataclass(eq=False)
class _Turn:
    trajectory: str
    number: int


def _line(names: str, ageing_turns: int = 256) -> TurnLine[_Turn]:
    line: TurnLine[_Turn] = TurnLine(ageing_turns)
    for number, name in enumerate(names):
        line.append(_Turn(name, number))
    return line


def _order(line: TurnLine[_Turn]) -> str:
    return "".join(line.popleft().trajectory for _ in range(len(line)))


def test_the_trajectory_that_came_first_is_served_first_at_each_of_its_turns():
    line = _line("ab")
    assert line.popleft().trajectory == "a"
    for number, name in enumerate("cda", start=2):
        line.append(_Turn(name, number))
    assert _order(line) == "abcd"


def test_age_is_worth_no_more_places_than_its_bound():
    assert _order(_line("abcdefga", ageing_turns=3)) == "abcdeafg"
    assert _order(_line("abcdefga", ageing_turns=0)) == "abcdefga"


def test_no_turn_is_passed_by_as_many_later_ones_as_the_bound():
    generator = np.random.Generator(np.random.Philox(key=3))
    for ageing_turns in (0, 2, 5, 17):
        names = "".join(chr(97 + int(code)) for code in generator.integers(0, 12, 300))
        line, served = _line(names, ageing_turns), list[int]()
        while len(line):
            served.append(line.popleft().number)
        passed = [sum(later > number for later in served[:place]) for place, number in enumerate(served)]
        assert max(passed) < max(ageing_turns, 1)
        assert (max(passed) > 0) == (ageing_turns > 0)


def test_a_turn_that_leaves_is_not_served_and_an_unknown_one_was_not_there():
    line = _line("abc")
    second = list(line)[1]
    assert line.remove(second) and not line.remove(second)
    assert _order(line) == "ac"


def test_a_trajectory_not_heard_of_for_thousands_of_others_starts_anew():
    line: TurnLine[_Turn] = TurnLine(ageing_turns=10_000)
    for number in range(4098):
        line.append(_Turn(str(number), number))
    line.append(_Turn("0", 4098))
    line.append(_Turn("4000", 4099))
    order = [line.popleft() for _ in range(len(line))]
    assert order[-1].number == 4098 and order[4001].number == 4099
