"""Packed against padded training: CPU of forward and backward over rows whose lengths follow published laws.

Run: `python -m benchmarks.packing`. Lengths are drawn from the quantiles of each law, divided by 32 so that a small model
on two cores can take them. `padded` pads every row to the longest of the batch, as most trainers do; `sorted` is the
padded layout of this trainer, whose micro-batches hold rows of similar length; `packed` has no padding. All three give the
same loss within 1e-5, asserted in every run.
"""

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.sitting.measure import Figure, Side, options, sit
from headrace.training.packing import PackedTokens, pack_lists
from headrace.training.policy import MicroBatch, Policy, micro_batches
from headrace.training.warm_start import WarmStartSettings, warm_start

ROWS, SCALE, BUDGET = 64, 32, 4096
QUANTILES = (0.0, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1.0)
LAWS = {
    "tool use 7B, heavy tail": (100, 397, 487, 658, 884, 1207, 1661, 2114, 5189, 15996),
    "R1-style code and math, heavy tail": (400, 1082, 1336, 1933, 3198, 5848, 12943, 16295, 19118, 20480),
    "AIME, heavy tail": (200, 488, 606, 963, 1607, 2776, 4508, 5845, 8423, 16385),
    "math 7B, bimodal": (300, 498, 640, 1957, 6159, 8225, 9722, 11193, 14624, 16376),
}
MODEL = {
    "model_type": "qwen2",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}


def rows_of(law: tuple[int, ...], seed: int) -> PackedTokens:
    rng = np.random.default_rng(seed)
    # Half of the draw is the group's: the members of a task have like lengths.
    uniform_B = np.clip(0.5 * np.repeat(rng.random(ROWS // 8), 8) + 0.5 * rng.random(ROWS), 0.0, 1.0)
    ranks_B = (np.argsort(np.argsort(uniform_B)) + 0.5) / ROWS
    lengths_B = np.maximum(np.interp(ranks_B, QUANTILES, law).astype(int) // SCALE, 4)
    ids = [rng.integers(0, 512, length).tolist() for length in lengths_B]
    masks = [[False, False, *[True] * (len(row) - 2)] for row in ids]
    return pack_lists(ids, masks, [[-1.0] * len(row) for row in ids], version=0)


def longest(packed: PackedTokens) -> list[MicroBatch]:
    """Rows in order, each padded to the longest of the batch."""
    width = int(packed.lengths_B.max())
    per_part = max(1, BUDGET // width)
    parts = []
    for start in range(0, ROWS, per_part):
        rows = range(start, min(start + per_part, ROWS))
        (part,) = micro_batches(packed, rows, 1 << 30, "padded")
        wide_BT = torch.zeros((len(rows), width), dtype=torch.int64)
        wide_BT[:, : part.inputs_BT.shape[1]] = part.inputs_BT
        row_N = part.positions_N // part.inputs_BT.shape[1]
        positions_N = part.positions_N + row_N * (width - part.inputs_BT.shape[1])
        parts.append(dataclasses.replace(part, inputs_BT=wide_BT, positions_N=positions_N))
    return parts


def step(policy: Policy, parts: list[MicroBatch]) -> float:
    """Mean log-prob of all trained tokens, with its gradient."""
    policy.model.zero_grad(set_to_none=False)
    total, tokens = 0.0, sum(len(part.targets_N) for part in parts)
    for part in parts:
        picked_N = policy.log_distribution(part).gather(1, part.targets_N[:, None])[:, 0]
        share = picked_N.sum() / tokens
        torch.autograd.backward(share)
        total += float(share.detach())
    return total


def timed(work: Callable[[], float], expected: float) -> Callable[[], float]:
    def run() -> float:
        began_s = time.process_time()
        found = work()
        used_s = time.process_time() - began_s
        assert abs(found - expected) < 1e-5, (found, expected)
        return used_s

    return run


def load(folder: Path, layout: Any) -> Policy:
    policy = Policy.load(folder)
    policy.use(layout, "float32")
    return policy


def main() -> None:
    arguments = options(__doc__).parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = warm_start(MODEL, (), WarmStartSettings(steps=0), seed=1, out_dir=Path(name) / "policy")
        padded, packed = load(folder, "padded"), load(folder, "packed")
        for number, (title, law) in enumerate(LAWS.items()):
            rows = rows_of(law, 7)
            parts = {
                "product": list(micro_batches(rows, range(ROWS), BUDGET, "packed")),
                "sorted": list(micro_batches(rows, range(ROWS), BUDGET, "padded")),
                "padded": longest(rows),
            }
            expected = step(padded, parts["sorted"])
            tokens = int(rows.cu_seqlens[-1])
            slots = {side: sum(part.inputs_BT.numel() for part in of) / tokens for side, of in parts.items()}
            figure = Figure(
                f"P{number + 1}",
                f"{title}: {tokens} tokens; slots per token "
                + ", ".join(f"{side} {value:.2f}" for side, value in slots.items()),
                "ms per 1000 tokens",
                1e6 / tokens,
                None,
            )
            sides = [
                Side(
                    side,
                    timed(lambda of=of, side=side: step(packed if side == "product" else padded, of), expected),
                )
                for side, of in parts.items()
            ]
            medians = sit(figure, sides, arguments.repeats)
            print(f"    packed is {medians['padded'] / medians['product']:.2f} x padded, goal 1.8 on heavy tails")


if __name__ == "__main__":
    main()
