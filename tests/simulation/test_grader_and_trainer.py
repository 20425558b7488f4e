import asyncio
import math

import numpy as np
import pytest

from headrace.errors import GraderError, Outcome, TrainerError
from headrace.records.arrays import int32_bytes
from headrace.records.batch import BatchPlan, BatchRow
from headrace.records.ids import Address, EpisodeId, GroupId, PolicyId, PolicyRef
from headrace.records.provenance import PolicyVersion, Provenance, address_of, canonical_bytes, content_version
from headrace.records.segment import FinishReason, Origin, Sampling, TokenSegment
from headrace.records.terminal import Success
from headrace.records.trajectory import Path, Transcript
from headrace.records.verdict import Scored, Submission, Unscored, UnscoredCause
from headrace.simulation import tokens
from headrace.simulation.costs import TrainerCost
from headrace.simulation.device import SharedDevice
from headrace.simulation.grader import SimulatedGrader
from headrace.simulation.laws import Constant
from headrace.simulation.loop import run_virtual
from headrace.simulation.tasks import SimulatedTasks
from headrace.simulation.trainer import SimulatedTrainer
from headrace.simulation.weights import SimulatedWeights, WeightShelf
from headrace.simulation.workload import Draws, Stratum, Workload

POLICY = PolicyId("policy")


def now() -> float:
    return asyncio.get_running_loop().time()


def grading(num_slots: int | None = None, success: float = 0.5, **options):
    options = {"grade_s": Constant(value=3.0), **options}
    workload = Workload(name="w", tokens=Constant(value=1.0), strata=(Stratum(name="a", success=success),), **options)
    draws = Draws(workload, 7)
    tasks = SimulatedTasks(draws)

    def submission(member: int, final_text: str = "answer") -> Submission:
        episode = EpisodeId(GroupId("train", 0), member, 0)
        return Submission(address_of(str(episode).encode()), episode, tasks.task(0), final_text)

    return SimulatedGrader(draws, num_slots=num_slots), submission, draws


def test_a_verdict_follows_the_draw_of_the_attempt_and_is_the_same_when_graded_again():
    async def main() -> None:
        grader, submission, draws = grading()
        submissions = [submission(member) for member in range(20)]
        verdicts = await grader.grade(submissions, 10)
        assert now() == 3.0
        values = {}
        for item, verdict in zip(submissions, verdicts, strict=True):
            verdict.check()
            assert (verdict.transcript, verdict.grader) == (item.transcript, grader.version)
            assert isinstance(verdict.outcome, Scored)
            values[item.episode] = dict(verdict.outcome.components)["solved"]
            assert values[item.episode] == float(draws.episode(0, item.episode).is_solved)
        assert set(values.values()) == {0.0, 1.0}
        assert await grader.grade(submissions, 10) == verdicts

    run_virtual(main())


def test_an_attempt_without_an_answer_scores_zero_and_not_nothing():
    async def main() -> None:
        grader, submission, _ = grading(success=1.0)
        (verdict,) = await grader.grade([submission(0, "")], 10)
        assert verdict.outcome == Scored((("solved", 0.0),), "no answer")

    run_virtual(main())


def test_gradings_wait_for_slots_and_those_in_time_are_kept_when_others_are_late():
    async def main() -> None:
        grader, submission, _ = grading(num_slots=1)
        verdicts = await grader.grade([submission(member) for member in range(3)], 7.0)
        assert now() == 7.0
        assert [isinstance(verdict.outcome, Scored) for verdict in verdicts] == [True, True, False]
        assert isinstance(verdicts[2].outcome, Unscored)
        assert verdicts[2].outcome.cause is UnscoredCause.GRADER_TIMEOUT

    run_virtual(main())


def test_no_verdict_at_all_is_an_error_and_one_unusable_score_poisons_no_other():
    async def main() -> None:
        grader, submission, _ = grading(grade_failure=1.0)
        with pytest.raises(GraderError, match="no verdict"):
            await grader.grade([submission(0)], 10)
        grader, submission, _ = grading(grade_invalid=0.5)
        verdicts = await grader.grade([submission(member) for member in range(40)], 10)
        causes = {verdict.outcome.cause for verdict in verdicts if isinstance(verdict.outcome, Unscored)}
        assert causes == {UnscoredCause.GRADER_INVALID}
        assert any(isinstance(verdict.outcome, Scored) for verdict in verdicts)

    run_virtual(main())


def test_a_failed_grading_is_drawn_anew_when_it_is_tried_again():
    async def main() -> None:
        grader, submission, _ = grading(grade_failure=0.5)
        failures = 0
        for member in range(20):
            for _ in range(50):
                try:
                    await grader.grade([submission(member)], 10)
                except GraderError:
                    failures += 1
                else:
                    break
            else:
                pytest.fail("a grading failed fifty times in a row")
        assert 5 <= failures <= 60

    run_virtual(main())


