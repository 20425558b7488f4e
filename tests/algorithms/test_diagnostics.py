import json
import math
from pathlib import Path

import numpy as np
import pytest

from headrace.algorithms import diagnostics as dx

FOLDER = Path(__file__).parents[1] / "oracles"
ORACLE = json.loads((FOLDER / "weights.json").read_text())
KL = json.loads((FOLDER / "kl.json").read_text())
ABS = ORACLE["tolerance"]


def near(value):
    return pytest.approx(value, abs=ABS)


def logs(weights):
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(weights, dtype=float))


def expand(pairs):
    return np.array([value for value, count in pairs for _ in range(count)])


def test_kish_is_the_square_of_the_sum_over_the_sum_of_squares():
    case = ORACLE["kish"]
    result = dx.effective_sample_size(logs(case["weights"]))
    assert (result.size, result.fraction) == (near(case["size"]), near(case["fraction"]))
    assert result.fraction == near(1 / (1 + case["squared_variation"]))


def test_kish_is_blind_to_a_common_factor_and_the_mean_weight_is_not():
    case = ORACLE["scaled"]
    assert dx.effective_sample_size(logs(case["weights"])).size == near(case["size"])
    lost = logs([0.01] * 8)
    assert dx.effective_sample_size(lost).fraction == near(1.0)
    assert dx.mean_weight(lost).mean == near(0.01)
    assert dx.mean_weight(lost).z < -4


def test_truncated_weights_hide_the_tail_that_raw_weights_show():
    case = ORACLE["clamped"]
    weights = expand(case["weights"])
    assert dx.effective_sample_size(logs(weights)).size == near(case["size_raw"])
    clamped = dx.effective_sample_size(logs(np.minimum(weights, case["bound"])))
    assert clamped.size == near(case["wrong_size_clamped"])


def test_rejected_items_keep_weight_zero_and_stay_in_the_count():
    case = ORACLE["rejected"]
    result = dx.effective_sample_size(logs(case["weights"]))
    assert (result.size, result.fraction) == (near(case["size"]), near(case["fraction"]))
    assert dx.effective_sample_size([-math.inf] * 3).size == 0.0


def test_sequence_weights_degenerate_where_token_weights_look_perfect():
    case = ORACLE["token_and_sequence"]
    per_token = np.repeat(case["token_log_ratios"], case["tokens_per_sequence"])
    assert dx.effective_sample_size(per_token).fraction == near(case["wrong_fraction_of_tokens"])
    sequences = np.array(case["token_log_ratios"]) * case["tokens_per_sequence"]
    assert np.exp(sequences) == near(case["sequence_weights"])
    assert dx.effective_sample_size(sequences).fraction == near(case["fraction_of_sequences"])


def test_a_mode_that_was_never_sampled_shows_in_the_mean_weight_alone():
    case = ORACLE["missed_mode"]
    ratios = np.array(case["policy"]) / case["behaviour"]
    assert case["behaviour"][0] ** case["samples"] == near(case["probability_of_no_sample"])
    seen = logs([ratios[0]] * case["samples"])
    assert dx.effective_sample_size(seen).fraction == near(case["fraction_seen"])
    assert dx.mean_weight(seen).z == -math.inf
    whole = logs([ratios[0]] * 999 + [ratios[1]])
    assert dx.effective_sample_size(whole).fraction == near(case["true_fraction"])


def test_the_fraction_tends_to_one_over_one_plus_chi_squared():
    case = ORACLE["chi_squared"]
    behaviour, policy = np.array(case["behaviour"]), np.array(case["policy"])
    assert float((policy**2 / behaviour).sum()) - 1 == near(case["chi_squared"])
    population = logs(np.repeat(policy / behaviour, np.round(behaviour * 10).astype(int)))
    assert dx.effective_sample_size(population).fraction == near(case["fraction"])


