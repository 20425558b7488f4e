"""A disk that remembers what was asked of it, so that a crash can be had at every point afterwards, and fails on demand.

The real files are written all along; beside them runs a log of operations. `crashed` says what a power cut after the first
k operations may leave: bytes written and not synced may be there, vanish, tear at 512 bytes or land in any order, and a name
is durable only once its folder was synced. After a failed sync the bytes are still seen by whoever reads, and are lost at
the next power cut, as Linux does it.

Two front ends write the log: `FaultyVFS` below the real SQLite, and `FaultyDisk` below blobs.
"""

import dataclasses
import enum
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import apsw

from headrace.store.disk import Disk

SECTOR_BYTES = 512


class Leaves(enum.Enum):
    """What a power cut leaves of unsynced bytes and names."""

    NOTHING = "nothing"
    EVERYTHING = "everything"
    TORN = "torn"
    ANY_ORDER = "any order"


class Act(enum.Enum):
    """What was asked of the disk."""

    CREATE = "create"
    WRITE = "write"
    TRUNCATE = "truncate"
    SYNC = "sync"
    SYNC_FAILED = "sync failed"
    RENAME = "rename"
    REMOVE = "remove"
    SYNC_FOLDER = "sync folder"


@dataclasses.dataclass(frozen=True)
class Operation:
    """One of them.

    Attributes:
        act: which.
        path: of the file or folder.
        offset: where it was written, or the length that it was cut to.
        data: what was written.
        target: new name of a renamed file.
    """

    act: Act
    path: Path
    offset: int = 0
    data: bytes = b""
    target: Path | None = None


