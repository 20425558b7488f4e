"""C1 and C2: CPU of advantages, and of corrections with their diagnostics by stratum, on W-C.

Run: `python -m benchmarks.learning_signal [--peers PYTHON]`. W-C: 512 rows of 2048 trained tokens in groups of 8. Every run
is compared with a reference of plain numpy, the peer's within 1e-6.
"""

import dataclasses
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sitting.measure import Figure, Side, options, sit
from benchmarks.sitting.peer import peer_side
from headrace.algorithms.advantages import MemberData, batch_advantages
from headrace.algorithms.corrections import correct
from headrace.algorithms.diagnostics import effective_sample_size, mean_weight, pareto_k_hat, tail
from headrace.algorithms.mismatch import mismatch
from headrace.records.learning.advantages import EstimatorOptions
from headrace.records.learning.corrections import GeometricMask, TokenTis

ROWS, TOKENS, MEMBERS, STRATA = 512, 2048, 8, 4
C1 = Figure("C1", "GRPO advantages of every token of W-C", "ms", 1e3, 1.2)
C2 = Figure("C2", "corrections, ESS, tails, rejection by stratum and mismatch on W-C", "ms", 1e3, 30.0)
CORRECTIONS = (TokenTis(bound=2.0), GeometricMask(low=0.99, high=1.01, veto=1e-4))


@dataclasses.dataclass(frozen=True)
class Batch:
    """W-C as arrays: full rows, every token trained."""

    rewards: list[list[float | None]]
    behavior_N: np.ndarray
    old_N: np.ndarray
    rows_N: np.ndarray
    strata_B: np.ndarray


