"""A blob under its final name holds exactly the bytes of its address, whatever fails when."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import IntegrityError, Outcome, StoreError
from headrace.records.ids import Address
from headrace.records.provenance import address_of
from headrace.store import Disk, FileBlobs, UnsyncedDisk

DATA = bytes(range(256)) * 40


class Crash(Exception):
    """The process is gone."""


class FaultyDisk(UnsyncedDisk):
    """Fails its n-th operation; a write fails half way through."""

    def __init__(self, fail_at: int, error: Callable[[], Exception]) -> None:
        self._left = fail_at
        self._error = error
        self.operations = 0

    def _step(self) -> None:
        self.operations += 1
        self._left -= 1
        if self._left == 0:
            raise self._error()

    def write(self, path: Path, data: bytes) -> None:
        try:
            self._step()
        except (OSError, Crash):
            path.write_bytes(data[: len(data) // 2])
            raise
        super().write(path, data)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def sync(self, descriptor: int) -> None:
        self._step()


def test_bytes_come_back_by_their_address(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    address = blobs.put(DATA)
    assert address == address_of(DATA)
    assert blobs.read(address) == DATA
    assert blobs.path(address).read_bytes() == DATA
    assert blobs.verify(address) == len(DATA)
    assert list(blobs.addresses()) == [address]


def test_an_absent_blob_is_a_key_error(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs", UnsyncedDisk())
    for look_up in (blobs.path, blobs.read, blobs.verify):
        with pytest.raises(KeyError, match="no blob"):
            look_up(address_of(b"absent"))
    assert list(blobs.addresses()) == []


def test_equal_bytes_are_stored_once(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs", UnsyncedDisk())
    address = blobs.put(DATA)
    inode = blobs.path(address).stat().st_ino
    assert blobs.put(DATA) == address
    assert blobs.path(address).stat().st_ino == inode


@pytest.mark.parametrize("position", [0, len(DATA) // 2, len(DATA) - 1])
def test_a_flipped_bit_is_noticed_on_read_and_healed_by_the_next_put(tmp_path: Path, position: int) -> None:
    blobs = FileBlobs(tmp_path / "blobs", UnsyncedDisk())
    address = blobs.put(DATA)
    damaged = bytearray(DATA)
    damaged[position] ^= 1
    blobs.path(address).write_bytes(damaged)
    for look_up in (blobs.read, blobs.verify):
        with pytest.raises(IntegrityError, match=address):
            look_up(address)
    blobs.put(DATA)
    assert blobs.read(address) == DATA


def test_a_written_file_is_moved_in_without_a_copy(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    file = tmp_path / "weights.safetensors"
    file.write_bytes(DATA)
    inode = file.stat().st_ino
    address = blobs.adopt(file)
    assert (blobs.read(address), blobs.path(address).stat().st_ino, file.exists()) == (DATA, inode, False)
    file.write_bytes(DATA)
    assert blobs.adopt(file) == address
    assert not file.exists()


def test_every_name_is_synced_after_its_bytes(tmp_path: Path) -> None:
    order: list[str] = []

    class Watching(Disk):
        def sync(self, descriptor: int) -> None:
            order.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
            super().sync(descriptor)

        def rename(self, source: Path, target: Path) -> None:
            order.append("rename")
            super().rename(source, target)

    address = FileBlobs(tmp_path / "blobs", Watching()).put(DATA)
    # The two new folders first, each by its parent; then the bytes, the name, and the folder that holds the name.
    assert sorted(order[:2]) == sorted(["blobs", tmp_path.name])
    assert order[2].startswith(address)
    assert order[2].endswith(".part")
    assert order[3:] == ["rename", address[:2]]


@pytest.mark.parametrize("error", [lambda: OSError(28, "No space left on device"), Crash])
def test_a_failure_at_any_operation_leaves_the_whole_blob_or_none(
    tmp_path: Path, error: Callable[[], Exception]
) -> None:
    probe = FaultyDisk(0, error)
    FileBlobs(tmp_path / "probe", probe).put(DATA)
    assert probe.operations >= 5
    for fail_at in range(1, probe.operations + 1):
        root = tmp_path / str(fail_at)
        with pytest.raises(StoreError if not isinstance(error(), Crash) else Crash) as failed:
            FileBlobs(root, FaultyDisk(fail_at, error)).put(DATA)
        assert isinstance(failed.value, Crash) or failed.value.outcome is Outcome.LOST
        survivor = FileBlobs(root, UnsyncedDisk())
        for address in survivor.addresses():
            assert survivor.read(address) == DATA
        assert survivor.put(DATA) == address_of(DATA)
        survivor.sweep()
        assert [path.name for path in root.glob("??/*")] == [address_of(DATA)]


def test_leftovers_of_crashes_are_swept_and_never_listed(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs", UnsyncedDisk())
    address = blobs.put(DATA)
    leftover = blobs.path(address).with_name(f"{address}.1.0.part")
    leftover.write_bytes(DATA[:10])
    assert list(blobs.addresses()) == [Address(address)]
    assert (blobs.sweep(), blobs.sweep()) == (1, 0)
    assert blobs.read(address) == DATA
