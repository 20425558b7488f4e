"""Large immutable bytes as files named by their SHA-256, in folders by the first two digits.

Invariant: a file under its final name holds exactly the bytes of its address, whatever crashed when. A file is written
aside, synced, renamed, and its folder synced; what a crash leaves behind is a temporary file that nothing reads.
"""

import hashlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import IntegrityError, StoreError
from headrace.records.ids import Address
from headrace.records.provenance import address_of, check_address
from headrace.store.disk import Disk

_TEMPORARY = ".part"
_CHUNK_BYTES = 1 << 20


class FileBlobs:
    """Implements `ports.Blobs`.

    Args:
        root: folder of the blobs; created when missing.
        disk: file operations.
    """

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self._root = root
        self._disk = Disk() if disk is None else disk
        self._counter = itertools.count()

    @property
    def root(self) -> Path:
        """Folder of the blobs."""
        return self._root

    def put(self, data: bytes) -> Address:
        """Address of the bytes, which are durable. A damaged copy under the same address is replaced.

        Raises:
            StoreError: when they could not be made durable.
        """
        address = address_of(data)
        if self._is_intact(address):
            return address
        temporary = self._temporary(address)
        try:
            self._disk.make_folder(temporary.parent)
            self._disk.write(temporary, data)
            self._disk.replace_durably(temporary, self._place(address))
        except OSError as error:
            raise StoreError(f"blob {address} of {len(data)} bytes is not durable: {error}") from error
        return address

    def adopt(self, file: Path) -> Address:
        """Address of a written file, which is moved into the store and durable; it must lie on the same file system.

        Raises:
            StoreError: when it could not be made durable.
        """
        try:
            address = file_address(file)
            if self._is_intact(address):
                self._disk.remove(file)
                return address
            self._disk.make_folder(self._place(address).parent)
            self._disk.sync_file(file)
            self._disk.replace_durably(file, self._place(address))
        except OSError as error:
            raise StoreError(f"{file} could not be moved into {self._root}: {error}") from error
        return address

    def path(self, address: Address) -> Path:
        """Where the blob lies.

        Raises:
            KeyError: when it is not stored.
            IntegrityError: when a link lies there, whose target anybody may change after it was looked at.
        """
        place = self._place(address)
        if _is_link(place):
            raise IntegrityError(f"{place} is a link; a store holds files of its own, remove it or put the file there")
        if not place.is_file():
            raise KeyError(f"no blob {address} in {self._root}")
        return place

    def read(self, address: Address) -> bytes:
        """Bytes of the blob, checked against the address.

        Raises:
            KeyError: when it is not stored.
            IntegrityError: when the file is damaged.
        """
        data = self._disk.read(self.path(address))
        check_address(address, data, f"blob {self._place(address)}")
        return data

    def verify(self, address: Address) -> int:
        """Size in bytes of the blob, whose file hashes to its address; reads it in pieces.

        Raises:
            KeyError: when it is not stored.
            IntegrityError: when the file is damaged.
        """
        place = self.path(address)
        actual = file_address(place)
        if actual != address:
            raise IntegrityError(f"blob {place}: bytes hash to {actual}; the copy is damaged")
        return place.stat().st_size

    def remove(self, address: Address) -> None:
        """Removes the blob if it is stored. Raises StoreError when the file cannot be removed."""
        try:
            self._disk.remove(self._place(address))
        except OSError as error:
            raise StoreError(f"blob {address} cannot be removed: {error}") from error

    def addresses(self) -> Iterator[Address]:
        """Every stored address, in order. Files whose name is no address are left out."""
        for place in sorted(self._root.glob("??/*")):
            if len(place.name) == 64 and place.name.startswith(place.parent.name):
                yield Address(place.name)

    def sweep(self) -> int:
        """Removes what crashes left behind; returns how many files. Call it before anything writes."""
        leftovers = sorted(self._root.glob(f"??/*{_TEMPORARY}"))
        for place in leftovers:
            self._disk.remove(place)
        return len(leftovers)

    def _is_intact(self, address: Address) -> bool:
        place = self._place(address)
        return place.is_file() and not _is_link(place) and file_address(place) == address

    def _place(self, address: Address) -> Path:
        return self._root / address[:2] / address

    def _temporary(self, address: Address) -> Path:
        """A name that no other process or call uses at the same time."""
        return self._root / address[:2] / f"{address}.{os.getpid()}.{next(self._counter)}{_TEMPORARY}"


def _is_link(place: Path) -> bool:
    return place.is_symlink() or place.parent.is_symlink()


def file_address(path: Path) -> Address:
    """SHA-256 of a file, read in pieces. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
    return Address(digest.hexdigest())
