"""verl: GRPO advantages, and its rollout correction with its metrics, on the arrays of the load."""

from collections.abc import Callable
from typing import Any

from serve import serve


def prepare(load: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    import time

    import numpy as np
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    rows, tokens = load["rows"], load["tokens"]
    rewards_BT = torch.zeros(rows, tokens)
    rewards_BT[:, -1] = torch.tensor(load["rewards"])
    mask_BT = torch.ones(rows, tokens)
    groups_B = np.array(load["groups"])
    arrays = np.load(load["arrays"])
    old_BT, behavior_BT = (torch.from_numpy(arrays[name].reshape(rows, tokens)) for name in ("old", "behavior"))

    def advantages() -> dict[str, Any]:
        began_s = time.process_time()
        values_BT, _ = compute_grpo_outcome_advantage(rewards_BT, mask_BT, groups_B)
        used_s = time.process_time() - began_s
        return {
            "cpu_s": used_s,
            "advantages": values_BT[:, 0].tolist(),
            "spread": float((values_BT.amax(1) - values_BT.amin(1)).max()),
        }

    def corrections() -> dict[str, Any]:
        began_s = time.process_time()
        weights, kept_BT, metrics = compute_rollout_correction_and_rejection_mask(
            old_log_prob=old_BT,
            rollout_log_prob=behavior_BT,
            response_mask=mask_BT,
            rollout_is="token",
            rollout_is_threshold=load["bound"],
            # Its rejection is left out: it bounds another statistic, so the two could not be compared row by row.
            rollout_rs=None,
        )
        used_s = time.process_time() - began_s
        return {
            "cpu_s": used_s,
            "weight_sum": float((weights.batch["rollout_is_weights"].double() * kept_BT).sum()),
            "metrics": {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))},
        }

    return advantages if load["what"] == "advantages" else corrections


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    serve("verl", prepare)