def test_a_flipped_verdict_is_the_opposite_of_the_true_one():
    async def main() -> None:
        grader, submission, draws = grading(verdict_flip=1.0)
        (verdict,) = await grader.grade([submission(3)], 10)
        assert isinstance(verdict.outcome, Scored)
        assert verdict.outcome.components[0][1] != float(draws.episode(0, submission(3).episode).is_solved)

    run_virtual(main())


def test_a_crash_ends_the_gradings_under_way():
    async def main() -> None:
        grader, submission, _ = grading()
        running = asyncio.create_task(grader.grade([submission(0)], 10))
        await asyncio.sleep(1)
        grader.crash()
        with pytest.raises(GraderError, match="crashed") as caught:
            await running
        assert caught.value.outcome is Outcome.LOST
        assert len(await grader.grade([submission(0)], 10)) == 1

    run_virtual(main())


def transcript(versions: list[tuple[int, int]], member: int = 0) -> Transcript:
    """A transcript that holds so many tokens of each version."""
    sampled = [
        TokenSegment(
            Origin.POLICY,
            tokens.turn(count, tokens.FINAL_END if position == len(versions) - 1 else None),
            tokens.logprobs(count),
            PolicyRef(POLICY, version),
            version,
            Sampling(),
            FinishReason.STOP if position == len(versions) - 1 else None,
        )
        for position, (version, count) in enumerate(versions)
    ]
    made = Transcript(
        episode=EpisodeId(GroupId("train", 0), member, 0),
        task=content_version("task"),
        provenance=Provenance(
            content_version("task"),
            tuple(PolicyVersion(POLICY, version, content_version(str(version))) for version, _ in versions),
            content_version("harness"),
            content_version("environment"),
        ),
        paths=(Path("policy", (TokenSegment(Origin.TEMPLATE, int32_bytes([20, 6])), *sampled)),),
        actions=(),
        terminal=Success(),
    )
    made.check()
    return made


class Lab:
    """A trainer over a few transcripts."""

    def __init__(self, cost: TrainerCost, transcripts: list[Transcript], device: SharedDevice | None = None) -> None:
        self.rows = tuple(
            BatchRow(item.address, 0, item.episode.group, item.episode.member, 1, 1.0, 0.5, 1.0) for item in transcripts
        )
        stored = {item.address: canonical_bytes(item) for item in transcripts}
        self.shelf = WeightShelf()
        self.trainer = SimulatedTrainer(
            cost, self.shelf, policy_id=POLICY, seed=7, read=stored.__getitem__, device=device
        )

    def plan(self, base_version: int = 0, rows: tuple[BatchRow, ...] | None = None) -> BatchPlan:
        rows = self.rows if rows is None else rows
        return BatchPlan(base_version + 1, POLICY, base_version, rows, content_version("algorithm"), b"\0" * 16)


COST = TrainerCost(
    update_s=Constant(value=45.0), update_s_per_token=0.1, score_s=Constant(value=2.0), score_s_per_token=0.01
)


def test_an_update_takes_its_time_raises_the_version_by_one_and_names_new_weights():
    async def main() -> None:
        lab = Lab(COST, [transcript([(0, 30)])])
        first = lab.trainer.weights
        result = await lab.trainer.update(lab.plan(), 100)
        assert now() == pytest.approx(45 + 3)
        assert (result.version, lab.trainer.version, result.compute_s) == (1, 1, pytest.approx(48))
        assert lab.shelf.read(result.weights) == SimulatedWeights(POLICY, 1, first, lab.plan().address)
        assert all(math.isfinite(value) for value in result.metrics.values())

    run_virtual(main())


def test_equal_histories_have_equal_weights_and_others_others():
    async def weights_after(rewards: list[float]) -> Address:
        lab = Lab(COST, [transcript([(0, 30)])])
        for version, reward in enumerate(rewards):
            (row,) = lab.rows
            changed = BatchRow(row.transcript, 0, row.group, row.member, 1, reward, reward, 1.0)
            await lab.trainer.update(lab.plan(version, (changed,)), 100)
        return lab.trainer.weights

    assert run_virtual(weights_after([1.0, 0.5])) == run_virtual(weights_after([1.0, 0.5]))
    assert run_virtual(weights_after([1.0, 0.5])) != run_virtual(weights_after([0.5, 1.0]))