class DiskLog:
    """Operations in order, and which call fails.

    Attributes:
        operations: all that were done.
        calls: number of calls so far, failed ones included.
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.calls = 0
        self._left = 0
        self._act: Act | None = None
        self._is_broken = False
        self._known: set[Path] = set()

    def fail(self, call: int, act: Act | None = None, *, is_broken: bool = False) -> None:
        """The `call`-th call from now on fails, of one act or of any; with `is_broken` also all of them after it."""
        self._left, self._act, self._is_broken = call, act, is_broken

    def mend(self) -> None:
        """No call fails any more."""
        self._left = 0

    def must_fail(self, act: Act) -> bool:
        """Counts a call; whether it is one that fails."""
        self.calls += 1
        if not self._left or self._act not in {None, act}:
            return False
        self._left -= 1
        if self._left == 0 and self._is_broken:
            self._left = 1
            return True
        return self._left == 0

    def note(self, operation: Operation) -> None:
        """Adds an operation that was done."""
        self.operations.append(operation)

    def create(self, path: Path) -> None:
        """Notes a new file."""
        self._known.add(path)
        self.note(Operation(Act.CREATE, path))

    def open(self, path: Path) -> None:
        """Notes a file that is not known yet, with the bytes that it has, which count as durable."""
        if path in self._known:
            return
        self.create(path)
        if path.is_file() and (data := path.read_bytes()):
            self.note(Operation(Act.WRITE, path, 0, data))
            self.note(Operation(Act.SYNC, path))
            self.note(Operation(Act.SYNC_FOLDER, path.parent))

    def rename(self, source: Path, target: Path) -> None:
        """The file has another name."""
        self._known.discard(source)
        self._known.add(target)

    def forget(self, path: Path) -> None:
        """The file is gone; one of the same name would be another."""
        self._known.discard(path)

    def crashed(self, count: int, leaves: Leaves, rng: random.Random) -> dict[Path, bytes]:
        """Files that a power cut after the first `count` operations leaves."""
        state = _State()
        for operation in self.operations[:count]:
            state.apply(operation)
        return state.left(leaves, rng)


def write_image(image: Mapping[Path, bytes], old_root: Path, new_root: Path) -> None:
    """Puts the files of an image below another folder."""
    new_root.mkdir(parents=True, exist_ok=True)
    for path, data in image.items():
        place = new_root / path.relative_to(old_root)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


@dataclasses.dataclass
class _Inode:
    """Bytes of a file: what is durable, and what was done to it since, in order."""

    durable: bytes = b""
    pending: list[Operation] = dataclasses.field(default_factory=list[Operation])

    @property
    def now(self) -> bytes:
        """What whoever reads the file sees, but for what a failed sync took from the disk."""
        return self._after(self.pending)

    def left(self, leaves: Leaves, rng: random.Random) -> bytes:
        match leaves:
            case Leaves.NOTHING:
                return self.durable
            case Leaves.EVERYTHING:
                return self.now
            case Leaves.TORN:
                return self._torn(rng)
            case Leaves.ANY_ORDER:
                return self._mixed(rng)

    def _after(self, pending: list[Operation]) -> bytes:
        data = bytearray(self.durable)
        for item in pending:
            if item.act is Act.TRUNCATE:
                del data[item.offset :]
                continue
            data.extend(bytes(max(0, item.offset - len(data))))
            data[item.offset : item.offset + len(item.data)] = item.data
        return bytes(data)

    def _torn(self, rng: random.Random) -> bytes:
        """Some of what is pending, in order, the last of it cut within."""
        kept = self.pending[: rng.randint(0, len(self.pending))]
        if kept and kept[-1].act is Act.WRITE:
            last = kept[-1]
            boundary = -last.offset % SECTOR_BYTES + SECTOR_BYTES * rng.randint(0, len(last.data) // SECTOR_BYTES)
            kept[-1] = dataclasses.replace(last, data=last.data[:boundary])
        return self._after(kept)

    def _mixed(self, rng: random.Random) -> bytes:
        """Each sector as it was after some prefix of what is pending, each for itself."""
        states = [self._after(self.pending[:count]) for count in range(len(self.pending) + 1)]
        size = len(rng.choice(states))
        data = bytearray()
        for begin in range(0, size, SECTOR_BYTES):
            sector = rng.choice(states)[begin : begin + SECTOR_BYTES]
            data += sector.ljust(min(SECTOR_BYTES, size - begin), b"\0")[: size - begin]
        return bytes(data)


class _State:
    """Inodes and names, durable and not."""

    def __init__(self) -> None:
        self._inodes: list[_Inode] = []
        self._names: dict[Path, int] = {}
        self._durable: dict[Path, int] = {}
        self._pending: dict[Path, list[tuple[Path, int | None]]] = {}

    def apply(self, operation: Operation) -> None:
        path = operation.path
        match operation.act:
            case Act.CREATE:
                self._inodes.append(_Inode())
                self._name(path, len(self._inodes) - 1)
            case Act.WRITE | Act.TRUNCATE:
                self._inodes[self._names[path]].pending.append(operation)
            case Act.SYNC | Act.SYNC_FAILED:
                inode = self._inodes[self._names[path]]
                if operation.act is Act.SYNC:
                    inode.durable = inode.now
                inode.pending.clear()
            case Act.RENAME:
                assert operation.target is not None
                inode_number = self._names[path]
                self._name(operation.target, inode_number)
                self._name(path, None)
            case Act.REMOVE:
                self._name(path, None)
            case Act.SYNC_FOLDER:
                for name, inode_number in self._pending.pop(path, []):
                    _set(self._durable, name, inode_number)

    def left(self, leaves: Leaves, rng: random.Random) -> dict[Path, bytes]:
        names = dict(self._durable)
        for pending in self._pending.values():
            kept = {Leaves.NOTHING: 0, Leaves.EVERYTHING: len(pending)}.get(leaves, rng.randint(0, len(pending)))
            for name, inode_number in pending[:kept]:
                _set(names, name, inode_number)
        return {path: self._inodes[number].left(leaves, rng) for path, number in sorted(names.items())}

    def _name(self, path: Path, inode_number: int | None) -> None:
        _set(self._names, path, inode_number)
        self._pending.setdefault(path.parent, []).append((path, inode_number))


def _set(names: dict[Path, int], path: Path, inode_number: int | None) -> None:
    if inode_number is None:
        names.pop(path, None)
    else:
        names[path] = inode_number


class FaultyVFS(apsw.VFS):
    """The default file system below SQLite, with a log and faults. Unregister it when done.

    Args:
        name: under which it is registered.
        log: where operations go, and what says which fails.
        error: what a failed call raises.
    """

    def __init__(
        self, name: str, log: DiskLog, error: Callable[[], Exception] = lambda: apsw.IOError("injected")
    ) -> None:
        self.log = log
        self.error = error
        super().__init__(name, "")

    def step(self, act: Act) -> None:
        """One call. Raises when it is one that fails."""
        if self.log.must_fail(act):
            raise self.error()

    def xOpen(self, name: Any, flags: list[int]) -> "FaultyFile":
        self.step(Act.CREATE)
        return FaultyFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self.step(Act.REMOVE)
        super().xDelete(filename, syncdir)
        path = Path(filename)
        self.log.forget(path)
        self.log.note(Operation(Act.REMOVE, path))
        if syncdir:
            self.log.note(Operation(Act.SYNC_FOLDER, path.parent))


class FaultyFile(apsw.VFSFile):
    """An open file of `FaultyVFS`."""

    def __init__(self, vfs: FaultyVFS, name: Any, flags: list[int]) -> None:
        self._vfs = vfs
        filename = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._path = Path(filename) if filename else None
        super().__init__("", name, flags)
        self._is_log = bool(flags[0] & (apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL))
        if self._path is not None:
            vfs.log.open(self._path)

    def xWrite(self, data: Any, offset: int) -> None:
        self._vfs.step(Act.WRITE)
        super().xWrite(data, offset)
        self._note(Act.WRITE, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:
        self._vfs.step(Act.TRUNCATE)
        super().xTruncate(newsize)
        self._note(Act.TRUNCATE, newsize)

    def xSync(self, flags: int) -> None:
        del flags
        try:
            self._vfs.step(Act.SYNC)
        except Exception:
            self._note(Act.SYNC_FAILED)
            raise
        self._note(Act.SYNC)  # what is durable is a matter of the log; the machine's own disk need not be waited for
        if self._is_log and self._path is not None:  # SQLite syncs the folder of a new log itself
            self._vfs.log.note(Operation(Act.SYNC_FOLDER, self._path.parent))

    def _note(self, act: Act, offset: int = 0, data: bytes = b"") -> None:
        if self._path is not None:
            self._vfs.log.note(Operation(act, self._path, offset, data))


class FaultyDisk(Disk):
    """The file operations below blobs, with a log and faults.

    Args:
        log: where operations go, and what says which fails.
        error: what a failed call raises.
    """

    def __init__(self, log: DiskLog, error: Callable[[], Exception] = lambda: OSError(5, "injected")) -> None:
        self._log = log
        self._error = error

    def write(self, path: Path, data: bytes) -> None:
        is_new = not path.exists()
        try:
            self._step(Act.WRITE)
        except Exception:
            path.write_bytes(data[: len(data) // 2])  # a full disk takes what fits
            self._create(path, data[: len(data) // 2], is_new=is_new)
            raise
        path.write_bytes(data)
        self._create(path, data, is_new=is_new)
        self.sync_file(path)

    def sync_file(self, path: Path) -> None:
        self._log.open(path)
        try:
            self._step(Act.SYNC)
        except Exception:
            self._log.note(Operation(Act.SYNC_FAILED, path))
            raise
        self._log.note(Operation(Act.SYNC, path))

    def rename(self, source: Path, target: Path) -> None:
        self._log.open(source)
        self._step(Act.RENAME)
        super().rename(source, target)
        self._log.rename(source, target)
        self._log.note(Operation(Act.RENAME, source, target=target))

    def sync_folder(self, path: Path) -> None:
        self._step(Act.SYNC_FOLDER)
        self._log.note(Operation(Act.SYNC_FOLDER, path))

    def remove(self, path: Path) -> None:
        self._step(Act.REMOVE)
        if path.exists():
            super().remove(path)
            self._log.forget(path)
            self._log.note(Operation(Act.REMOVE, path))

    def _create(self, path: Path, data: bytes, *, is_new: bool) -> None:
        if is_new:
            self._log.create(path)
        else:
            self._log.open(path)
            self._log.note(Operation(Act.TRUNCATE, path, 0))
        self._log.note(Operation(Act.WRITE, path, 0, data))

    def _step(self, act: Act) -> None:
        if self._log.must_fail(act):
            raise self._error()
