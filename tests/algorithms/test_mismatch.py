import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from headrace.algorithms.diagnostics import effective_sample_size
from headrace.algorithms.mismatch import mismatch

ORACLE = json.loads((Path(__file__).parents[1] / "oracles" / "mismatch.json").read_text())
TRAINER, BEHAVIOR = (np.concatenate(ORACLE[name]) for name in ("trainer", "behavior"))
ROWS = np.repeat(np.arange(2), [len(row) for row in ORACLE["trainer"]])


def test_every_figure_is_the_known_one():
    found = dataclasses.asdict(mismatch(TRAINER, BEHAVIOR, ROWS))
    assert set(found) == set(ORACLE["figures"])
    for name, value in ORACLE["figures"].items():
        assert found[name] == pytest.approx(value, abs=ORACLE["tolerance"]), name


def test_the_direction_is_behaviour_against_trainer_and_the_other_one_differs():
    there, back = mismatch(TRAINER, BEHAVIOR, ROWS), mismatch(BEHAVIOR, TRAINER, ROWS)
    assert there.kl_k1 == pytest.approx(-back.kl_k1)
    assert there.kl_k1 < 0.0 < back.kl_k1  # k1 of a finite sample may be negative, and that is no error
    assert there.kl_k3 != pytest.approx(back.kl_k3, abs=1e-4)


def test_engines_that_agree_bit_for_bit_have_no_mismatch_at_all():
    found = mismatch(BEHAVIOR, BEHAVIOR, ROWS)
    ones = {"mean_exp_abs", "perplexity_ratio", "correlation"}
    for name, value in dataclasses.asdict(found).items():
        if "perplexity" in name and "difference" not in name and "ratio" not in name:
            continue
        assert value == (1.0 if name in ones else 0.0), name
    assert effective_sample_size(np.zeros(4)).fraction == 1.0


def test_rows_are_told_apart_by_number_not_by_place():
    assert mismatch(TRAINER, BEHAVIOR, ROWS + 5) == mismatch(TRAINER, BEHAVIOR, ROWS)
    with pytest.raises(ValueError, match="no token"):
        mismatch(TRAINER[:0], BEHAVIOR[:0], ROWS[:0])
