import itertools
import json
import math
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest

from headrace.algorithms import corrections as cx
from headrace.algorithms.diagnostics import mean_weight
from headrace.errors import ConfigError
from headrace.records.learning import corrections as named
from headrace.records.learning.choice import tag_of

ORACLE = json.loads((Path(__file__).parents[1] / "oracles" / "corrections.json").read_text())
ABS = ORACLE["tolerance"]
LENGTHS = [len(row) for row in ORACLE["old"]]
ROWS = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
LOG_RATIO = np.concatenate(ORACLE["old"]) - np.concatenate(ORACLE["behavior"])
CORRECTIONS = get_args(named.Correction)
LONE = [kind for kind in CORRECTIONS if kind is not named.NoCorrection]


def correct(*corrections, log_ratio=LOG_RATIO, rows=ROWS, advantages=None):
    return cx.correct(
        corrections,
        log_ratio,
        rows,
        num_rows=int(rows.max()) + 1,
        advantages_N=np.ones(len(rows)) if advantages is None else advantages,
    )


def by_row(values):
    return [part.tolist() for part in np.split(np.asarray(values), np.cumsum(LENGTHS)[:-1])]


def sequence_weights(log_ratio, rows, num_rows):
    """What a correction that cuts nothing gives to the tokens of each row."""
    found = correct(named.SequenceTis(bound=1e300), log_ratio=log_ratio, rows=rows)
    return found.weights_N[np.searchsorted(rows, np.arange(num_rows))]


def geometric_weights(log_ratio, rows, num_rows):
    return cx.token_weights(np.bincount(rows, weights=log_ratio) / np.bincount(rows, minlength=num_rows))


def near(value):
    return pytest.approx(value, abs=ABS)


def test_token_sequence_and_geometric_weights_are_the_known_ones():
    assert np.concatenate(by_row(cx.token_weights(LOG_RATIO))) == near(np.concatenate(ORACLE["token"]))
    assert sequence_weights(LOG_RATIO, ROWS, 5) == near(ORACLE["sequence"])
    assert geometric_weights(LOG_RATIO, ROWS, 5) == near(ORACLE["geometric"])


def test_token_tis_cuts_single_tokens():
    case = ORACLE["token_tis"]
    found = correct(named.TokenTis(bound=case["bound"]))
    assert found.weights_N == near(np.concatenate(case["weights"]))
    assert found.truncated_tokens["token_tis"] / len(ROWS) == near(case["truncated"])
    assert found.is_kept_N.all()


@pytest.mark.parametrize(("name", "kind"), [("sequence_tis", named.SequenceTis), ("sequence_mis", named.SequenceMis)])
def test_sequence_weights_stand_at_every_token(name, kind):
    case = ORACLE[name]
    found = correct(kind(bound=case["bound"]))
    assert found.weights_N == near(np.repeat(case["weights"], LENGTHS))


def test_a_sequence_mask_keeps_raw_token_weights():
    case = ORACLE["sequence_mask_tis"]
    found = correct(named.SequenceMaskTis(low=case["low"], high=case["high"]))
    assert found.weights_N == near(np.concatenate(case["weights"]))
    assert [all(row) for row in by_row(found.is_kept_N)] == case["kept"]
    assert found.removed_rows["sequence_mask_tis"] == 4


def test_icepop_and_token_mis_remove_tokens_and_leave_the_others_weighed():
    raw = np.exp(LOG_RATIO)
    pop = correct(named.IcePop(low=0.8, high=1.25))
    assert pop.weights_N == near(np.where((raw >= 0.8) & (raw <= 1.25), raw, 0.0))
    mis = correct(named.TokenMis(bound=1.25))
    assert mis.weights_N == near(np.where(raw <= 1.25, raw, 0.0))
    assert mis.removed_tokens["token_mis"] == (raw > 1.25).sum()


def test_a_geometric_mean_hides_one_impossible_token_and_the_veto_finds_it():
    case = ORACLE["hidden_outlier"]
    log_ratio = np.zeros(case["tokens"])
    log_ratio[7] = case["log_ratio"]
    rows = np.zeros(case["tokens"], dtype=np.int64)
    assert geometric_weights(log_ratio, rows, 1) == near([case["geometric"]])
    assert sequence_weights(log_ratio, rows, 1) == near([case["sequence"]])
    blind = named.GeometricMask(low=case["low"], high=case["high"], veto=None)
    assert correct(blind, log_ratio=log_ratio, rows=rows).is_kept_N.all()
    seeing = named.GeometricMask(low=case["low"], high=case["high"], veto=0.01)
    assert not correct(seeing, log_ratio=log_ratio, rows=rows).is_kept_N.any()


