"""SkyRL: its function from lists of ids to batch tensors."""

import types
from collections.abc import Callable
from typing import Any

from serve import serve
from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors


def prepare(load: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    import time

    tokenizer = types.SimpleNamespace(pad_token_id=0)
    rewards = [[0.0] * (len(response) - 1) + [1.0] for response in load["responses"]]
    masks = [[1] * len(response) for response in load["responses"]]

    def run() -> dict[str, Any]:
        began_s = time.process_time()
        made = convert_prompts_responses_to_batch_tensors(
            tokenizer, load["prompts"], load["responses"], rewards, masks, load["logprobs"]
        )
        used_s = time.process_time() - began_s
        sequences, _, _, _, loss_masks, logprobs = made[:6]
        return {
            "cpu_s": used_s,
            "rows": sequences.shape[0],
            "id_sum": int(sequences.sum()),
            "trained_tokens": int(loss_masks.sum()),
            "logprob_sum": float(logprobs.double().sum()),
        }

    return run


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    serve("skyrl", prepare)
