"""What a task set yields: a question for the policy, an answer for the grader, and how a perfect policy would go about it.

Invariant: of a problem only the question and the public data become a `Task`. Answer and oracle stay with whoever makes the
problem again from the task: the grader's process, and `headrace check`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.errors import ConfigError
from headrace.records.task import Budget, Task


class Call:
    """One tool call of an oracle: `Call("add", a=1, b=2)`."""

    def __init__(self, tool: str, /, **arguments: Any) -> None:
        self.tool = tool
        self.arguments = arguments

    @property
    def text(self) -> str:
        """The call as a policy writes it."""
        return msgspec.json.encode({"name": self.tool, "arguments": self.arguments}).decode()

    def __repr__(self) -> str:
        return f"Call({self.text})"


class Turn:
    """One turn of an oracle: calls that run one after the other, or a final text without calls."""

    def __init__(self, text: str = "", calls: Sequence[Call] = ()) -> None:
        self.text = text
        self.calls = tuple(calls)

    def __repr__(self) -> str:
        return f"Turn({self.text!r}, {list(self.calls)!r})"


class Problem:
    """One item of a task set.

    Attributes:
        question: what the policy is asked.
        answer: what the grader compares with; never leaves the grader's process. Any value, None for "there is none".
        difficulty: stratum that figures are reported by.
        data: public facts as JSON values; an environment's constructor sees them.
        oracle: turns of a perfect policy: `Call`s, texts and `Turn`s in order; None means that it says the answer at once.
    """

    def __init__(
        self,
        question: str,
        answer: Any = None,
        *,
        difficulty: str = "all",
        data: Mapping[str, Any] | None = None,
        oracle: Sequence[Call | Turn | str] | None = None,
    ) -> None:
        self.question = question
        self.answer = answer
        self.difficulty = difficulty
        self.data = dict(data or {})
        self._oracle = oracle

    @property
    def oracle(self) -> tuple[Turn, ...] | None:
        """Turns of a perfect policy; None when nobody knows any."""
        if self._oracle is not None:
            return tuple(_as_turn(step) for step in self._oracle)
        return None if self.answer is None else (Turn(str(self.answer)),)

    def as_task(self, *, family: str, seed: int, index: int, budget: Budget, environment: str) -> Task:
        """The task as the policy may see it. Raises ConfigError when question or data cannot be stored."""
        if not isinstance(self.question, str) or not self.question:
            raise ConfigError(f"{family}[{index}]: question is {self.question!r}; a text is needed")
        try:
            parameters = msgspec.json.encode(self.data, order="deterministic").decode()
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{family}[{index}]: data cannot become JSON: {error}; use plain values") from error
        return Task(
            family=family,
            difficulty=str(self.difficulty),
            seed=seed,
            index=index,
            question=self.question,
            budget=budget,
            environment=environment,
            parameters=parameters,
        )


def _as_turn(step: Call | Turn | str) -> Turn:
    if isinstance(step, Turn):
        return step
    return Turn(calls=(step,)) if isinstance(step, Call) else Turn(str(step))
