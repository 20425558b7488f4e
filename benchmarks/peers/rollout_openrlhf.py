"""OpenRLHF: its `MultiTurnAgentExecutor`, one per episode, with a scripted engine and the tool inside the agent's `step`."""

import asyncio
import json
import types
from collections.abc import Callable
from typing import Any

from serve import serve


def prepare(load: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    import torch
    from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    torch.set_num_threads(1)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(load["tokenizer"]))
    head, tail = load["feedback"]
    members, turns_made = load["members"], 0

    class Agent(AgentInstanceBase):
        def __init__(self) -> None:
            self.step_number = 0

        async def reset(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
            return {"observation": states["observation"]}

        async def step(self, state_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
            text = state_dict["action_text"]
            feedback, is_done = "", "<tool_call>" not in text
            if not is_done:
                call = json.loads(text.partition("<tool_call>")[2].partition("</tool_call>")[0])
                left, _, right = call["arguments"]["expression"].partition("+")
                feedback = f"{head}{int(left) + int(right)}{tail}"
            return {
                "rewards": torch.tensor(float(is_done and not text.endswith("unknown<|im_end|>"))),
                "environment_feedback": feedback,
                "done": is_done,
            }

    class Engine:
        """One per episode, so that the next turn is known."""

        def __init__(self, turns: list[Any]) -> None:
            self._turns = iter(turns)

        async def generate(self, prompt_ids: list[int], sampling_params: Any, **kwargs: Any) -> Any:
            nonlocal turns_made
            await asyncio.sleep(0)
            turns_made += 1
            return next(self._turns)

    def output(turn: dict[str, Any]) -> Any:
        logprobs = [{i: types.SimpleNamespace(logprob=p)} for i, p in zip(turn["ids"], turn["logprobs"], strict=True)]
        completion = types.SimpleNamespace(
            token_ids=turn["ids"], text=turn["text"], finish_reason="stop", logprobs=logprobs
        )
        return types.SimpleNamespace(outputs=[completion])

    outputs = [[output(turn) for turn in episode["turns"]] for episode in load["episodes"]]
    executor = MultiTurnAgentExecutor(Agent)

    async def episode(index: int, gate: asyncio.Semaphore) -> dict[str, Any]:
        async with gate:
            sampling = types.SimpleNamespace(max_tokens=128, logprobs=1)
            prompt = load["prompt_texts"][index // members]
            return await executor.execute(prompt, None, sampling, 1024, tokenizer, Engine(outputs[index]))

    async def work() -> list[dict[str, Any]]:
        gate = asyncio.Semaphore(load["in_flight"])
        return await asyncio.gather(*(episode(index, gate) for index in range(len(outputs))))

    def run() -> dict[str, Any]:
        import time

        nonlocal turns_made
        turns_made = 0
        began_s = time.process_time()
        made = asyncio.run(work())
        used_s = time.process_time() - began_s
        for item, episode in zip(made, load["episodes"], strict=True):
            assert item["observation_tokens"][: len(episode["prompt"])] == episode["prompt"]
            assert len(item["rollout_log_probs"]) == len(item["observation_tokens"])
        trained = sum(stop - start for item in made for start, stop in item["action_ranges"])
        return {"cpu_s": used_s, "episodes": len(made), "turns": turns_made, "trained_tokens": trained}

    return run


if __name__ == "__main__":
    serve("openrlhf", prepare)