def batch(seed: int = 7) -> Batch:
    rng = np.random.default_rng(seed)
    rewards = rng.integers(0, 2, (ROWS // MEMBERS, MEMBERS)).astype(float).tolist()
    behavior_N = -rng.exponential(0.7, ROWS * TOKENS).astype(np.float32)
    drift_N = rng.normal(0.0, 0.03, ROWS * TOKENS) + np.repeat(rng.normal(0.0, 0.01, ROWS), TOKENS)
    old_N = np.minimum(behavior_N + drift_N, 0.0).astype(np.float32)
    return Batch(rewards, behavior_N, old_N, np.repeat(np.arange(ROWS), TOKENS), np.arange(ROWS) // MEMBERS % STRATA)


def advantages(data: Batch) -> np.ndarray:
    """GRPO of every member, at each of its tokens."""
    members = MemberData(data.rewards, [[TOKENS] * MEMBERS] * len(data.rewards), [[None] * MEMBERS] * len(data.rewards))
    found = batch_advantages("grpo", members, EstimatorOptions())
    flat_B = np.array([value for group in found for value in group], dtype=np.float32)
    return np.repeat(flat_B, TOKENS)


def advantages_floor(data: Batch) -> np.ndarray:
    """The least that has to be done: one pass over rewards and one copy per token."""
    rewards_GM = np.array(data.rewards)
    centred_GM = rewards_GM - rewards_GM.mean(axis=1, keepdims=True)
    scaled_GM = centred_GM / (rewards_GM.std(axis=1, ddof=1, keepdims=True) + 1e-6)
    return np.repeat(scaled_GM.astype(np.float32).ravel(), TOKENS)


@dataclasses.dataclass(frozen=True)
class Diagnosed:
    """What C2 has to produce."""

    weights_N: np.ndarray
    kept_B: np.ndarray
    ess: dict[int, float]
    mean: dict[int, float]
    tails: dict[int, float]
    k_hat: dict[int, float | None]
    removed: dict[int, float]
    kl: float
    chi_squared: float


def diagnose(data: Batch) -> Diagnosed:
    """Corrections, effective sample size, tails and rejection by stratum, and the mismatch of the batch."""
    log_ratio_N = data.old_N - data.behavior_N
    corrected = correct(CORRECTIONS, log_ratio_N, data.rows_N, num_rows=ROWS, advantages_N=data.old_N)
    starts = np.arange(0, ROWS * TOKENS, TOKENS)
    logs_B = np.add.reduceat(log_ratio_N, starts, dtype=np.float64)
    kept_B = np.logical_and.reduceat(corrected.is_kept_N, starts)
    figures = mismatch(data.old_N, data.behavior_N, data.rows_N)
    parts = {stratum: data.strata_B == stratum for stratum in range(STRATA)}
    return Diagnosed(
        corrected.weights_N,
        kept_B,
        {s: effective_sample_size(logs_B[part]).fraction for s, part in parts.items()},
        {s: mean_weight(logs_B[part]).mean for s, part in parts.items()},
        {s: tail(logs_B[part]).p99 for s, part in parts.items()},
        {s: pareto_k_hat(logs_B[part]) for s, part in parts.items()},
        {s: 1.0 - float(kept_B[part].mean()) for s, part in parts.items()},
        figures.kl_k3,
        figures.chi_squared_token,
    )


def check_advantages(data: Batch, found: np.ndarray) -> None:
    for group, rewards in enumerate(data.rewards):
        values = np.array(rewards)
        spread = values.std(ddof=1)
        expected = (values - values.mean()) / (spread + 1e-6) if spread > 0 else values * 0.0
        at = found[group * MEMBERS * TOKENS : (group + 1) * MEMBERS * TOKENS : TOKENS]
        np.testing.assert_allclose(at, expected, atol=1e-6)
    assert found.shape == (ROWS * TOKENS,)


def check_diagnosed(data: Batch, found: Diagnosed) -> None:
    log_BT = (data.old_N - data.behavior_N).astype(np.float64).reshape(ROWS, TOKENS)
    ratio_BT = np.exp(log_BT)
    geometric_B = np.exp(log_BT.mean(axis=1))
    kept_B = (geometric_B >= 0.99) & (geometric_B <= 1.01) & (ratio_BT.min(axis=1) >= 1e-4)
    assert (found.kept_B == kept_B).all()
    assert 0 < kept_B.sum() < ROWS
    expected = np.where(kept_B[:, None], np.minimum(ratio_BT, 2.0), 0.0)
    np.testing.assert_allclose(found.weights_N.reshape(ROWS, TOKENS), expected, atol=1e-6)
    for stratum in range(STRATA):
        weights = np.exp(log_BT.sum(axis=1)[data.strata_B == stratum])
        assert abs(found.ess[stratum] - weights.sum() ** 2 / (weights**2).sum() / len(weights)) < 1e-9
    assert abs(found.kl - (ratio_BT - 1 - log_BT).mean()) < 1e-9


def diagnose_floor(data: Batch) -> tuple[np.ndarray, float]:
    """One exponential of each log-ratio, one cut, one sum per row: no masks, no diagnostics."""
    log_ratio_N = data.old_N - data.behavior_N
    sums_B = log_ratio_N.reshape(ROWS, TOKENS).sum(axis=1, dtype=np.float64)
    return np.minimum(np.exp(log_ratio_N), 2.0), float(sums_B.max())


def timed(work: Callable[[], Any], check: Callable[[Any], None]) -> Callable[[], float]:
    """Runs the work once, then asserts its result outside of the measured time."""

    def run() -> float:
        began_s = time.process_time()
        result = work()
        used_s = time.process_time() - began_s
        check(result)
        return used_s

    return run


def peer(data: Batch, folder: Path, what: str, *, python: Path | None, published: float) -> Side:
    """verl on the same arrays."""
    np.savez(folder / "arrays.npz", old=data.old_N, behavior=data.behavior_N)
    load = {
        "what": what,
        "rows": ROWS,
        "tokens": TOKENS,
        "rewards": [value for group in data.rewards for value in group],
        "groups": [row // MEMBERS for row in range(ROWS)],
        "arrays": str(folder / "arrays.npz"),
        "bound": CORRECTIONS[0].bound,
    }
    path = folder / f"{what}.json"
    path.write_text(json.dumps(load))
    expected, found = advantages(data)[::TOKENS], diagnose(data)

    def check(result: dict[str, Any]) -> None:
        if what == "advantages":
            np.testing.assert_allclose(result["advantages"], expected, atol=1e-6)
            assert result["spread"] == 0.0
            return
        cut_N = np.minimum(np.exp((data.old_N - data.behavior_N).astype(np.float64)), CORRECTIONS[0].bound)
        assert abs(result["weight_sum"] / cut_N.sum() - 1) < 1e-6
        metrics = result["metrics"]
        for name, value in (("k3_kl", found.kl), ("chi2_token", found.chi_squared)):
            at = next(metrics[key] for key in metrics if key.endswith(name))
            assert abs(at - value) < 1e-5, (name, at, value)

    return peer_side("verl", "signal_verl.py", python, path, check=check, published=published)


def main() -> None:
    arguments = options(__doc__).parse_args()
    data = batch()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sides = [
            Side("product", timed(lambda: advantages(data), lambda found: check_advantages(data, found))),
            Side("floor", timed(lambda: advantages_floor(data), lambda found: check_advantages(data, found))),
            peer(data, folder, "advantages", python=arguments.peers, published=1.4),
        ]
        sit(C1, sides, arguments.repeats)
        sides = [
            Side("product", timed(lambda: diagnose(data), lambda found: check_diagnosed(data, found))),
            Side("floor", timed(lambda: diagnose_floor(data), lambda found: None)),
            peer(data, folder, "corrections", python=arguments.peers, published=61.0),
        ]
        sit(C2, sides, arguments.repeats)


if __name__ == "__main__":
    main()
