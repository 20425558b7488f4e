"""Deliberately sloppy demonstrations: what a careless worker with a calculator would have written down.

Invariant: a demonstration is a function of (task, seed, sloppiness) and of what the calculator says; it uses no answer, so
nothing that only the grader may know is shown to a policy. It names no tokens: the harness renders it by the code of
rollouts, and a call that is broken here is answered with the harness's own objection.

The faults leave most expressions right, since copying digits is what a small model learns last, and put the reward within
reach of a change of habits: to call the tool, and to answer with the bare number.
"""

import json
import re
from collections.abc import Callable

import msgspec
import numpy as np

from headrace.config import Section
from headrace.records.streams import stream
from headrace.records.task import Task

Calculator = Callable[[str], str]
"""What the calculator says to an expression, its errors as text too."""

_BASES = {"binary": 2, "hexadecimal": 16}
_EXPRESSIONS: dict[str, tuple[str, str]] = {
    "chain_sum": (r"problem: (.*) =$", "{}"),
    "count_bits": (r"number (\d+)\?", "popcount({})"),
    "fraction_simplification": (r"fraction (\S+) to", "{}"),
    "gcd": (r"numbers: ([\d, ]*)\.", "gcd({})"),
    "lcm": (r"numbers: ([\d, ]*)$", "lcm({})"),
    "products": (r"multiplication: (.*)\. Give", "{}"),
}


class Sloppiness(Section, frozen=True):
    """Shares of what goes wrong.

    Attributes:
        skips_tool: answers at once, with the last number of the question.
        malformed_call: else, of all: a call that cannot be read or run; half of them are followed by a right one.
        miscopies: else, of all: one digit of the expression wrong, or one term left out.
        chatty_final: of the answers after a call: the number in a sentence, which scores nothing.
        wrong_final: of the answers after a call: one digit wrong.
    """

    skips_tool: float = 0.25
    malformed_call: float = 0.08
    miscopies: float = 0.04
    chatty_final: float = 0.55
    wrong_final: float = 0.04

    def __post_init__(self) -> None:
        shares = [getattr(self, name) for name in self.__struct_fields__]
        if min(shares) < 0.0 or sum(shares[:3]) > 1.0 or sum(shares[3:]) > 1.0:
            raise ValueError(f"sloppiness {shares}: shares of turns, and of final answers, each add up to 1 at most")


class DemonstratedTurn(msgspec.Struct, frozen=True):
    """One policy turn.

    Attributes:
        text: what is said before the calls, or the final answer.
        calls: raw text of each call, well-formed or not.
        outputs: what the tool said to each; empty when the call is broken or there is none.
    """

    text: str
    calls: tuple[str, ...] = ()
    outputs: tuple[bytes, ...] = ()


def expression_of(task: Task) -> str:
    """The calculator expression that an expert makes of the question.

    Raises:
        ValueError: when nobody showed how for this family or wording.
    """
    if task.family == "base_conversion":
        return _conversion(task.question)
    pattern, form = _EXPRESSIONS.get(task.family, ("", ""))
    match = re.search(pattern, task.question) if pattern else None
    if match is None:
        raise ValueError(f"no demonstration for {task.family}: {task.question[:80]!r}; known: {sorted(_EXPRESSIONS)}")
    return form.format(*match.groups())


def demonstrate(
    task: Task, calculator: Calculator, *, seed: int, sloppiness: Sloppiness | None = None
) -> tuple[DemonstratedTurn, ...]:
    """Turns of one sloppy conversation about the task, the same for the same seed.

    Raises:
        ValueError: when there is no demonstration for the task's family.
    """
    shares = sloppiness or Sloppiness()
    draw = stream(seed, "demonstrations", task.family, task.difficulty, task.index)
    expression, lazy = expression_of(task), re.findall(r"\d+", task.question)[-1]
    fault = draw.random()
    if fault < shares.skips_tool:
        return (DemonstratedTurn(lazy),)
    turns: list[DemonstratedTurn] = []
    result = lazy
    if fault < shares.skips_tool + shares.malformed_call:
        turns.append(DemonstratedTurn("", (_broken(expression, draw),)))
        if draw.random() < 0.5:
            result = _calculated(expression, calculator, turns)
    elif fault < shares.skips_tool + shares.malformed_call + shares.miscopies:
        result = _calculated(_miscopied(expression, draw), calculator, turns)
    else:
        result = _calculated(expression, calculator, turns)
    turns.append(DemonstratedTurn(_final(result, shares, draw)))
    return tuple(turns)


def _calculated(expression: str, calculator: Calculator, turns: list[DemonstratedTurn]) -> str:
    result = calculator(expression)
    turns.append(DemonstratedTurn("", (_call(expression),), (result.encode(),)))
    return result


def _final(result: str, shares: Sloppiness, draw: np.random.Generator) -> str:
    fault = draw.random()
    if fault < shares.chatty_final:
        return f"The answer is {result}."
    return _with_other_digit(result, draw) if fault < shares.chatty_final + shares.wrong_final else result


def _call(expression: str) -> str:
    return json.dumps({"name": "calculator", "arguments": {"expression": expression}})


def _broken(expression: str, draw: np.random.Generator) -> str:
    good = _call(expression)
    ways = (good[:-1], good.replace('"expression"', '"input"'), good.replace("calculator", "calc"), expression)
    return ways[int(draw.integers(len(ways)))]


def _miscopied(expression: str, draw: np.random.Generator) -> str:
    for separator in (" + ", " - ", " * ", ", "):
        parts = expression.split(separator)
        if len(parts) > 2 and draw.random() < 0.5:
            del parts[int(draw.integers(len(parts) - 1))]
            return separator.join(parts)
    return _with_other_digit(expression, draw)


def _with_other_digit(text: str, draw: np.random.Generator) -> str:
    places = [place for place, character in enumerate(text) if character.isdigit()]
    if not places:
        return text + "1"
    place = places[int(draw.integers(len(places)))]
    others = [digit for digit in "123456789" if digit != text[place]]
    return text[:place] + others[int(draw.integers(len(others)))] + text[place + 1 :]


def _conversion(question: str) -> str:
    match = re.search(r"convert the (\S+) number (\S+) to (\S+)", question)
    if match is None:
        raise ValueError(f"no demonstration for base_conversion: {question[:80]!r}")
    source, digits, target = match.groups()
    source_base, target_base = (_BASES.get(name) or int(name.removeprefix("base-")) for name in (source, target))
    return f"convert('{digits}', {source_base}, {target_base})"