def test_the_token_veto_removes_whole_sequences():
    case = ORACLE["token_veto"]
    found = correct(named.TokenVeto(bound=case["bound"]))
    assert [all(row) for row in by_row(found.is_kept_N)] == case["kept"]
    assert [any(row) for row in by_row(found.is_kept_N)] == case["kept"]


def test_opsm_removes_failures_that_drifted_and_no_success():
    log_ratio = np.array([-0.3, -0.3, 0.3, 0.3, -0.3, -0.3])
    rows = np.array([0, 0, 1, 1, 2, 2])
    advantages = np.array([-1.0, -1.0, -1.0, -1.0, 1.0, 1.0])
    found = correct(named.Opsm(bound=0.1), log_ratio=log_ratio, rows=rows, advantages=advantages)
    assert found.is_kept_N.tolist() == [False, False, True, True, True, True]
    assert correct(named.Opsm(bound=0.4), log_ratio=log_ratio, rows=rows, advantages=advantages).is_kept_N.all()


def test_weights_are_held_within_a_safe_range():
    case = ORACLE["safety"]
    assert cx.token_weights(np.array(case["log_weights"])) == pytest.approx(case["weights"], rel=1e-9)


def test_an_impossible_token_has_weight_0_and_so_has_its_sequence():
    log_ratio = np.array([-math.inf, 0.3, 0.1, 0.2])
    rows = np.array([0, 0, 1, 1])
    assert cx.token_weights(log_ratio)[0] == ORACLE["impossible"]["weight_of_minus_inf"] == 0.0
    assert sequence_weights(log_ratio, rows, 2).tolist() == [0.0, pytest.approx(math.exp(0.3))]
    for kind in LONE:
        found = correct(kind(), log_ratio=log_ratio, rows=rows)
        assert np.isfinite(found.weights_N).all(), kind


def test_a_ratio_that_is_no_number_removes_its_sequence_and_never_becomes_1():
    log_ratio = np.array([math.nan, 0.0, 0.1, 0.2])
    rows = np.array([0, 0, 1, 1])
    for kind in CORRECTIONS:
        found = correct(kind(), log_ratio=log_ratio, rows=rows)
        assert found.invalid_rows == 1
        assert found.weights_N[:2].tolist() == [0.0, 0.0] != [ORACLE["impossible"]["wrong_weight_of_nan"]] * 2
        assert not found.is_counted_N[:2].any()


def test_truncated_sampling_breaks_the_support_and_the_mean_weight_shows_it():
    case = ORACLE["truncated_support"]
    full = np.array(case["full"])
    kept = np.cumsum(full) - full < case["top_p"] - 1e-9
    behavior = np.where(kept, full, 0.0) / full[kept].sum()
    assert behavior == near(case["behavior"])
    seen = np.repeat(np.log(np.array(case["policy"])[kept] / behavior[kept]), [20, 10])
    assert mean_weight(seen).mean == near(case["mean_weight"])
    assert 1 - mean_weight(seen).mean == near(case["missing_mass"])
    unfiltered = np.log(np.array(case["policy"])[kept] / full[kept])
    assert mean_weight(unfiltered).mean == near(1.0)  # recorded before truncation the loss is invisible


def _enumerated(weighting):
    """E_mu[R (W1 dlogp1 + W2 dlogp2)] over the four two-step sequences, by logit."""
    case = ORACLE["enumeration"]

    def chain(logits, first, second):
        p1 = 1 / (1 + math.exp(-logits[0]))
        p2 = 1 / (1 + math.exp(-logits[1 if first else 2]))
        return (p1 if first else 1 - p1), (p2 if second else 1 - p2), p1, p2

    gradient = np.zeros(3)
    for first, second in itertools.product((1, 0), repeat=2):
        q1, q2, p1, p2 = chain(case["policy_logits"], first, second)
        m1, m2, _, _ = chain(case["behavior_logits"], first, second)
        log_ratio = np.log([q1 / m1, q2 / m2])
        w1, w2 = weighting(log_ratio)
        score = np.zeros(3)
        score[0] += w1 * (first - p1)
        score[1 if first else 2] += w2 * (second - p2)
        gradient += m1 * m2 * case["reward"][f"{first}{second}"] * score
    return gradient


