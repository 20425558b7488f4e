"""The power fails anywhere in a checkpoint: the real trainer, blobs and journal on a disk cut at any operation."""

import asyncio
import dataclasses
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from training_lab import Lab

from headrace.config import AlgorithmSection
from headrace.control.checkpointing import Checkpointer, CheckpointSettings
from headrace.control.context import RunContext
from headrace.control.frontier import DataFrontier
from headrace.control.leases import CountingLeases
from headrace.control.past import RunPast
from headrace.control.recorder import Recorder, WorkerClock, sealed_row
from headrace.control.recovery import recover
from headrace.control.resuming import TrainerPast, restore_trainer
from headrace.control.signal import Changed
from headrace.control.versions import Versions
from headrace.records.batch import BatchPlanned, BatchSelected
from headrace.records.checkpoint import GuardState
from headrace.records.ids import Address, PolicyId, PolicyRef
from headrace.records.update import UpdateCompleted, WeightsCommitted
from headrace.scheduling.retention import Retention
from headrace.simulation.loop import run_virtual
from headrace.store.blobs import FileBlobs
from headrace.store.disk import UnsyncedDisk
from headrace.store.faulty import Act, DiskLog, FaultyDisk, FaultyVFS, Leaves, write_image
from headrace.store.group_commit import GroupCommitJournal, InlineCommit
from headrace.store.sqlite import SqliteStorage
from headrace.training.core import TrainerCore
from headrace.training.inline import InlineTrainer
from headrace.training.options import TrainerOptions

UPDATES = 4
TIMEOUT_S = 60.0


class Life:
    """One process of a run that only trains: every update on the same rows, a checkpoint after each, two of them kept."""

    def __init__(self, folder: Path, lab: Lab, batch: list[Any], disk: FaultyDisk | None = None) -> None:
        self.blobs = FileBlobs(folder / "blobs", disk or UnsyncedDisk())
        self.swept = self.blobs.sweep()
        storage = SqliteStorage(folder, *(() if disk is None else ("cuts", disk)))
        self.journal = GroupCommitJournal(storage, incarnation="life", runner=InlineCommit())
        self.core = TrainerCore(
            TrainerOptions(),
            lab.folder,
            AlgorithmSection(),
            read_row=lab.rows.__getitem__,
            put_weights=self.blobs.put,
            clock=lambda: 0.0,
            files=self.blobs,
        )
        self.trainer = InlineTrainer(self.core, lambda method, size: 0.01)
        self._lab, self._batch = lab, batch

    async def restore(self) -> tuple[RunPast, TrainerPast]:
        past = recover(self.journal.events())
        recorder = Recorder(self.journal, start_ns=past.last_ns, recorded=past.recorded)

        def spawn(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
            return asyncio.create_task(work, name=name)

        context = RunContext(recorder, Versions(), Changed(), spawn)
        self.recorder, self.versions = recorder, context.versions
        self.checkpointer = Checkpointer(
            self.trainer,
            CountingLeases(),
            context,
            settings=CheckpointSettings(1, "resume", Retention(2, 0), TIMEOUT_S),
            clock=WorkerClock(recorder, "trainer"),
        )
        self.versions.restore(past.weights)
        self.checkpointer.restore(past)
        restored = await restore_trainer(self.trainer, past, self.journal.read, TIMEOUT_S)
        if past.version < 0:
            await self._commit(0, self.core.export())
        return past, restored

    async def update(self) -> None:
        version = self.core.version
        update, key = version + 1, str(version + 1)
        self.recorder.record(BatchSelected(update, ()), key=key)
        row = sealed_row("plan", self._lab.plan(self._batch, version=version))
        planned = BatchPlanned(update, row.address, (), len(self._batch), 0, 0.0, 0, 0.5)
        await self.recorder.durable(self.recorder.record(planned, key=key, rows=[row]))
        result = await self.trainer.update(self._lab.plan(self._batch, version=version), TIMEOUT_S)
        self.recorder.record(UpdateCompleted(result), key=key)
        await self._commit(update, result.weights)
        self.checkpointer.begin(update, DataFrontier(), GuardState())
        await self.checkpointer.settle()

    async def _commit(self, version: int, weights: Address) -> None:
        committed = WeightsCommitted(PolicyRef(PolicyId("policy"), version), weights, None)
        await self.recorder.durable(self.recorder.record(committed, key=f"policy@{version}"))
        self.versions.commit(version, weights)


@dataclasses.dataclass
class Whole:
    """The undisturbed run: its operations, what was acknowledged after how many, and its weights."""

    folder: Path
    log: DiskLog
    weights: list[Address]
    acknowledged: list[tuple[int, int]]
    manifests: list[Address]


def whole_run(folder: Path, lab: Lab, batch: list[Any], disk_of: type[FaultyDisk]) -> Whole:
    log = DiskLog()
    vfs = FaultyVFS("cuts", log)
    found = Whole(folder, log, [], [], [])

    async def work() -> None:
        life = Life(found.folder, lab, batch, disk_of(log))
        await life.restore()
        for update in range(1, UPDATES + 1):
            await life.update()
            found.acknowledged.append((len(log.operations), update))
        found.weights = [weights for _, weights in sorted(life.versions.weights.items())]
        found.manifests = [item.manifest.address for item in recover(life.journal.events()).checkpoints]
        await life.journal.close()

    run_virtual(work())
    vfs.unregister()
    assert len(set(found.weights)) == UPDATES + 1, "every update has to move the weights"
    return found


@pytest.fixture(scope="module")
def whole(lab: Lab, batch: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return whole_run(tmp_path_factory.mktemp("whole") / "run", lab, batch, FaultyDisk)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "blobs").rglob("*")) if path.is_file()}


