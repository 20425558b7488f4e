"""Revisions of workspaces on disk, and the folders that a sandbox sees of them.

Invariants: a revision is stored under the hash of its content, and the bytes of its files under theirs; it is whole once it
has its name. What is read back is hashed again, unless this very process stored it. A folder that a sandbox saw is never
written to again.

A revision is not synced to disk: a process that is killed loses none, and one that a power cut took is found missing or
damaged by its hash, which costs its attempt a fresh start and nothing else.
"""

import errno
import itertools
import os
import shutil
import stat
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace.environments.workspace.tree import (
    FILE,
    FOLDER,
    LINK,
    PROGRAM,
    Entry,
    Tree,
    read_tree,
    removed,
    revision_of,
)
from headrace.records.ids import Address, EpisodeId
from headrace.records.provenance import address_of

MIN_KEPT = 64
"""Closed episodes whose revisions stay at least; those of an attempt that its process left unfinished are among them."""
_LIVE = "live-"
_lives = itertools.count(1)


class RevisionLost(Exception):
    """The revision is not there, or its bytes are not what its address says."""


class RevisionStore:
    """Revisions by episode and address.

    Args:
        folder: where; made when missing.
        owner: user that every file has to belong to; None to leave it as it is.
    """

    def __init__(self, folder: Path, owner: int | None) -> None:
        self._owner = owner
        self._episodes = folder / "episodes"
        self._episodes.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        sweep(folder)
        self._live = folder / f"{_LIVE}{os.getpid()}-{_started(os.getpid())}-{next(_lives)}"
        self._live.mkdir()
        self._base_folder = self._live / "base"
        self._base_folder.mkdir()
        self._base: dict[bytes, Entry] = {}
        self._counter = itertools.count()
        self._known: dict[EpisodeId, set[bytes]] = {}
        self._max_open = 0
        self._closed: OrderedDict[str, None] = OrderedDict.fromkeys(
            path.name for path in sorted(self._episodes.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        )

    @property
    def base(self) -> Tree:
        """What every workspace starts from."""
        return self._base

    def take_base(self, source: Path) -> None:
        """Copies the folder that every workspace starts from. Raises ValueError on what no workspace can hold."""
        self._base = copy_tree(source, self._base_folder)
        for path in [self._base_folder, *self._base_folder.rglob("*")]:
            self._own(path)

    def open(self, episode: EpisodeId) -> None:
        """Makes room for the episode's revisions; those that it has already stay."""
        self._closed.pop(str(episode), None)
        self._known.setdefault(episode, set())
        self._max_open = max(self._max_open, len(self._known))
        for name in ("objects", "revisions"):
            (self._episodes / str(episode) / name).mkdir(parents=True, exist_ok=True)

    def close(self, episode: EpisodeId) -> None:
        """The episode is over; revisions of those that closed long before go."""
        if self._known.pop(episode, None) is None:
            return
        self._closed[str(episode)] = None
        while len(self._closed) > max(MIN_KEPT, 4 * self._max_open):
            oldest, _ = self._closed.popitem(last=False)
            shutil.rmtree(self._episodes / oldest, ignore_errors=True)

    def stop(self) -> None:
        """Removes what only this process needed."""
        shutil.rmtree(self._live, ignore_errors=True)

    def put(self, episode: EpisodeId, tree: Tree, contents: Mapping[bytes, bytes]) -> Address:
        """Stores a revision; `contents` has the bytes of every file that it has and the last one had not."""
        folder, known = self._episodes / str(episode), self._known[episode]
        address, data = revision_of(tree)
        if address.encode() in known:
            return address
        for path, entry in tree.items():
            if entry.is_file and entry != self._base.get(path) and (name := _object_name(entry)) not in known:
                self._write(folder / "objects" / name.decode(), contents[entry.content], entry.kind)
                known.add(name)
        self._write(folder / "revisions" / address, data, FILE)
        known.add(address.encode())
        return address

    def contents(self, episode: EpisodeId, entry: Entry, path: bytes) -> bytes:
        """Bytes of a file of the tree. Raises RevisionLost."""
        source = self._source(episode, entry, path)
        try:
            data = source.read_bytes()
        except OSError as error:
            raise RevisionLost(f"{source.name} of {episode} cannot be read: {error.strerror}") from error
        if address_of(data).encode() != entry.content:
            raise RevisionLost(f"{source.name} of {episode} is damaged")
        return data

    def get(self, episode: EpisodeId, revision: Address) -> dict[bytes, Entry]:
        """The tree of a revision, every file of it checked. Raises RevisionLost."""
        path = self._episodes / str(episode) / "revisions" / revision
        try:
            data = path.read_bytes()
            if address_of(data) != revision:
                raise RevisionLost(f"revision {revision[:12]} of {episode} is damaged")
            tree = read_tree(data)
        except (OSError, msgspec.DecodeError, ValueError) as error:
            raise RevisionLost(f"revision {revision[:12]} of {episode} is not stored: {error}") from error
        known = self._known[episode]
        for name, entry in tree.items():
            if entry.is_file and entry != self._base.get(name) and _object_name(entry) not in known:
                self.contents(episode, entry, name)
                known.add(_object_name(entry))
        known.add(revision.encode())
        return tree

    def layers(self, episode: EpisodeId, tree: Tree, is_overlay: bool) -> tuple[Path, ...]:
        """Folders that make up the tree, the topmost first; with an overlay only the first is the episode's own."""
        layer = self._live / f"{episode}-{next(self._counter)}"
        layer.mkdir()
        below: Tree = self._base if is_overlay else {}
        for path, entry in sorted(tree.items()):
            if entry == below.get(path):
                continue
            target = layer / os.fsdecode(path)
            if is_overlay:
                self._make_parents(layer, target)
            if entry.kind == FOLDER:
                target.mkdir(exist_ok=True)
            elif entry.kind == LINK:
                target.symlink_to(os.fsdecode(entry.content))
            else:
                _link(self._source(episode, entry, path), target)
            self._own(target)
        for path in removed(tree, below):
            target = layer / os.fsdecode(path)
            self._make_parents(layer, target)
            os.mknod(target, stat.S_IFCHR, os.makedev(0, 0))  # how an overlay says that a name is gone
        self._own(layer)
        return (layer, self._base_folder) if is_overlay else (layer,)

    def drop(self, layers: tuple[Path, ...]) -> None:
        """Removes the folder of an episode's own that nothing sees any more."""
        for layer in layers[:1]:
            shutil.rmtree(layer, ignore_errors=True)

    def _make_parents(self, layer: Path, target: Path) -> None:
        missing = itertools.takewhile(lambda folder: folder != layer and not folder.exists(), target.parents)
        for folder in reversed(list(missing)):
            folder.mkdir()
            self._own(folder)

    def _source(self, episode: EpisodeId, entry: Entry, path: bytes) -> Path:
        if entry == self._base.get(path):
            return self._base_folder / os.fsdecode(path)
        return self._episodes / str(episode) / "objects" / _object_name(entry).decode()

    def _write(self, path: Path, data: bytes, kind: str) -> None:
        aside = path.with_name(f"{path.name}.new")
        aside.write_bytes(data)
        aside.chmod(0o755 if kind == PROGRAM else 0o644)
        self._own(aside)
        aside.rename(path)

    def _own(self, path: Path) -> None:
        if self._owner is not None:
            os.chown(path, self._owner, self._owner, follow_symlinks=False)


def _object_name(entry: Entry) -> bytes:
    return entry.content + (b".x" if entry.kind == PROGRAM else b"")


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EMLINK, errno.EXDEV, errno.EPERM):
            raise
        shutil.copy2(source, target)


