"""TRL: the lines of `GRPOTrainer` from lists of ids to padded tensors, with its own `pad`."""

from collections.abc import Callable
from typing import Any

from serve import serve
from trl.trainer.utils import pad


def prepare(load: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    import time

    import torch

    def run() -> dict[str, Any]:
        began_s = time.process_time()
        prompts = [torch.tensor(ids) for ids in load["prompts"]]
        prompt_masks = [torch.ones_like(ids, dtype=torch.long) for ids in prompts]
        prompt_BT = pad(prompts, padding_value=0, padding_side="left")
        prompt_mask_BT = pad(prompt_masks, padding_value=0, padding_side="left")
        completions = [torch.tensor(ids) for ids in load["responses"]]
        completion_masks = [torch.ones_like(ids, dtype=torch.long) for ids in completions]
        completion_BT = pad(completions, padding_value=0, padding_side="right")
        completion_mask_BT = pad(completion_masks, padding_value=0, padding_side="right")
        logprobs = [torch.tensor(values) for values in load["logprobs"]]
        logprobs_BT = pad(logprobs, padding_value=0.0, padding_side="right")
        ids_BT = torch.cat([prompt_BT, completion_BT], dim=1)
        mask_BT = torch.cat([prompt_mask_BT, completion_mask_BT], dim=1)
        used_s = time.process_time() - began_s
        assert mask_BT.shape == ids_BT.shape
        return {
            "cpu_s": used_s,
            "rows": ids_BT.shape[0],
            "id_sum": int(ids_BT.sum()),
            "trained_tokens": int(completion_mask_BT.sum()),
            "logprob_sum": float(logprobs_BT.double().sum()),
        }

    return run


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    serve("trl", prepare)
