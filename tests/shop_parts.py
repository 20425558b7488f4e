"""Parts of a person's own: pure tools, a stateful environment, a grader, two task sets."""

import os
import time
from typing import Annotated, Literal

import msgspec

from headrace.extend import Call, Problem, ToolError, Turn


class Item(msgspec.Struct):
    name: str
    count: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1


def divide(dividend: int, divisor: int) -> float:
    """Divides two integers.

    Args:
        dividend: what is divided.
        divisor: by what; not zero.
    """
    if divisor == 0:
        raise ToolError("divisor is 0")
    return dividend / divisor


async def later(text: str) -> str:
    """Says the text again."""
    return text


def hang(seconds: float) -> None:
    """Sleeps."""
    time.sleep(seconds)


def crash(how: Literal["raise", "exit"]) -> None:
    """Breaks down."""
    if how == "exit":
        os._exit(3)
    raise RuntimeError("the database is gone")


TOOLS = [divide, later, hang, crash]


class Shop:
    """A basket of one episode."""

    effect = "resettable"

    def __init__(self, problem: Problem) -> None:
        self._wanted = problem.data["wanted"]
        self._basket: dict[str, int] = {}

    def put(self, item: Item) -> int:
        """Puts an item into the basket; says how many of it there are."""
        if item.name == "gold":
            raise ToolError("gold is sold out")
        self._basket[item.name] = self._basket.get(item.name, 0) + item.count
        return self._basket[item.name]

    def basket(self) -> dict[str, int]:
        """Lists the basket."""
        return self._basket

    def wait(self, seconds: float) -> str:
        """Waits."""
        time.sleep(seconds)
        return "waited"

    def claim(self, final_text: str) -> bool:
        return self._basket.get(self._wanted, 0) > 0

    def artifact(self) -> dict[str, int]:
        return self._basket


def errands() -> list[Problem]:
    return [
        Problem(
            f"Buy {count} {name}.",
            {name: count},
            data={"wanted": name},
            difficulty="easy" if count == 1 else "hard",
            oracle=[Turn(calls=[Call("put", item={"name": name, "count": count})]), "done"],
        )
        for name in ("tea", "milk", "bread")
        for count in (1, 2, 3)
    ]


def bought(problem: Problem, artifact: bytes) -> dict[str, float]:
    basket = msgspec.json.decode(artifact) if artifact else {}
    return {"bought": float(basket == problem.answer)}


def sums(seed: int, index: int) -> Problem:
    a, b = (seed + index) % 97, index % 89
    return Problem(f"What is {a} + {b}?", str(a + b))


def same(answer: str, problem: Problem) -> float | None:
    if answer == "refuse":
        return None
    if answer == "crash":
        raise RuntimeError("the scorer is gone")
    return float(answer == problem.answer)