def test_a_plan_that_does_not_follow_or_is_not_finite_changes_nothing():
    async def main() -> None:
        lab = Lab(COST, [transcript([(0, 30)])])
        before = lab.trainer.weights
        (row,) = lab.rows
        broken = BatchRow(row.transcript, 0, row.group, row.member, 1, 1.0, math.nan, 1.0)
        missing = BatchRow(content_version("nowhere"), 0, row.group, row.member, 1, 1.0, 0.5, 1.0)
        for plan in (lab.plan(3), lab.plan(0, (broken,)), lab.plan(0, (missing,))):
            with pytest.raises(TrainerError) as caught:
                await lab.trainer.update(plan, 100)
            assert caught.value.outcome is Outcome.REJECTED
        with pytest.raises(TrainerError, match="48 s needed") as caught:
            await lab.trainer.update(lab.plan(), 10)
        assert caught.value.outcome is Outcome.LOST
        assert (lab.trainer.version, lab.trainer.weights) == (0, before)

    run_virtual(main())


def test_a_crashed_trainer_has_not_stepped_and_goes_on_from_committed_weights():
    async def main() -> None:
        lab = Lab(COST, [transcript([(0, 30)])])
        before = lab.trainer.weights
        running = asyncio.create_task(lab.trainer.update(lab.plan(), 100))
        await asyncio.sleep(10)
        lab.trainer.crash()
        with pytest.raises(TrainerError, match="crashed"):
            await running
        with pytest.raises(TrainerError, match="down"):
            await lab.trainer.update(lab.plan(), 100)
        lab.trainer.restart(before)
        assert (await lab.trainer.update(lab.plan(), 100)).version == 1

    run_virtual(main())


def test_scores_name_their_rows_and_see_fresh_tokens_only_of_the_present_version():
    async def main() -> None:
        lab = Lab(COST, [transcript([(0, 30)], 0), transcript([(0, 10), (1, 20)], 1)])
        await lab.trainer.update(lab.plan(), 100)
        begin_s = now()
        scores = await lab.trainer.score(lab.rows, 1, 100)
        assert now() - begin_s == pytest.approx(2 + 0.6)
        assert [score.transcript for score in scores] == [row.transcript for row in lab.rows]
        assert [score.num_tokens for score in scores] == [30, 30]
        assert [score.fresh_abs_max for score in scores] == [None, 0.0]
        assert [score.log_ratio_sum for score in scores] == [0.0, 0.0]
        with pytest.raises(TrainerError, match="holds 1"):
            await lab.trainer.score(lab.rows, 0, 100)

    run_virtual(main())


def test_drift_grows_with_lag_and_leaves_the_mean_weight_at_one():
    async def main() -> tuple[np.ndarray, np.ndarray]:
        rows = [transcript([(0, 25)], member) for member in range(3000)]
        lab = Lab(TrainerCost(drift=0.05, update_s=Constant(value=1.0)), rows)
        fresh = await lab.trainer.score(lab.rows, 0, 100)
        assert all(score.log_ratio_sum == 0.0 for score in fresh)
        await lab.trainer.update(lab.plan(), 100)
        one = np.array([score.log_ratio_sum for score in await lab.trainer.score(lab.rows, 1, 100)])
        await lab.trainer.update(lab.plan(1), 100)
        two = np.array([score.log_ratio_sum for score in await lab.trainer.score(lab.rows, 2, 100)])
        return one, two

    one, two = run_virtual(main())
    assert one.std() == pytest.approx(0.25, rel=0.05)
    assert two.std() == pytest.approx(0.5, rel=0.05)
    assert np.exp(one).mean() == pytest.approx(1.0, abs=0.02)
    assert np.exp(two).mean() == pytest.approx(1.0, abs=0.04)


def test_updates_on_a_shared_device_hold_it_for_their_whole_time():
    async def main() -> None:
        device = SharedDevice(switch_s=1.0)
        shares: list[tuple[float, float]] = []
        device.attach(lambda share: shares.append((now(), share)))
        lab = Lab(COST, [transcript([(0, 30)])], device)
        await lab.trainer.update(lab.plan(), 100)
        assert shares == [(0.0, 0.0), (pytest.approx(50.0), 1.0)]

    run_virtual(main())


def test_the_canary_changes_with_every_version_and_reports_the_distance_to_the_last():
    async def main() -> None:
        lab = Lab(TrainerCost(drift=0.1), [transcript([(0, 30)])])
        ids = [np.arange(4, dtype=np.int32)]
        first = await lab.trainer.canary(ids, 10)
        assert (first.version, first.kl_to_previous) == (0, None)
        await lab.trainer.update(lab.plan(), 100)
        second = await lab.trainer.canary(ids, 10)
        assert (second.version, second.kl_to_previous) == (1, pytest.approx(0.005))
        assert second.logprobs != first.logprobs

    run_virtual(main())
