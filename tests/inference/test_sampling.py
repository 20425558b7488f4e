"""One token per row, drawn by inverse CDF of the full softmax."""

import math

import numpy as np
import pytest
import torch

from headrace.inference.sampling import draw


def drawn(logits: list[list[float]], temperature: list[float], uniforms: list[float]) -> tuple[list[int], list[float]]:
    result = draw(torch.tensor(logits), np.array(temperature, dtype=np.float32), np.array(uniforms))
    assert bool(result.is_finite_N.all())
    return result.ids_N.tolist(), result.logprobs_N.tolist()


def test_the_uniform_picks_the_token_whose_cumulative_mass_holds_it() -> None:
    logits = [[math.log(1.0), math.log(2.0), math.log(5.0)]] * 5
    ids, logprobs = drawn(logits, [1.0] * 5, [0.0, 0.124, 0.126, 0.374, 0.9999999])
    assert ids == [0, 0, 1, 1, 2]
    assert logprobs == pytest.approx([math.log(p / 8) for p in (1, 1, 2, 2, 5)], abs=1e-6)


def test_logprobs_are_of_the_scaled_distribution_and_greedy_ones_of_the_unscaled() -> None:
    row = [0.3, 2.0, -1.0]
    ids, logprobs = drawn([row, row], [2.0, 0.0], [0.999999, 0.999999])
    scaled = np.array(row) / 2.0
    assert ids == [2, 1]
    assert logprobs[0] == pytest.approx(scaled[2] - np.log(np.exp(scaled).sum()), abs=1e-6)
    assert logprobs[1] == pytest.approx(2.0 - np.log(np.exp(row).sum()), abs=1e-6)


def test_a_token_of_no_mass_is_never_drawn() -> None:
    ids, _ = drawn([[0.0, -200.0, 0.0]] * 3, [1.0] * 3, [0.4999999, 0.5000001, 1.0 - 2.0**-53])
    assert ids == [0, 2, 2]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_with_a_value_that_is_not_finite_are_told_from_the_others(bad: float, temperature: float) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, bad, 2.0]])
    result = draw(logits, np.full(2, temperature, dtype=np.float32), np.full(2, 0.5))
    assert result.is_finite_N.tolist() == [True, False]
