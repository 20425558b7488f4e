"""The engine core against full forward passes of the same weights, and against itself."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_case import TOLERANCE, Result, collect, drain, generate, make_core, publish, rescoring_error, some_ids
from tiny_policy import POLICY, PolicyFolder, prompt, request

from headrace.errors import ConfigError, InferenceError, Outcome
from headrace.inference.core import EngineCore
from headrace.inference.options import EngineOptions
from headrace.ports import TurnTiming
from headrace.records.ids import PolicyRef
from headrace.records.segment import FinishReason
from headrace.scheduling.seniority import AGEING_TURNS, TurnLine


def test_logprobs_equal_a_full_forward_at_every_temperature(folder: PolicyFolder, deterministic: bool) -> None:
    core = make_core(folder, deterministic=deterministic)
    cases = [
        (some_ids(length, length), temperature) for length in (1, 5, 16, 33, 70) for temperature in (0.0, 0.5, 1.7)
    ]
    requests = [
        request(f"e{index}/0", prompt(*ids), max_tokens=20, temperature=temperature)
        for index, (ids, temperature) in enumerate(cases)
    ]
    for (ids, temperature), result in zip(cases, generate(core, *requests), strict=True):
        assert len(result.ids) == 20
        assert rescoring_error(folder, ids, result, temperature) < TOLERANCE


def test_greedy_takes_the_most_likely_token_each_time(folder: PolicyFolder) -> None:
    ids = some_ids(9)
    [result] = generate(make_core(folder), request("e/0", prompt(*ids), temperature=0.0, max_tokens=12))
    row = torch.from_numpy(ids.astype(np.int64))[None]
    expected = folder.model(0).generate(
        row, attention_mask=torch.ones_like(row), do_sample=False, max_new_tokens=12, eos_token_id=None, pad_token_id=0
    )
    assert result.ids == expected[0, 9:].tolist()


def test_the_next_turn_continues_on_the_parked_cache(folder: PolicyFolder) -> None:
    core = make_core(folder)
    ids = list(some_ids(40))
    [first] = generate(core, request("e/0", prompt(*ids), max_tokens=10))
    prefilled = core.stats().counters.prefill_tokens
    ids += [*first.ids, *some_ids(5, 9)]
    [second] = generate(core, request("e/1", prompt(*ids), max_tokens=10))
    assert core.stats().counters.prefill_tokens - prefilled == 5 + 1  # new ids, and the last sampled one
    assert rescoring_error(folder, ids, second) < TOLERANCE
    [fresh] = generate(make_core(folder), request("e/1", prompt(*ids), max_tokens=10))
    assert second.ids == fresh.ids
    np.testing.assert_allclose(second.logprobs, fresh.logprobs, atol=TOLERANCE)


def test_members_of_a_group_prefill_their_prompt_once(folder: PolicyFolder, deterministic: bool) -> None:
    core = make_core(folder, slots=8, deterministic=deterministic)
    ids = some_ids(65)
    results = generate(core, *(request(f"e{member}/0", prompt(*ids), max_tokens=6) for member in range(8)))
    assert core.stats().counters.prefill_tokens == 65 + 7  # the last id of each is computed for its logits
    assert len({tuple(result.ids) for result in results}) > 1
    taken = [result.timing.compute for result in results if result.timing and result.timing.compute]
    assert sorted(compute.prefill_tokens for compute in taken) == [1] * 7 + [65]
    seconds = core.stats().seconds
    assert 0 < sum(compute.prefill_s for compute in taken) < seconds["prefill"]
    assert 0 < sum(compute.decode_s for compute in taken) < seconds["decode"]
    for result in results:
        assert rescoring_error(folder, ids, result) < TOLERANCE


def test_a_stop_token_ends_the_turn_and_is_part_of_it(folder: PolicyFolder) -> None:
    ids = some_ids(7)
    [free] = generate(make_core(folder), request("e/0", prompt(*ids), max_tokens=20))
    stop = free.ids[6]
    [stopped] = generate(make_core(folder), request("e/0", prompt(*ids), max_tokens=20, stop_ids=(stop,)))
    assert stopped.ids == free.ids[: free.ids.index(stop) + 1]
    assert (stopped.finish, free.finish) == (FinishReason.STOP, FinishReason.LENGTH)


def test_a_stop_token_at_the_length_bound_is_a_stop(folder: PolicyFolder) -> None:
    ids = some_ids(7)
    [free] = generate(make_core(folder), request("e/0", prompt(*ids), max_tokens=4))
    if free.ids[3] in free.ids[:3]:
        pytest.skip("the drawn tokens repeat")
    [result] = generate(make_core(folder), request("e/0", prompt(*ids), max_tokens=4, stop_ids=(free.ids[3],)))
    assert result.finish is FinishReason.STOP


def test_an_interrupt_keeps_what_was_sampled_and_the_rest_follows_from_it(folder: PolicyFolder) -> None:
    ids = some_ids(21)
    [whole] = generate(make_core(folder), request("e/0", prompt(*ids), max_tokens=20))
    core = make_core(folder)
    core.submit(request("e/0", prompt(*ids), max_tokens=20))
    [part] = drain(core, {6: lambda: core.interrupt(["e/0"])}).values()
    assert part.finish is FinishReason.INTERRUPTED
    assert 0 < len(part.ids) < 20 and part.ids == whole.ids[: len(part.ids)]
    assert rescoring_error(folder, ids, part) < TOLERANCE
    reused = core.stats().counters.reused_tokens
    [rest] = generate(core, request("e/0#1", prompt(*ids, *part.ids), max_tokens=20 - len(part.ids)))
    assert rescoring_error(folder, [*ids, *part.ids], rest) < TOLERANCE
    assert core.stats().counters.reused_tokens > reused


def test_a_waiting_request_can_be_interrupted_before_its_first_token(folder: PolicyFolder) -> None:
    core = make_core(folder, slots=1)
    core.submit(request("e/0", prompt(1, 2), max_tokens=20))
    core.submit(request("f/0", prompt(1, 2), max_tokens=20))
    results = drain(core, {3: lambda: core.interrupt(["f/0", "unknown"])})
    assert results["f/0"].ids == [] and results["f/0"].finish is FinishReason.INTERRUPTED
    assert results["f/0"].versions == [0] and len(results["e/0"].ids) == 20


def test_an_abandoned_request_frees_its_slot_and_says_nothing_more(folder: PolicyFolder) -> None:
    core = make_core(folder, slots=1)
    core.submit(request("e/0", prompt(1, 2), max_tokens=90))
    core.step()
    core.abandon(["e/0"])
    assert core.is_idle
    core.submit(request("e/0", prompt(1, 2), max_tokens=3))
    assert len(drain(core)["e/0"].ids) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": 126}, "128 positions"),
        ({"max_tokens": 0}, "at least 1"),
        ({"pin_version": 5}, "version 5 is not served"),
        ({"policy_id": "other"}, "policy other"),
        ({"stop_ids": (48,)}, "vocabulary of 48"),
    ],
)
def test_what_can_never_be_served_is_refused_at_once(
    folder: PolicyFolder, changes: dict[str, int], message: str
) -> None:
    core = make_core(folder)
    with pytest.raises(InferenceError, match=message) as refusal:
        core.submit(request("e/0", prompt(1, 2, 3), **changes))
    assert refusal.value.outcome is Outcome.REJECTED and core.is_idle


def test_a_running_request_id_is_refused_a_second_time(folder: PolicyFolder) -> None:
    core = make_core(folder)
    core.submit(request("e/0", prompt(1)))
    with pytest.raises(InferenceError, match="still running"):
        core.submit(request("e/0", prompt(1)))
    drain(core)
    core.submit(request("e/0", prompt(1)))


def test_the_draw_of_a_token_depends_on_seed_key_and_position_alone(folder: PolicyFolder) -> None:
    ids = some_ids(10)
    [short] = generate(make_core(folder), request("e/0", prompt(*ids), max_tokens=5, seed_name="s"))
    [long] = generate(make_core(folder), request("e/0", prompt(*ids), max_tokens=30, seed_name="s"))
    [other] = generate(make_core(folder), request("e/0", prompt(*ids), max_tokens=30, seed_name="t"))
    assert long.ids[:5] == short.ids
    assert long.ids != other.ids


def test_samples_follow_the_distribution_that_their_logprobs_state(folder: PolicyFolder) -> None:
    ids, count = some_ids(6), 600
    core = make_core(folder, slots=64)
    results = generate(core, *(request(f"e{n}/0", prompt(*ids), max_tokens=1, temperature=0.8) for n in range(count)))
    with torch.inference_mode():
        logits = folder.model(0)(torch.from_numpy(ids.astype(np.int64))[None]).logits[0, -1]
    expected = count * torch.softmax(logits / 0.8, -1).numpy()
    observed = np.bincount([result.ids[0] for result in results], minlength=48)
    is_common = expected >= 5
    chi_square = float((((observed - expected) ** 2) / expected)[is_common].sum())
    degrees = int(is_common.sum())
    assert chi_square < degrees + 4 * np.sqrt(2 * degrees)


def run_mixed(folder: PolicyFolder, **options: object) -> dict[str, Result]:
    core = make_core(folder, **options)
    for index, length in enumerate((30, 7, 30, 52, 18, 3, 30, 41)):
        seed = 0 if length == 30 else index
        core.submit(request(f"e{index}/0", prompt(*some_ids(length, seed)), max_tokens=5 + 7 * (index % 4)))
    return drain(core, {11: lambda: publish(core, folder, 1)})


def test_the_same_submissions_give_the_same_bytes(folder: PolicyFolder, deterministic: bool) -> None:
    first = run_mixed(folder, deterministic=deterministic)
    second = run_mixed(folder, deterministic=deterministic)
    assert {name: result.segments for name, result in first.items()} == {
        name: result.segments for name, result in second.items()
    }


def test_neighbours_change_no_bit_in_deterministic_mode_and_some_otherwise(
    folder: PolicyFolder, deterministic: bool
) -> None:
    subject = some_ids(45)

    def run(num_neighbours: int, *, is_last: bool) -> Result:
        core = make_core(folder, slots=8, deterministic=deterministic, is_recorded=True)
        mine = request("mine/0", prompt(*subject), max_tokens=30)
        others = [
            request(f"e{n}/0", prompt(*(subject[: 20 + n] if n % 2 else some_ids(9 * n + 1, n))), max_tokens=9 + 5 * n)
            for n in range(num_neighbours)
        ]
        for item in [*others, mine] if is_last else [mine, *others]:
            core.submit(item)
        return drain(core)["mine/0"]

    alone = run(0, is_last=False)
    crowded = [run(num, is_last=is_last) for num, is_last in itertools.product((1, 7), (False, True))]
    assert all(result.segments == alone.segments for result in crowded) is deterministic
    for result in crowded:
        assert result.ids == alone.ids
        np.testing.assert_allclose(result.logprobs, alone.logprobs, atol=TOLERANCE)


def test_slots_are_given_in_order_of_arrival_pinned_or_not(folder: PolicyFolder) -> None:
    core = make_core(folder, slots=2, versions=(0, 1))
    for index in range(8):
        pin = 0 if index % 2 else None
        core.submit(request(f"e{index}/0", prompt(*some_ids(4, index)), max_tokens=6, pin_version=pin))
    # All are of one length, so they end in the order in which they began; the two of a pair end in one step.
    assert [int(name[1]) // 2 for name in drain(core)] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_long_prompt_is_prefilled_among_endless_short_ones(folder: PolicyFolder) -> None:
    core = make_core(folder, slots=4, prefill_budget=16)
    core.submit(request("long/0", prompt(*some_ids(100)), max_tokens=4))
    results: dict[str, Result] = {}
    for step in range(60):
        core.submit(request(f"s{step}/0", prompt(*some_ids(3, step)), max_tokens=3))
        collect(results, core.step())
        if "long/0" in results:
            break
    assert len(results["long/0"].ids) == 4
    assert step < 25


def _steps_of_a_long_trajectory(folder: PolicyFolder, num_short: int, ageing_turns: int) -> int:
    """Steps that a trajectory of twenty turns takes beside endless sequences of trajectories of one turn."""
    core, step, turn = make_core(folder), 0, 0
    core._lineup.waiting = TurnLine(ageing_turns)
    # Of several lengths, so that slots come free one by one.
    shorts = (request(f"short{index}/0", prompt(1, 2, 3), max_tokens=2 + index % 4) for index in itertools.count())
    for short in itertools.islice(shorts, num_short):
        core.submit(short)
    core.submit(request("long/0", prompt(*some_ids(20)), max_tokens=4))
    while True:
        step += 1
        ended = [output.request_id for output in core.step() if isinstance(output.item, TurnTiming)]
        for name in ended:
            if not name.startswith("long"):
                core.submit(next(shorts))
            elif turn == 19:
                return step
            else:
                turn += 1
                core.submit(request(f"long/{turn}", prompt(*some_ids(20 + 4 * turn)), max_tokens=4))


def test_a_long_trajectory_among_endless_short_ones_takes_at_most_three_times_its_steps_alone(
    folder: PolicyFolder,
) -> None:
    alone = _steps_of_a_long_trajectory(folder, 0, AGEING_TURNS)
    assert _steps_of_a_long_trajectory(folder, 32, AGEING_TURNS) <= 3 * alone
    assert _steps_of_a_long_trajectory(folder, 32, ageing_turns=0) > 6 * alone


def test_score_equals_the_trainer_s_view_and_the_behaviour(folder: PolicyFolder) -> None:
    core = make_core(folder, versions=(0, 1))
    rows = [some_ids(length, length) for length in (2, 31, 128)]
    for version in (0, 1):
        for ids_T, score in zip(rows, core.score(rows, version), strict=True):
            np.testing.assert_allclose(score, folder.logprobs(version, ids_T), atol=1e-5)
    with pytest.raises(InferenceError, match="version 7 is not held"):
        core.score(rows, 7)


def test_logits_that_are_not_finite_fail_the_request_and_poison_nobody(folder: PolicyFolder) -> None:
    core = make_core(folder, slots=2)
    model = folder.model(0)
    state = {name: tensor * 1e30 if "lm_head" in name else tensor for name, tensor in model.state_dict().items()}
    state["model.norm.weight"] = state["model.norm.weight"] * 1e30
    core.stage(PolicyRef(POLICY, 1), folder.write(state))
    core.submit(request("e/0", prompt(*some_ids(5)), max_tokens=60, pin_version=0))
    core.activate(PolicyRef(POLICY, 1), frozenset())
    core.submit(request("f/0", prompt(*some_ids(6)), max_tokens=8))
    results = drain(core)
    assert results["f/0"].failure is not None and "not finite" in results["f/0"].failure
    assert results["f/0"].segments == []
    assert rescoring_error(folder, some_ids(5), results["e/0"]) < TOLERANCE
    with pytest.raises(InferenceError, match="not finite"):
        core.score([some_ids(5)], 1)
    publish(core, folder, 2)
    [healthy] = generate(core, request("g/0", prompt(*some_ids(50)), max_tokens=20))
    assert rescoring_error(folder, some_ids(50), healthy) < TOLERANCE


def test_state_times_sum_to_wall_time(folder: PolicyFolder) -> None:
    core = make_core(folder)
    generate(core, request("e/0", prompt(*some_ids(50)), max_tokens=20))
    core.score([some_ids(20)], 0)
    stats = core.stats()
    assert sum(stats.seconds.values()) == pytest.approx(stats.wall_s, abs=1e-9)
    assert {"idle", "prefill", "decode", "sync", "score"} == set(stats.seconds)
    assert stats.counters.decoded_tokens == 20 and stats.counters.turns == 1


@pytest.mark.parametrize("changes", [{"slots": 0}, {"context": 4096}, {"prefill_chunk": 0}])
def test_options_out_of_bounds_name_the_option(folder: PolicyFolder, changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        make_core(folder, **changes)


def test_a_model_with_sliding_windows_is_refused(tmp_path: Path) -> None:
    from transformers import MistralConfig

    MistralConfig(
        vocab_size=48,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=16,
    ).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="full attention"):
        EngineCore(EngineOptions(), tmp_path, lambda address: tmp_path / address, lambda: 0.0)
