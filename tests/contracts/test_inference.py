"""The contract of the Inference port, run against every implementation.

An implementation is an async context manager that yields a `Subject`. Versions only rise and request ids are never reused
within one subject, so a scenario may run on an engine that has served others.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterator

import msgspec
import numpy as np
import pytest
from contracts.engines import CONTEXT, ENGINES, OPTIONS, TIMEOUT_S, VLLM_CONTEXT, Subject
from tiny_policy import POLICY, VOCABULARY, PolicyFolder, prompt
from vllm_case import NEEDS_VLLM

from headrace.errors import InferenceError, Outcome
from headrace.records.arrays import as_float32
from headrace.records.ids import Address, PolicyRef
from headrace.records.segment import FinishReason
from headrace.simulation.scripted import ScriptedInference

Scenario = Callable[[Subject], Awaitable[None]]
Run = Callable[[Scenario], None]


@pytest.fixture(
    scope="module",
    params=[
        "inline",
        pytest.param("child", marks=pytest.mark.slow),
        "scripted",
        pytest.param("vllm", marks=NEEDS_VLLM),
        pytest.param("vllm keep_kv", marks=NEEDS_VLLM),
    ],
)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(engine: str, tmp_path_factory: pytest.TempPathFactory) -> PolicyFolder:
    is_small = "vllm" not in engine  # its kernels take no heads smaller than 32
    return PolicyFolder.create(
        tmp_path_factory.mktemp("policy"),
        context=CONTEXT if is_small else VLLM_CONTEXT,
        width=32 if is_small else 128,
        is_tied=not is_small,
    )


@pytest.fixture(scope="module")
def run(engine: str, folder: PolicyFolder) -> Iterator[Run]:
    """Runs a scenario on the module's engine of this kind, which has a version active."""
    with asyncio.Runner() as runner:
        opened = ENGINES[engine](folder)
        subject = runner.run(opened.__aenter__())
        runner.run(subject.publish())
        yield lambda scenario: runner.run(asyncio.wait_for(scenario(subject), TIMEOUT_S))
        runner.run(opened.__aexit__(None, None, None))


async def refused(call: Awaitable[object]) -> Outcome:
    with pytest.raises(InferenceError) as error:
        await call
    return error.value.outcome


