"""Inspect: its `eval` of one task, with its own tool loop, a scripted model, a scorer, and its eval log written to disk.

The model gives text and tool calls, neither token ids nor log-probs, so the log has none. Settings are those that Inspect
comes with, but for the terminal display and the control server, which are off, and the limit of samples in flight.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from typing import Any

from serve import serve


def prepare(load: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    import inspect_ai
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.event import ModelEvent, ToolEvent
    from inspect_ai.log import read_eval_log
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessageAssistant,
        ChatMessageUser,
        GenerateConfig,
        ModelAPI,
        ModelOutput,
        ModelUsage,
        get_model,
        modelapi,
    )
    from inspect_ai.scorer import Score, Target, mean, scorer
    from inspect_ai.solver import TaskState, generate, use_tools
    from inspect_ai.tool import ToolCall, tool

    episodes = load["episodes"]
    name = json.loads(_call(episodes[0]["turns"][0]["text"]))["name"]

    @tool(name=name)
    def calculator() -> Any:
        async def execute(expression: str) -> str:
            """Adds two numbers.

            Args:
                expression: the two, with a plus sign between.
            """
            left, _, right = expression.partition("+")
            return str(int(left) + int(right))

        return execute

    @modelapi(name="scripted")
    class Scripted(ModelAPI):
        async def generate(self, input: list[Any], tools: Any, tool_choice: Any, config: Any) -> ModelOutput:  # noqa: A002
            await asyncio.sleep(0)
            step = sum(message.role == "assistant" for message in input)
            turn = episodes[input[0].metadata["episode"]]["turns"][step]
            text, calls = turn["text"], None
            if "<tool_call>" in text:
                call = json.loads(_call(text))
                calls = [ToolCall(id=str(step), function=call["name"], arguments=call["arguments"])]
            said = ChatMessageAssistant(content=text, tool_calls=calls, model="scripted", source="generate")
            stop = "tool_calls" if calls else "stop"
            usage = ModelUsage(output_tokens=len(turn["ids"]), total_tokens=len(turn["ids"]))
            return ModelOutput(
                model="scripted", choices=[ChatCompletionChoice(message=said, stop_reason=stop)], usage=usage
            )

    @scorer(metrics=[mean()])
    def solved() -> Any:
        async def score(state: TaskState, target: Target) -> Score:
            return Score(value=float(_is_solved(state.output.completion)))

        return score

    samples = [
        Sample(
            id=number,
            input=[ChatMessageUser(content=load["questions"][number // load["members"]], metadata={"episode": number})],
        )
        for number in range(len(episodes))
    ]
    model = get_model("scripted/w-a", config=GenerateConfig(max_connections=load["in_flight"]), memoize=False)

    def check(location: str) -> dict[str, Any]:
        """Counts what the log on disk holds, once its calls, tool results and scores are those of the load."""
        log = read_eval_log(location)
        assert log.status == "success" and log.samples is not None, log.error
        turns = calls = 0
        for sample in log.samples:
            said = episodes[int(sample.id)]["turns"]
            spoken = [e.output.completion for e in sample.events if isinstance(e, ModelEvent)]
            assert spoken == [turn["text"] for turn in said]
            results = [e.result for e in sample.events if isinstance(e, ToolEvent)]
            assert results == [turn["output"] for turn in said if turn["output"]]
            assert sample.scores is not None
            assert sample.scores["solved"].value == float(_is_solved(said[-1]["text"]))
            turns, calls = turns + len(spoken), calls + len(results)
        return {"episodes": len(log.samples), "turns": turns, "calls": calls}

    def run() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
            task = inspect_ai.Task(
                dataset=MemoryDataset(samples), solver=[use_tools(calculator()), generate()], scorer=solved()
            )
            began_s = time.process_time()
            (log,) = inspect_ai.eval(
                task, model, log_dir=folder, display="none", ctl_server=False, max_samples=load["in_flight"]
            )
            used_s = time.process_time() - began_s
            return {"cpu_s": used_s, **check(log.location)}

    return run


def _call(text: str) -> str:
    return text.partition("<tool_call>")[2].partition("</tool_call>")[0]


def _is_solved(text: str) -> bool:
    return not text.endswith("unknown<|im_end|>")


if __name__ == "__main__":
    serve("inspect-ai", prepare)
