"""Versions in the engine core: what a swap does to turns and caches, and which version serves a request."""

import numpy as np
import numpy.typing as npt
import pytest
from engine_case import TOLERANCE, drain, generate, make_core, publish, rescoring_error, some_ids
from tiny_policy import POLICY, PolicyFolder, prompt, request

from headrace.errors import InferenceError, Outcome
from headrace.inference.rows import Rows
from headrace.records.ids import PolicyRef


def test_a_swap_in_mid_turn_cuts_the_segment_and_both_versions_rescore(
    folder: PolicyFolder, deterministic: bool
) -> None:
    core = make_core(folder, deterministic=deterministic)
    prompts = {f"e{index}/0": some_ids(length, index) for index, length in enumerate((3, 20, 40, 40, 11))}
    for name, ids in prompts.items():
        core.submit(request(name, prompt(*ids), max_tokens=24))
    results = drain(core, {9: lambda: publish(core, folder, 1), 15: lambda: publish(core, folder, 2)})
    assert results["e0/0"].versions == [0, 1, 2]
    assert results["e4/0"].versions[-1] == 2
    for name, ids in prompts.items():
        result = results[name]
        assert len(result.ids) == 24
        assert all(
            segment.context_version_min == segment.policy.version for segment in result.segments if segment.policy
        )
        assert [segment.finish for segment in result.segments[:-1]] == [None] * (len(result.segments) - 1)
        assert rescoring_error(folder, ids, result) < TOLERANCE
        assert result.timing is not None and result.timing.preemptions == len(result.segments) - 1


def test_rebuilt_tokens_are_the_cached_ones_that_a_swap_threw_away(folder: PolicyFolder) -> None:
    core = make_core(folder)
    core.submit(request("e/0", prompt(*some_ids(20)), max_tokens=24))
    for _ in range(5):
        core.step()
    assert publish(core, folder, 1) == 20 + 5  # each step caches one more, the first one the prefix too
    assert core.stats().counters.rebuilt_tokens == 25
    prefilled = core.stats().counters.prefill_tokens
    drain(core)
    assert core.stats().counters.prefill_tokens == prefilled + 20 + 6  # all ids, the last sampled one too


def test_a_pinned_request_is_not_touched_by_a_swap(folder: PolicyFolder) -> None:
    ids = some_ids(12)
    [alone] = generate(make_core(folder), request("e/0", prompt(*ids), max_tokens=30))
    core = make_core(folder)
    core.submit(request("e/0", prompt(*ids), max_tokens=30, pin_version=0))
    core.submit(request("f/0", prompt(*ids), max_tokens=30))
    results = drain(core, {5: lambda: publish(core, folder, 1)})
    assert results["e/0"].versions == [0] and results["e/0"].ids == alone.ids
    assert results["e/0"].timing is not None and results["e/0"].timing.preemptions == 0
    assert results["f/0"].versions == [0, 1]
    assert core.bank.held == (1,)  # nothing runs on version 0 any more


def test_a_kept_version_serves_pinned_requests_after_a_swap(folder: PolicyFolder) -> None:
    core = make_core(folder, versions=(0, 1))
    ids = some_ids(30)
    old, new = generate(
        core, request("e/0", prompt(*ids), pin_version=0, seed_name="s"), request("f/0", prompt(*ids), seed_name="s")
    )
    assert (old.versions, new.versions) == ([0], [1])
    assert rescoring_error(folder, ids, old) < TOLERANCE
    assert rescoring_error(folder, ids, new) < TOLERANCE
    publish(core, folder, 2)
    with pytest.raises(InferenceError, match="version 0 is not served") as refusal:
        core.submit(request("g/0", prompt(*ids), pin_version=0))
    assert refusal.value.outcome is Outcome.REJECTED


class ForgetfulRows(Rows):
    """The seeded bug: caches are matched and taken over whatever their version."""

    def _has_version(self, version: int) -> npt.NDArray[np.bool_]:
        return np.ones(len(self.version_S), dtype=np.bool_)

    def assign(self, slot: int, version: int) -> None:
        self.version_S[:] = version


@pytest.mark.parametrize("is_forgetful", [False, True])
def test_a_cache_key_that_forgets_the_version_would_be_caught(folder: PolicyFolder, is_forgetful: bool) -> None:
    core = make_core(folder)
    if is_forgetful:
        core.rows.__class__ = ForgetfulRows
    ids = some_ids(40)
    generate(core, request("e/0", prompt(*ids)))
    publish(core, folder, 1)
    [result] = generate(core, request("f/0", prompt(*ids)))
    assert result.versions == [1]
    assert (rescoring_error(folder, ids, result) > 1e-2) is is_forgetful


def test_an_older_version_never_serves_a_request(folder: PolicyFolder) -> None:
    core = make_core(folder)
    with pytest.raises(InferenceError, match="older than 1") as refusal:
        core.submit(request("e/0", prompt(1), min_version=1))
    assert refusal.value.outcome is Outcome.REJECTED and core.is_idle


def test_nothing_is_served_before_a_version_is_active(folder: PolicyFolder) -> None:
    core = make_core(folder, versions=())
    core.stage(PolicyRef(POLICY, 0), folder.publish(0))
    with pytest.raises(InferenceError, match="no version is active"):
        core.submit(request("e/0", prompt(1)))