def copy_tree(source: Path, target: Path) -> dict[bytes, Entry]:
    """The tree of a folder, copied into an empty one. Raises ValueError on what is no file, folder or link."""
    tree: dict[bytes, Entry] = {}
    for folder, folders, names in os.walk(source):
        for name in sorted((*folders, *names)):
            path = Path(folder) / name
            relative = path.relative_to(source)
            key, status = os.fsencode(relative), path.lstat()
            if stat.S_ISLNK(status.st_mode):
                tree[key] = Entry(LINK, os.fsencode(path.readlink()))
                (target / relative).symlink_to(path.readlink())
            elif stat.S_ISDIR(status.st_mode):
                tree[key] = Entry(FOLDER)
                (target / relative).mkdir()
            elif stat.S_ISREG(status.st_mode):
                kind = PROGRAM if status.st_mode & 0o100 else FILE
                data = path.read_bytes()
                tree[key] = Entry(kind, address_of(data).encode(), len(data))
                (target / relative).write_bytes(data)
                (target / relative).chmod(0o755 if kind == PROGRAM else 0o644)
            else:
                raise ValueError(f"{path} is no file, folder or link; a workspace cannot start from it")
    return tree


def sweep(folder: Path) -> None:
    """Removes what processes that are gone left of their own."""
    for path in folder.glob(f"{_LIVE}*"):
        pid, started, _ = path.name[len(_LIVE) :].split("-")
        if _started(int(pid)) != started:
            shutil.rmtree(path, ignore_errors=True)


def _started(pid: int) -> str:
    """When a process started, in ticks since the machine did; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return ""
