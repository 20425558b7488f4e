"""Makes the bundled tokenizer from generated demonstrations: `python -m labs.make_tokenizer [FILE]`."""

import sys
from collections.abc import Iterator
from pathlib import Path

from headrace.environments.calculator import CalculatorError, calculate
from headrace.environments.tools import CALCULATOR
from headrace.harness.chatml import ASSETS, ChatMLHarness, ChatMLOptions
from headrace.harness.codec import TextCodec
from headrace.harness.make_tokenizer import make_tokenizer
from headrace.records.task import Budget
from headrace.tasks.demonstrations import Sloppiness, demonstrate
from headrace.tasks.families import DEFAULT_FAMILIES, FamilyOptions, ReasoningGymOptions
from headrace.tasks.reasoning_gym import ReasoningGymTasks

FAMILIES = (
    *DEFAULT_FAMILIES,
    FamilyOptions(generator="base_conversion", levels={"any": {"min_value": 16, "max_value": 999}}),
)
NUM_DEMONSTRATIONS = 3_000
BALANCED = Sloppiness(skips_tool=0.2, malformed_call=0.2, miscopies=0.1, chatty_final=0.2, wrong_final=0.1)
ROLES = ("system\n", "user\n", "assistant\n")


def corpus() -> Iterator[str]:
    """Every text that an episode of the families with demonstrations holds, each encoded alone as the harness does."""
    options = ReasoningGymOptions(families=FAMILIES, held_out_per_stratum=0)
    tasks = ReasoningGymTasks(options, seed=0, budget=Budget(), environment="sandbox")
    # Only the problem texts of this harness are used, and they do not depend on the tokenizer.
    harness = ChatMLHarness(ChatMLOptions(), (CALCULATOR,), TextCodec(make_tokenizer(())))
    for ordinal in range(NUM_DEMONSTRATIONS):
        task = tasks.task("tokenizer", ordinal)
        yield from ROLES
        yield from (ChatMLOptions().system_prompt, task.question)
        for turn in demonstrate(task, say, seed=0, sloppiness=BALANCED):
            yield from (turn.text, *turn.calls, *(output.decode() for output in turn.outputs))
            if turn.calls and not turn.outputs:
                yield f"error: {harness.parse(harness.turn_ids(turn.text, turn.calls)).problem}"


def say(expression: str) -> str:
    """What the calculator says, errors as text."""
    try:
        return calculate(expression)
    except CalculatorError as error:
        return f"error: {error}"


def main() -> None:
    """Writes the file, the bundled asset unless another is named."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ASSETS / "tokenizer.json"
    target.write_bytes(make_tokenizer(corpus()))
    print(target)


if __name__ == "__main__":
    main()
