"""Weights that bring back the mix of what was offered, and where they refuse."""

import json
from pathlib import Path

import numpy as np
import pytest

from headrace.algorithms.selection import NoAcceptanceError, acceptance_weights

CASE = json.loads((Path(__file__).parents[1] / "oracles" / "selection_bias.json").read_text())["cases"][
    "inverse_acceptance"
]
OFFERED, SUCCESS = CASE["inputs"]["offered"], CASE["inputs"]["success"]
ACCEPTED = {name: share * CASE["inputs"]["accept_prob"][name] for name, share in OFFERED.items()}


def weighed_success(weights):
    """Mean success over the accepted tasks, each weighed by its stratum."""
    counts = [ACCEPTED[name] * weights[name] for name in ACCEPTED]
    return np.average([SUCCESS[name] for name in ACCEPTED], weights=counts)


def test_inverse_acceptance_brings_back_the_mean_over_all_that_was_offered():
    found = acceptance_weights(OFFERED, ACCEPTED)
    assert found.by_stratum == pytest.approx(CASE["expected"]["weights"], abs=1e-6)
    assert found.ess_fraction == pytest.approx(CASE["expected"]["ess_fraction"], abs=1e-6)
    assert weighed_success(found.by_stratum) == pytest.approx(CASE["expected"]["success"], abs=1e-6)
    as_it_is = weighed_success(dict.fromkeys(OFFERED, 1.0))
    assert as_it_is == pytest.approx(CASE["wrong"]["success_as_it_is"], abs=1e-6)
    assert as_it_is > CASE["expected"]["success"] + 0.1


def test_a_cap_is_named_raises_the_sample_size_and_leaves_a_bias():
    capped = acceptance_weights(OFFERED, ACCEPTED, cap=2.0)
    assert (capped.by_stratum["hard"], capped.capped) == (2.0, ("hard",))
    assert capped.ess_fraction > CASE["expected"]["ess_fraction"]
    between = weighed_success(capped.by_stratum)
    assert CASE["expected"]["success"] < between < CASE["wrong"]["success_as_it_is"]


def test_a_stratum_of_which_nothing_is_accepted_is_refused_by_name_and_never_weighed():
    with pytest.raises(NoAcceptanceError, match=r"acceptance of hard is 0.*`pace` or `wait`") as caught:
        acceptance_weights({"easy": 10, "hard": 4}, {"easy": 9, "hard": 0})
    assert caught.value.strata == ("hard",)


def test_counts_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="at most all can be"):
        acceptance_weights({"easy": 3}, {"easy": 4})
    with pytest.raises(ValueError, match="nothing was offered"):
        acceptance_weights({}, {})
    assert acceptance_weights({"easy": 4, "unseen": 0}, {"easy": 4}).by_stratum == {"easy": 1.0}