def restored(folder: Path, lab: Lab, batch: list[Any]) -> tuple[RunPast, TrainerPast, Address, int]:
    """What a process that then dies at once finds: past, trainer, weights, temporary files."""

    async def work() -> tuple[RunPast, TrainerPast, Address, int]:
        life = Life(folder, lab, batch)
        past, trainer = await life.restore()
        assert life.core.version == max(0, past.version)
        life.journal.abandon()
        return past, trainer, life.core.export(), life.swept

    return run_virtual(work())


def finished(folder: Path, lab: Lab, batch: list[Any]) -> list[Address]:
    """Weights of every version once the run went on to its end."""

    async def work() -> list[Address]:
        life = Life(folder, lab, batch)
        await life.restore()
        while life.core.version < UPDATES:
            await life.update()
        await life.journal.close()
        return [weights for _, weights in sorted(life.versions.weights.items())]

    return run_virtual(work())


def cuts(whole: Whole) -> list[int]:
    """Every seventh operation, and each one from the third update's commit to the end of its checkpoint's sweep."""
    dense = range(whole.acknowledged[1][0], whole.acknowledged[2][0] + 1)
    return sorted({*range(0, len(whole.log.operations) + 1, 7), *dense})


def is_between_sync_and_rename(whole: Whole, count: int, manifest: Address) -> bool:
    """Whether the cut leaves the manifest synced under its temporary name."""
    last = whole.log.operations[count - 1]
    return last.act is Act.SYNC and last.path.name.startswith(manifest) and last.path.name != manifest


@pytest.mark.slow
def test_a_cut_anywhere_in_a_checkpoint_loads_the_newest_recorded_one_and_replays_the_rest(
    whole: Whole, lab: Lab, batch: list[Any], tmp_path: Path
) -> None:
    rng, seen = random.Random(3), {"swept": 0, "replayed": 0, "before its rename": 0}
    for number, count in enumerate(cuts(whole)):
        folder = tmp_path / str(count)
        write_image(whole.log.crashed(count, list(Leaves)[number % len(Leaves)], rng), whole.folder, folder)
        past, trainer, weights, swept = restored(folder, lab, batch)
        told = max((update for operations, update in whole.acknowledged if operations <= count), default=0)
        assert max(0, past.version) >= told
        assert weights == whole.weights[max(0, past.version)]
        assert trainer.checkpoint == (past.checkpoints[-1].update if past.checkpoints else None)
        assert trainer.replayed == trainer.identical == max(0, past.version) - (trainer.checkpoint or 0)
        assert not list((folder / "blobs").glob("??/*.part"))
        before = files_of(folder)
        again = restored(folder, lab, batch)
        assert (again[1], again[2], again[3]) == (trainer, weights, 0), "a second crash right after changes nothing"
        assert files_of(folder) == before
        if number % 5 == 0:
            assert finished(folder, lab, batch) == whole.weights
        seen["swept"] += swept
        seen["replayed"] += trainer.replayed
        if is_between_sync_and_rename(whole, count, whole.manifests[2]):
            assert trainer.checkpoint == 2
            seen["before its rename"] += 1
    assert all(seen.values()), seen


@pytest.mark.parametrize("part", ["weights", "optimizer", "random", "manifest"])
@pytest.mark.parametrize("harm", ["damaged", "missing"])
def test_where_the_newest_checkpoint_is_corrupt_an_intact_one_before_is_loaded_and_more_is_replayed(
    whole: Whole, lab: Lab, batch: list[Any], tmp_path: Path, part: str, harm: str
) -> None:
    folder = tmp_path / "run"
    write_image(whole.log.crashed(len(whole.log.operations), Leaves.EVERYTHING, random.Random(1)), whole.folder, folder)
    kept = restored(folder, lab, batch)[0].checkpoints[-2:]
    manifest = kept[-1].manifest
    names = {"weights": manifest.weights, "manifest": manifest.address, **manifest.parts}
    place = FileBlobs(folder / "blobs").path(names[part])
    data = place.read_bytes()
    if harm == "missing":
        place.unlink()
    else:
        place.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    past, trainer, weights, _ = restored(folder, lab, batch)
    # The same bytes in two checkpoints are one file, which is the case of a random state that nothing drew from.
    expected = 0 if names[part] in kept[0].manifest.blobs else UPDATES - 1
    assert (expected == 0) == (part == "random")
    assert past.version == UPDATES
    assert (trainer.checkpoint or 0, trainer.replayed, trainer.identical) == (expected, *[UPDATES - expected] * 2)
    assert weights == whole.weights[-1]


class ForgetfulDisk(FaultyDisk):
    """A defect: no name is ever made durable."""

    def sync_folder(self, path: Path) -> None:
        del path


def test_where_names_are_not_synced_a_cut_takes_a_recorded_checkpoint(
    lab: Lab, batch: list[Any], tmp_path: Path
) -> None:
    broken = whole_run(tmp_path / "run", lab, batch, ForgetfulDisk)
    folder = tmp_path / "image"
    image = broken.log.crashed(len(broken.log.operations), Leaves.NOTHING, random.Random(1))
    write_image(image, broken.folder, folder)
    past, trainer, _, _ = restored(folder, lab, batch)
    assert past.checkpoints[-1].update == UPDATES
    assert trainer.checkpoint is None