def test_a_turn_is_segments_of_the_active_version_then_its_timing(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        item = subject.request(max_tokens=20, temperature=0.7)
        segments, timing = await subject.turn(item)
        assert [segment.policy for segment in segments] == [PolicyRef(POLICY, subject.version)]
        assert segments[0].sampling == item.sampling and segments[0].context_version_min == subject.version
        assert segments[-1].finish in (FinishReason.STOP, FinishReason.LENGTH)
        assert timing.wait_s >= 0 and timing.generate_s >= 0 and timing.preemptions == 0

    run(scenario)


def test_a_turn_that_reaches_its_budget_ends_by_length(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        segments, _ = await subject.turn(subject.request(max_tokens=2))
        assert segments[-1].finish is FinishReason.LENGTH and sum(map(len, segments)) == 2

    run(scenario)


def test_the_same_seed_key_and_version_give_the_same_tokens(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        item = subject.request(max_tokens=12, seed_name="same")
        again = msgspec.structs.replace(item, request_id=item.request_id + "#1")
        (first, _), (second, _) = await subject.turn(item), await subject.turn(again)
        assert [segment.ids for segment in first] == [segment.ids for segment in second]

    run(scenario)


def test_many_requests_at_once_all_end(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        requests = [subject.request(max_tokens=1 + 3 * index) for index in range(20)]
        turns = await asyncio.gather(*map(subject.turn, requests))
        assert all(timing.wait_s >= 0 for _, timing in turns)

    run(scenario)


def test_prompts_that_together_are_longer_than_a_step_all_get_their_tokens(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        prompts = [prompt(*np.roll(np.arange(400) % VOCABULARY, index).tolist()) for index in range(OPTIONS.slots)]
        requests = [dataclasses.replace(subject, prefix=prefix).request(max_tokens=2) for prefix in prompts]
        turns = await asyncio.gather(*map(subject.turn, requests))
        assert [sum(map(len, segments)) for segments, _ in turns] == [2] * OPTIONS.slots

    run(scenario)


def test_new_weights_cut_a_running_turn_and_versions_never_fall(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        before = subject.version
        subject.make(3)
        turn = await subject.start(subject.request())
        for _ in range(3):
            await subject.turn(subject.request(max_tokens=2))  # behind it in line, so it has gone on meanwhile
            await subject.publish()
        segments, timing = await turn
        versions = [segment.policy.version for segment in segments if segment.policy]
        assert versions == [before, before + 1, before + 2, before + 3]
        assert all(
            segment.context_version_min is not None and segment.context_version_min <= version
            for segment, version in zip(segments, versions, strict=True)
        )
        assert timing.preemptions == 3

    run(scenario)


def test_a_pinned_turn_is_cut_by_nothing(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        pinned = subject.version
        turn = await subject.start(subject.request(pin_version=pinned))
        for _ in range(3):
            await subject.turn(subject.request(max_tokens=2))
            await subject.publish(pinned)
        segments, timing = await turn
        assert {segment.policy.version for segment in segments if segment.policy} == {pinned}
        assert timing.preemptions == 0
        if not subject.holds_many:
            return
        kept, _ = await subject.turn(subject.request(pin_version=pinned, max_tokens=3))
        assert {segment.policy.version for segment in kept if segment.policy} == {pinned}
        await subject.publish()
        assert await refused(subject.turn(subject.request(pin_version=pinned))) is Outcome.REJECTED

    run(scenario)


def test_a_staged_version_serves_nobody_before_it_is_active(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        policy = await subject.stage()
        segments, _ = await subject.turn(subject.request(max_tokens=3))
        assert {segment.policy.version for segment in segments if segment.policy} == {subject.version}
        await subject.inference.activate(policy, frozenset(), TIMEOUT_S)
        subject.version = policy.version

    run(scenario)


def test_an_interrupted_turn_ends_with_what_it_has(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        item = subject.request()
        turn = await subject.start(item)
        await subject.turn(subject.request(max_tokens=2))  # behind it in line, so it has begun
        await subject.inference.interrupt([item.request_id, "train.999.0.0/0"], TIMEOUT_S)
        segments, _ = await turn
        assert segments[-1].finish is FinishReason.INTERRUPTED
        assert sum(map(len, segments)) < item.max_tokens

    run(scenario)


def test_a_paused_engine_computes_nothing_keeps_what_it_has_and_goes_on(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        before = subject.version
        turn = await subject.start(subject.request())
        await subject.turn(subject.request(max_tokens=2))  # behind it in line, so it has begun
        paused = await subject.inference.pause(TIMEOUT_S)
        assert paused == await subject.inference.pause(TIMEOUT_S)
        late = await subject.start(subject.request(max_tokens=2))
        await subject.publish()  # stages and activates; an engine that went on would have stepped by now
        resumed = await subject.inference.resume(TIMEOUT_S)
        assert paused.running == 1 and paused.computed_tokens > 0
        assert resumed.computed_tokens == paused.computed_tokens
        segments, _ = await turn
        assert [segment.policy.version for segment in segments if segment.policy] == [before, subject.version]
        assert sum(map(len, segments)) > 2
        assert [segment.policy.version for segment in (await late)[0] if segment.policy] == [subject.version]

    run(scenario)


def test_a_paused_engine_still_gives_back_an_interrupted_turn(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        item = subject.request()
        turn = await subject.start(item)
        await subject.turn(subject.request(max_tokens=2))
        await subject.inference.pause(TIMEOUT_S)
        await subject.inference.interrupt([item.request_id], TIMEOUT_S)
        if not isinstance(subject.inference, ScriptedInference):
            segments, _ = await turn
        await subject.inference.resume(TIMEOUT_S)
        segments, _ = await turn
        assert segments[-1].finish is FinishReason.INTERRUPTED
        assert 0 < sum(map(len, segments)) < item.max_tokens

    run(scenario)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tokens": 1 << 20},
        {"max_tokens": 0},
        {"pin_version": 10_000},
        {"min_version": 10_000},
        {"policy_id": "another"},
    ],
    ids=["too long", "no tokens", "version not held", "older than needed", "other policy"],
)
def test_what_cannot_be_served_is_rejected(run: Run, changes: dict[str, object]) -> None:
    async def scenario(subject: Subject) -> None:
        assert await refused(subject.turn(subject.request(**changes))) is Outcome.REJECTED

    run(scenario)


def test_a_request_that_is_still_running_is_rejected_a_second_time(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        item = subject.request()
        turn = await subject.start(item)
        await subject.turn(subject.request(max_tokens=2))
        assert await refused(subject.turn(item)) is Outcome.REJECTED
        await subject.inference.interrupt([item.request_id], TIMEOUT_S)
        await turn

    run(scenario)


def test_a_turn_beyond_its_deadline_is_lost_and_its_id_is_free_again(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        item = subject.request()
        assert await refused(subject.turn(item, timeout_s=0.02)) is Outcome.LOST
        segments, _ = await subject.turn(msgspec.structs.replace(item, max_tokens=2))
        assert sum(map(len, segments)) <= 2

    run(scenario)


def test_a_consumer_that_leaves_does_not_hold_up_the_others(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        turns = [await subject.start(subject.request()) for _ in range(OPTIONS.slots)]
        for turn in turns:
            turn.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*turns, return_exceptions=True)
        )
        _, timing = await subject.turn(subject.request(max_tokens=2))
        assert timing.generate_s < TIMEOUT_S

    run(scenario)


def test_weights_that_do_not_exist_are_rejected_and_cannot_be_activated(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        policy = PolicyRef(POLICY, next(subject.versions))
        assert await refused(subject.inference.stage(policy, Address("0" * 64), TIMEOUT_S)) is Outcome.REJECTED
        assert await refused(subject.inference.activate(policy, frozenset(), TIMEOUT_S)) is Outcome.REJECTED

    run(scenario)


def test_a_version_is_never_reused_for_other_weights(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        policy = await subject.stage()
        await subject.inference.stage(policy, subject.weights(policy.version), TIMEOUT_S)
        other = subject.weights(policy.version + 1)
        assert await refused(subject.inference.stage(policy, other, TIMEOUT_S)) is Outcome.REJECTED

    run(scenario)


def test_scores_are_one_logprob_per_token_after_the_first(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        rows = [np.arange(length, dtype=np.int32) for length in (2, 17)]
        scores = await subject.inference.score(rows, subject.version, TIMEOUT_S)
        again = await subject.inference.score(rows, subject.version, TIMEOUT_S)
        assert [len(as_float32(score)) for score in scores] == [1, 16] and scores == again
        for score in scores:
            assert np.isfinite(as_float32(score)).all() and as_float32(score).max() <= 0
        assert await refused(subject.inference.score(rows, 10_000, TIMEOUT_S)) is Outcome.REJECTED

    run(scenario)


def test_what_was_staged_is_taken_back_by_activating_the_active_version(run: Run) -> None:
    async def scenario(subject: Subject) -> None:
        before = PolicyRef(POLICY, subject.version)
        rows = [np.arange(9, dtype=np.int32)]
        known = await subject.inference.score(rows, before.version, TIMEOUT_S)
        turn = await subject.start(subject.request())
        await subject.turn(subject.request(max_tokens=2))
        policy = await subject.stage()
        assert await subject.inference.score(rows, policy.version, TIMEOUT_S) != known
        await subject.inference.activate(before, frozenset(), TIMEOUT_S)
        assert await subject.inference.score(rows, before.version, TIMEOUT_S) == known
        with contextlib.suppress(InferenceError):  # an engine that had loaded it in place may have lost the turn
            segments, _ = await turn
            assert {segment.policy for segment in segments} == {before}
        segments, _ = await subject.turn(subject.request(max_tokens=2))
        assert {segment.policy for segment in segments} == {before}

    run(scenario)


def test_scores_are_those_of_the_weights_that_the_version_names(run: Run, engine: str, folder: PolicyFolder) -> None:
    if engine == "scripted":
        pytest.skip("its weights are no model")

    async def scenario(subject: Subject) -> None:
        row = np.arange(17, dtype=np.int32)
        (score,) = await subject.inference.score([row], subject.version, TIMEOUT_S)
        assert np.abs(as_float32(score) - folder.logprobs(subject.version, row)).max() < 1e-4

    run(scenario)
