"""`on_swap = keep_kv`: a running sequence goes on in the cache that older versions computed, and says so."""

from pathlib import Path

import numpy as np
import torch
from engine_case import TOLERANCE, Result, drain, generate, make_core, publish, rescoring_error, some_ids
from tiny_policy import PolicyFolder, prompt, request
from transformers import DynamicCache

from headrace.records.arrays import FloatArray, IntArray
from headrace.records.segment import Origin, TokenSegment


def in_one_cache(folder: PolicyFolder, prompt_ids: IntArray, result: Result) -> FloatArray:
    """Log-probs of the sampled tokens, each by the model of its version in the one cache that all of them wrote."""
    cache, fed = DynamicCache(), torch.from_numpy(prompt_ids.astype(np.int64))[None]
    found = []
    with torch.inference_mode():
        for segment in result.segments:
            assert segment.policy is not None
            model = folder.model(segment.policy.version)
            for token in segment.ids_T:
                logits = model(input_ids=fed, past_key_values=cache, use_cache=True).logits[0, -1]
                found.append(float(torch.log_softmax(logits.float(), -1)[int(token)]))
                fed = torch.tensor([[int(token)]])
    return np.array(found, dtype=np.float32)


def test_log_probs_are_those_of_each_version_in_the_cache_of_all(folder: PolicyFolder, deterministic: bool) -> None:
    core = make_core(folder, on_swap="keep_kv", deterministic=deterministic)
    prompts = {f"e{index}/0": some_ids(length, index) for index, length in enumerate((3, 20, 40, 11))}
    for name, ids in prompts.items():
        core.submit(request(name, prompt(*ids), max_tokens=24))
    results = drain(core, {9: lambda: publish(core, folder, 1), 15: lambda: publish(core, folder, 2)})
    for name, ids in prompts.items():
        result = results[name]
        assert result.versions == [0, 1, 2]
        assert [segment.context_version_min for segment in result.segments] == [0, 0, 0]
        assert np.abs(in_one_cache(folder, ids, result) - result.logprobs).max() < TOLERANCE
        # The checker of the other tests must see what these tokens are: of no single version.
        assert rescoring_error(folder, ids, result) > 100 * TOLERANCE
        assert result.timing is not None and result.timing.preemptions == 0
    assert core.stats().counters.rebuilt_tokens == 0


def test_a_mixed_cache_serves_its_turn_and_nothing_after_it(folder: PolicyFolder) -> None:
    core, ids = make_core(folder, on_swap="keep_kv"), some_ids(40)
    core.submit(request("e/0", prompt(*ids), max_tokens=12))
    first = drain(core, {5: lambda: publish(core, folder, 1)})["e/0"]
    assert first.versions == [0, 1]
    longer = (*prompt(*ids), *first.segments, TokenSegment(Origin.TEMPLATE, prompt(5, 6)[0].ids))
    reused = core.stats().counters.reused_tokens
    [second, other] = generate(core, request("e/1", longer), request("f/0", prompt(*ids)))
    assert core.stats().counters.reused_tokens - reused < len(ids)  # of one another at most, never of the first turn
    whole = np.concatenate([segment.ids_T for segment in longer])
    for result, prefix in ((second, whole), (other, ids)):
        assert [segment.context_version_min for segment in result.segments] == [1]
        assert rescoring_error(folder, prefix, result) < TOLERANCE


def test_a_sequence_that_is_still_prefilled_starts_over_and_is_counted(folder: PolicyFolder) -> None:
    core, ids = make_core(folder, on_swap="keep_kv", prefill_budget=16), some_ids(60)
    core.submit(request("e/0", prompt(*ids), max_tokens=6))
    core.step()
    assert publish(core, folder, 1) == 16
    result = drain(core)["e/0"]
    assert (result.versions, [segment.context_version_min for segment in result.segments]) == ([1], [1])
    assert rescoring_error(folder, ids, result) < TOLERANCE


def test_a_pinned_request_keeps_its_version_beside_a_kept_cache(folder: PolicyFolder) -> None:
    core, ids = make_core(folder, on_swap="keep_kv"), some_ids(12)
    core.submit(request("e/0", prompt(*ids), max_tokens=20, pin_version=0))
    core.submit(request("f/0", prompt(*ids), max_tokens=20))
    results = drain(core, {5: lambda: publish(core, folder, 1)})
    assert (results["e/0"].versions, results["f/0"].versions) == ([0], [0, 1])
    assert rescoring_error(folder, ids, results["e/0"]) < TOLERANCE


def test_the_same_swap_gives_the_same_bytes(folder: PolicyFolder, deterministic: bool, tmp_path: Path) -> None:
    def one() -> list[bytes]:
        core = make_core(folder, on_swap="keep_kv", deterministic=deterministic)
        for index in range(6):
            core.submit(request(f"e{index}/0", prompt(*some_ids(9 + index, index)), max_tokens=18))
        results = drain(core, {7: lambda: publish(core, folder, 1)})
        return [segment.behavior_logprobs or b"" for name in sorted(results) for segment in results[name].segments]

    assert one() == one()