def test_the_mean_weight_comes_with_its_standard_error():
    case = ORACLE["kish"]
    result = dx.mean_weight(logs(case["weights"]))
    assert (result.mean, result.standard_error, result.z) == (near(case["mean"]), near(case["standard_error"]), near(1))


def test_weights_beyond_the_range_of_a_float_still_have_a_sample_size():
    far = [2000.0, 2000.0, 1990.0]
    assert dx.effective_sample_size(far).size == pytest.approx(2.0, abs=1e-3)
    assert dx.mean_weight(far).mean == math.inf
    assert math.isfinite(dx.mean_weight([-2000.0, -2001.0]).mean)
    assert dx.tail(far).largest_share == pytest.approx(0.5, abs=1e-4)


def test_the_tail_reports_quantiles_and_the_share_of_the_largest():
    case = ORACLE["tail"]
    result = dx.tail(expand(case["log_weights"]))
    for name, value in case["expected"].items():
        assert getattr(result, name) == near(value), name


def test_the_pareto_shape_of_known_weights_is_found():
    case = ORACLE["pareto"]
    ranks = (np.arange(1, case["num_weights"] + 1) - 0.5) / case["num_weights"]
    log_weights = -case["shape_of_the_weights"] * np.log(ranks)
    assert dx.pareto_k_hat(log_weights) == near(case["k_hat"])
    prior = dx.pareto_k_hat(log_weights, has_prior=True)
    assert prior == near((40 * case["k_hat"] + 5) / 50)
    # Hill 1975, equation 2: the mean log excess of the largest weights estimates the same shape.
    largest = np.sort(log_weights)[-case["num_exceedances"] - 1 :]
    assert (largest[1:] - largest[0]).mean() == pytest.approx(case["shape_of_the_weights"], abs=0.03)


def test_few_or_equal_weights_have_no_pareto_shape():
    assert dx.pareto_k_hat([0.0] * 10) is None
    assert dx.pareto_k_hat([0.0] * 100) is None


@pytest.mark.parametrize("bad", [[], [math.nan], [math.inf, 0.0]])
def test_weights_without_a_meaning_are_refused(bad):
    for diagnostic in (dx.effective_sample_size, dx.mean_weight, dx.tail, dx.pareto_k_hat):
        with pytest.raises(ValueError, match="weight"):
            diagnostic(bad)


def test_kl_estimators_have_their_known_values_per_token():
    ratio = np.array(KL["policy"]) - KL["reference"]
    for name, estimator in (("k1", dx.kl_k1), ("k2", dx.kl_k2), ("k3", dx.kl_k3)):
        assert estimator(ratio) == near(KL[name])


def test_k1_and_k3_are_unbiased_for_the_kl_and_k2_is_not():
    case = KL["exact"]
    policy, reference = (np.exp(v) / np.exp(v).sum() for v in (case["policy_logits"], case["reference_logits"]))
    ratio = np.log(policy / reference)
    means = {
        name: float((policy * f(ratio)).sum()) for name, f in (("k1", dx.kl_k1), ("k2", dx.kl_k2), ("k3", dx.kl_k3))
    }
    assert means["k1"] == near(case["kl"])
    assert means["k3"] == near(case["kl"])
    assert means["k2"] == near(case["mean_k2"])
    assert means["k2"] != pytest.approx(case["kl"], abs=1e-3)
    for name, f in (("k1", dx.kl_k1), ("k3", dx.kl_k3)):
        variance = float((policy * f(ratio) ** 2).sum()) - means[name] ** 2
        assert variance == near(case[f"variance_{name}"])
    assert float((reference * dx.kl_k3(-ratio)).sum()) == near(case["wrong_direction"])


def test_k3_keeps_its_digits_where_the_policies_nearly_agree():
    assert dx.kl_k3([1e-9])[0] == pytest.approx(5e-19, rel=0.2, abs=1e-24) or dx.kl_k3([1e-9])[0] == 0.0
    assert dx.kl_k3([1e-4])[0] == pytest.approx(5e-9, rel=1e-3)