def _weights(*corrections):
    def weighting(log_ratio):
        return correct(*corrections, log_ratio=log_ratio, rows=np.zeros(2, dtype=np.int64)).weights_N

    return weighting


WEIGHTINGS = {
    "sequence": _weights(named.SequenceTis(bound=1e9)),
    "token": _weights(named.TokenTis(bound=1e9)),
    "prefix": lambda log_ratio: np.exp(np.cumsum(log_ratio)),
    "geometric": lambda log_ratio: np.repeat(geometric_weights(log_ratio, np.zeros(2, dtype=np.int64), 1), 2),
    "none": _weights(named.NoCorrection()),
    "sequence_tis": _weights(named.SequenceTis(bound=1.2)),
}


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_only_whole_sequence_weights_give_the_exact_gradient(name):
    case = ORACLE["enumeration"]
    found = _enumerated(WEIGHTINGS[name])
    assert found == near(case["gradients"][name])
    bias = float(np.linalg.norm(found - case["gradients"]["exact"]))
    assert bias == near(case["bias"][name])
    assert (bias < 1e-9) == (name == "sequence")


@pytest.mark.parametrize("kind", LONE)
def test_what_a_correction_removes_leaves_the_denominator_only_if_it_says_so(kind):
    rng = np.random.default_rng(3)
    rows = np.repeat(np.arange(8), 5)
    log_ratio = rng.normal(0, 1.5, len(rows))
    for denominator in ("original", "kept") if kind in named.MASKING else (None,):
        item = kind() if denominator is None else kind(denominator=denominator)
        found = correct(item, log_ratio=log_ratio, rows=rows, advantages=np.full(len(rows), -1.0))
        expected = found.is_kept_N if denominator == "kept" else np.ones(len(rows), dtype=bool)
        assert (found.is_counted_N == expected).all()
        assert not found.weights_N[~found.is_kept_N].any()


def test_masks_and_one_weight_compose_whatever_their_order():
    pair = (named.TokenTis(bound=1.2), named.TokenVeto(bound=0.01))
    first, second = correct(*pair), correct(*reversed(pair))
    assert (first.weights_N == second.weights_N).all()
    assert first.removed_rows == second.removed_rows == {"token_veto": 1}
    alone = correct(pair[0])
    assert (first.weights_N[first.is_kept_N] == alone.weights_N[first.is_kept_N]).all()


def test_corrections_of_parts_equal_those_of_the_whole_where_they_look_at_rows_alone():
    for kind in LONE:
        if kind is named.M2po:
            continue
        whole = correct(kind())
        parts = [correct(kind(), log_ratio=LOG_RATIO[row == ROWS], rows=ROWS[row == ROWS] * 0) for row in range(5)]
        assert (np.concatenate([part.weights_N for part in parts]) == whole.weights_N).all()


def test_fresh_data_passes_every_correction_untouched():
    for kind in CORRECTIONS:
        found = correct(kind(), log_ratio=np.zeros(len(ROWS)))
        assert (found.weights_N == 1.0).all(), kind


def test_every_correction_states_its_support_and_what_it_removes():
    assert set(cx.FACTS) == {tag_of(kind()) for kind in CORRECTIONS}
    for kind in CORRECTIONS:
        facts = cx.FACTS[tag_of(kind())]
        assert facts.support
        assert (facts.removes != "nothing") == (kind in named.MASKING)


@pytest.mark.parametrize(
    ("corrections", "anchor", "problem"),
    [
        ([named.TokenTis()], "behavior", "count twice"),
        ([named.TokenTis(), named.IcePop()], "old", "both weigh"),
        ([named.TokenVeto(), named.TokenVeto()], "behavior", "each kind once"),
        ([named.NoCorrection(), named.TokenVeto()], "old", "stands alone"),
        ([], "old", "on-policy"),
    ],
)
def test_corrections_that_contradict_each_other_are_refused(corrections, anchor, problem):
    with pytest.raises(ConfigError, match=problem):
        named.check_corrections(corrections, anchor)
    named.check_corrections([named.TokenVeto()], "behavior")
    named.check_corrections([named.NoCorrection()], "old")


def test_choices_decode_from_plain_values_and_refuse_what_is_not_theirs():
    assert msgspec.convert({"kind": "icepop", "low": 0.8}, named.Correction) == named.IcePop(low=0.8)
    with pytest.raises(msgspec.ValidationError, match="high"):
        msgspec.convert({"kind": "token_tis", "high": 2.0}, named.Correction)
