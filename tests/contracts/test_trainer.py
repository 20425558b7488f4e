"""What every implementation of the trainer's port keeps."""

import asyncio
import math
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from training_lab import LLAMA, Lab

from headrace.config import AlgorithmSection
from headrace.errors import Outcome, TrainerError
from headrace.ports import Trainer
from headrace.processes.child import Child
from headrace.records.arrays import as_float32
from headrace.records.ids import PolicyId
from headrace.records.provenance import check_address
from headrace.records.update import UpdateResult
from headrace.simulation.costs import TrainerCost
from headrace.simulation.loop import run_virtual
from headrace.simulation.trainer import SimulatedTrainer
from headrace.simulation.weights import WeightShelf
from headrace.training.child import ChildTrainer
from headrace.training.inline import InlineTrainer
from headrace.training.warm_start import WarmStartSettings, warm_start

ROOT = Path(__file__).parents[2]
CHILD = ROOT / "tests" / "trainer_child.py"
PATIENCE_S = 60.0
CANARY = [np.array([1, 2, 3, 4, 5], "<i4"), np.array([6, 7], "<i4")]

Story = Callable[[Trainer, Lab], Awaitable[None]]


class StoredLab(Lab):
    """A lab whose sealed rows and weights lie in a folder that a child can read."""

    def __init__(self, folder: Path, store: Path) -> None:
        super().__init__(folder)
        self.store = store
        self.check_weights: Callable[[UpdateResult], None] = self._check_file

    def _check_file(self, result: UpdateResult) -> None:
        data = (self.store / result.weights).read_bytes()
        check_address(result.weights, data, "weights")
        assert len(data) == result.weights_bytes
        assert {"clip_fraction", "entropy", "kl", "learning_rate"} <= result.metrics.keys()

    def publish(self) -> None:
        for address, data in self.rows.items():
            (self.store / address).write_bytes(data)


@pytest.fixture
def lab(tmp_path):
    (tmp_path / "store").mkdir()
    folder = warm_start(LLAMA, (), WarmStartSettings(steps=0), seed=1, out_dir=tmp_path / "policy")
    return StoredLab(folder, tmp_path / "store")


async def on_inline(lab: StoredLab, story: Story) -> None:
    core = lab.core()
    core._put_weights = lambda data: _stored(lab, data)
    await story(InlineTrainer(core, lambda method, size: 1.0), lab)


async def on_child(lab: StoredLab, story: Story) -> None:
    algorithm = msgspec.json.encode(AlgorithmSection()).decode()
    argv = [sys.executable, str(CHILD), str(lab.folder), str(lab.store), algorithm]
    child = await Child.start("trainer", argv, start_timeout_s=PATIENCE_S, env={"PYTHONPATH": str(ROOT)})
    try:
        await story(ChildTrainer(child), lab)
    finally:
        await child.close()
        with pytest.raises(ProcessLookupError):
            os.kill(child.pid, 0)


def _stored(lab: StoredLab, data: bytes):
    address = lab.put(data)
    (lab.store / address).write_bytes(data)
    return address


async def on_simulated(lab: StoredLab, story: Story) -> None:
    shelf = WeightShelf()
    policy_id = PolicyId("policy")
    trainer = SimulatedTrainer(TrainerCost(drift=0.01), shelf, policy_id=policy_id, seed=1, read=lab.rows.__getitem__)

    def check_shelf(result: UpdateResult) -> None:
        assert shelf.read(result.weights).version == result.version

    lab.check_weights = check_shelf
    await story(trainer, lab)


@pytest.fixture(params=["simulated", "inline", pytest.param("child", marks=pytest.mark.slow)])
def run(request, lab):
    if request.param == "child":
        return lambda story: asyncio.run(on_child(lab, story))
    runner = on_inline if request.param == "inline" else on_simulated
    return lambda story: run_virtual(runner(lab, story))


def rejected(caught: pytest.ExceptionInfo[TrainerError]) -> str:
    assert caught.value.outcome is Outcome.REJECTED
    return str(caught.value)


def test_a_step_makes_the_next_version_and_stores_its_weights(run, lab):
    rows = lab.ragged(6)
    lab.publish()

    async def story(trainer, lab):
        for version in range(2):
            result = await trainer.update(lab.plan(rows, version=version), PATIENCE_S)
            assert (result.update, result.version) == (version + 1, version + 1)
            lab.check_weights(result)
            assert {"loss", "grad_norm"} <= result.metrics.keys()
            assert all(math.isfinite(value) for value in result.metrics.values())

    run(story)


