"""The file operations that durability rests on, one method each, so that fault tests can fail, drop or tear any of them.

Invariant kept by `replace_durably`: after a crash at any point the target either does not exist or holds all its bytes.
"""

import os
from pathlib import Path


class Disk:
    """The real file system. Every method raises OSError when it fails."""

    def write(self, path: Path, data: bytes) -> None:
        """Writes a file and returns once its bytes are on disk; its name may not be."""
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            self.sync(file.fileno())

    def sync_file(self, path: Path) -> None:
        """Returns once the bytes of an existing file are on disk."""
        with path.open("rb") as file:
            self.sync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        """Gives the file another name, atomically; durable after `sync_folder`."""
        source.replace(target)

    def sync_folder(self, path: Path) -> None:
        """Returns once the names in the folder are on disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sync(descriptor)
        finally:
            os.close(descriptor)

    def make_folder(self, path: Path) -> None:
        """Creates the folder and its parents, and makes their names durable."""
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            self.sync_folder(folder.parent)

    def read(self, path: Path) -> bytes:
        """Bytes of the file."""
        return path.read_bytes()

    def remove(self, path: Path) -> None:
        """Removes the file if it is there."""
        path.unlink(missing_ok=True)

    def sync(self, descriptor: int) -> None:
        """Returns once the open file or folder is on disk."""
        os.fsync(descriptor)

    def replace_durably(self, temporary: Path, target: Path) -> None:
        """Moves a written and synced file to its name; returns once the name is on disk."""
        self.rename(temporary, target)
        self.sync_folder(target.parent)


class UnsyncedDisk(Disk):
    """A disk that forgets nothing because nothing crashes: for simulation and tests of other things."""

    def sync(self, descriptor: int) -> None:
        """Does nothing."""
