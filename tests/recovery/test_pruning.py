"""Files that nothing names go, all others stay, wherever the power fails meanwhile."""

import random
from pathlib import Path
from typing import Any

import pytest
from recovery.test_checkpoint_cuts import UPDATES, files_of, restored
from training_lab import Lab

from headrace.control.recovery import recover
from headrace.errors import StoreError
from headrace.records.ids import Address
from headrace.runtime.pruning import named_by_state, prune_run
from headrace.scheduling.retention import Retention
from headrace.store.blobs import FileBlobs
from headrace.store.faulty import DiskLog, FaultyDisk, Leaves, write_image
from headrace.store.reader import open_reader
from headrace.store.sqlite import WriterLock


def stored(folder: Path) -> set[str]:
    return set(FileBlobs(folder / "blobs").addresses())


def test_what_nothing_names_goes_and_what_the_run_may_load_stays(
    trained: tuple[Path, list[Address], Address], lab: Lab, batch: list[Any]
) -> None:
    folder, weights, orphan = trained
    before = files_of(folder)
    planned = prune_run(folder, is_dry_run=True)
    assert files_of(folder) == before
    done = prune_run(folder)
    assert done.files == planned.files
    assert (done.temporary, orphan in done.files) == (1, True)
    with open_reader(folder) as reader:
        *dropped, newest = [item.manifest for item in recover(reader.events()).checkpoints]
    assert stored(folder) == newest.blobs | {weights[0]}
    assert set(done.files) == {orphan} | ({item for old in dropped for item in old.blobs} & set(before)) - newest.blobs
    assert prune_run(folder).files == ()
    past, trainer, found, _ = restored(folder, lab, batch)
    assert (past.version, trainer.checkpoint, found) == (UPDATES, UPDATES, weights[-1])


def test_versions_after_the_newest_checkpoint_stay_since_a_recovery_may_load_them(
    tmp_path: Path, trained: tuple[Path, list[Address], Address]
) -> None:
    folder, weights, _ = trained
    with open_reader(folder) as reader:
        past = recover(reader.events())
    past.checkpoints = past.checkpoints[:2]
    named = set(named_by_state(past, Retention(1, 0)))
    assert named & set(weights) == {weights[0], *weights[2:]}  # version 2 is the checkpoint itself
    past.checkpoints = []
    assert set(named_by_state(past, Retention(1, 0))) == set(weights)


def test_a_cut_at_any_step_takes_nothing_that_is_named_and_a_second_pass_ends_it(
    trained: tuple[Path, list[Address], Address], lab: Lab, batch: list[Any], tmp_path: Path
) -> None:
    folder, weights, _ = trained
    journal = (folder / "journal.db").read_bytes()
    log = DiskLog()
    for path in (folder / "blobs").rglob("*"):
        if path.is_file():
            log.open(path)
    begin = len(log.operations)
    removed = prune_run(folder, disk=FaultyDisk(log)).files
    assert len(log.operations) - begin == len(removed) + 1 > 4
    expected = stored(folder)
    for count in range(begin, len(log.operations) + 1):
        for leaves in Leaves:
            image = tmp_path / f"{count}-{leaves.name}"
            write_image(log.crashed(count, leaves, random.Random(count)), folder, image)
            (image / "journal.db").write_bytes(journal)
            assert expected <= stored(image)
            if leaves is Leaves.ANY_ORDER:
                assert restored(image, lab, batch)[2] == weights[-1]
            prune_run(image)
            assert stored(image) == expected


def test_a_living_writer_and_a_failing_disk_are_refused(trained: tuple[Path, list[Address], Address]) -> None:
    folder, _, _ = trained
    lock = WriterLock(folder)
    with pytest.raises(StoreError, match="is being written already"):
        prune_run(folder)
    lock.release()
    log = DiskLog()
    log.fail(2)
    before = stored(folder)
    with pytest.raises(StoreError, match="cannot be removed"):
        prune_run(folder, disk=FaultyDisk(log))
    assert before - stored(folder) == set()
    prune_run(folder)