def test_scores_name_their_row_and_change_nothing(run, lab):
    rows = lab.ragged(6)
    lab.publish()

    async def story(trainer, lab):
        first = await trainer.score(rows, 0, PATIENCE_S)
        assert [score.transcript for score in first] == [row.transcript for row in rows]
        assert await trainer.score(rows, 0, PATIENCE_S) == first
        backwards = await trainer.score(rows[::-1], 0, PATIENCE_S)
        by_row = {score.transcript: score for score in backwards}
        for score in first:
            assert by_row[score.transcript].log_ratio_sum == pytest.approx(score.log_ratio_sum, abs=1e-5)

    run(story)


def test_what_does_not_follow_from_the_present_version_is_rejected(run, lab):
    rows = lab.ragged(3)
    lab.publish()

    async def story(trainer, lab):
        with pytest.raises(TrainerError) as caught:
            await trainer.update(lab.plan(rows, version=4), PATIENCE_S)
        assert "4" in rejected(caught)
        with pytest.raises(TrainerError) as caught:
            await trainer.score(rows, 4, PATIENCE_S)
        assert "version 4" in rejected(caught)
        assert (await trainer.update(lab.plan(rows), PATIENCE_S)).version == 1

    run(story)


def test_a_row_that_cannot_be_read_is_rejected_and_the_trainer_goes_on(run, lab):
    rows = lab.ragged(3)
    lab.publish()

    async def story(trainer, lab):
        missing = msgspec.structs.replace(rows[0], transcript="f" * 64)
        with pytest.raises(TrainerError) as caught:
            await trainer.update(lab.plan([missing]), PATIENCE_S)
        assert "f" * 64 in rejected(caught)
        assert (await trainer.update(lab.plan(rows), PATIENCE_S)).version == 1

    run(story)


def test_the_canary_follows_the_version_and_measures_the_step(run, lab):
    rows = lab.ragged(6)
    lab.publish()

    async def story(trainer, lab):
        first = await trainer.canary(CANARY, PATIENCE_S)
        assert (first.version, first.kl_to_previous, len(as_float32(first.logprobs))) == (0, None, 5)
        assert await trainer.canary(CANARY, PATIENCE_S) == first
        await trainer.update(lab.plan(rows), PATIENCE_S)
        second = await trainer.canary(CANARY, PATIENCE_S)
        assert second.version == 1
        assert second.kl_to_previous > 0
        assert second.logprobs != first.logprobs

    run(story)


@pytest.mark.slow
def test_a_child_and_an_inline_trainer_make_the_same_weights(lab):
    rows = lab.ragged(6)
    lab.publish()
    made = []

    async def story(trainer, lab):
        made.append((await trainer.update(lab.plan(rows), PATIENCE_S)).weights)

    run_virtual(on_inline(lab, story))
    asyncio.run(on_child(lab, story))
    assert made[0] == made[1]


@pytest.mark.slow
def test_a_child_says_what_it_holds_and_what_one_did_that_dies_in_an_update_is_lost(lab):
    rows = lab.ragged(3)
    lab.publish()

    async def story(trainer, lab):
        assert trainer.hello.version == 0
        assert trainer.hello.weights == await trainer.export(PATIENCE_S)
        assert (lab.store / trainer.hello.weights).exists()
        (lab.store / "dies").touch()
        with pytest.raises(TrainerError) as caught:
            await trainer.update(lab.plan(rows), PATIENCE_S)
        assert "killed by SIGKILL" in str(caught.value)
        assert caught.value.outcome is Outcome.LOST
        with pytest.raises(TrainerError) as late:
            await trainer.update(lab.plan(rows), PATIENCE_S)
        assert late.value.outcome is Outcome.REJECTED, "nobody was there to take it"

    asyncio.run(on_child(lab, story))


def test_an_inline_trainer_charges_the_loops_time_one_call_after_another(lab):
    rows = lab.ragged(3)
    costs = {"score": 2.0, "update": 5.0, "canary": 0.5}

    async def story():
        trainer = InlineTrainer(lab.core(), lambda method, size: costs[method] * size)
        loop = asyncio.get_running_loop()
        start = loop.time()
        await asyncio.gather(trainer.score(rows, 0, 100.0), trainer.canary(CANARY, 100.0))
        assert loop.time() - start == pytest.approx(3 * 2.0 + 2 * 0.5)
        with pytest.raises(TrainerError, match="no answer within 4") as caught:
            await trainer.update(lab.plan(rows), 4.0)
        assert caught.value.outcome is Outcome.LOST
        assert (await trainer.update(lab.plan(rows), 100.0)).version == 1

    run_virtual(story())
